//! Holders and waiters as a client sees them.

use std::time::Duration;

use canal::testing::Daemon;
use canal::{Client, ErrorKind};

use super::lock;
use super::scene::Scene;
use crate::world::process::BOUND;

fn client(daemon: &Daemon) -> Client {
    Client::connect_to(&daemon.endpoint()).unwrap()
}

#[test]
fn status_names_holders_and_waiters() {
    let daemon = Daemon::start().unwrap();
    let guard = lock(&daemon, "db").slots(1).command("the test").note("run 7").acquire().unwrap();
    let _other = lock(&daemon, "other").acquire().unwrap();
    let mut scene = Scene::holds(&daemon, "db");
    assert_eq!(scene.line(), "waits");

    let mut client = client(&daemon);
    let status = client.status().unwrap();
    let keys: Vec<_> = status.keys.iter().map(|key| key.key.as_str()).collect();
    assert_eq!(keys, ["db", "other"]);
    let status = client.status_of("db").unwrap();
    let [db] = &status.keys[..] else { panic!("{:?}", status.keys) };
    assert_eq!((db.held, db.capacity, db.waiting), (1, Some(1), 1));
    assert_eq!(db.holders[0].pid, std::process::id());
    assert_eq!(db.holders[0].command.as_deref(), Some("the test"));
    assert_eq!(db.holders[0].note.as_deref(), Some("run 7"));
    assert_eq!(db.holders[0].session, guard.session());
    assert_eq!((db.waiters[0].pid, db.waiters[0].position), (scene.pid(), 1));

    let waits = client.why(scene.pid()).unwrap().waits;
    assert_eq!(waits[0].blockers[0].party.pid, std::process::id());
    assert_eq!(client.waits().unwrap().waits.len(), 1);
    assert!(client.why(std::process::id()).unwrap().waits.is_empty(), "it only holds");
    assert_eq!(client.why(1).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(client.status_of("/").unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn updates_come_at_each_change_and_only_then() {
    let daemon = Daemon::start().unwrap();
    let mut updates = client(&daemon).updates_of("db");
    let held = |status: &canal::status::Status| status.keys.iter().map(|key| key.held).sum::<u64>();
    let first = updates.next().unwrap().unwrap();
    assert_eq!(held(&first), 0);
    assert!(updates.next_within(Duration::from_millis(20)).unwrap().is_none());

    let guard = lock(&daemon, "db").slots(2).acquire().unwrap();
    let status = updates.find(|status| held(status.as_ref().unwrap()) == 1);
    assert_eq!(status.unwrap().unwrap().keys[0].holders[0].token, guard.token());
    drop(guard);
    assert!(updates.any(|status| held(&status.unwrap()) == 0));
    assert!(updates.next_within(BOUND.min(Duration::from_millis(1))).unwrap().is_none());
}

#[test]
fn updates_end_after_an_error() {
    let daemon = Daemon::start().unwrap();
    let mut updates = client(&daemon).updates_of("/");
    assert_eq!(updates.next().unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(updates.next().is_none());
}
