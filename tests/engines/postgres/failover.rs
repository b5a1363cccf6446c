//! Rewritten history: an older copy is restored, or a standby takes over without having received
//! everything.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::events::EngineEvents as _;
use super::{joined, opened};
use crate::engine_contract::peer::{Appending, Follow};
use crate::postgres_server::start_postgres;

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn an_older_copy_that_is_restored_is_noticed() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    let mut one = joined(&url, "one");
    one.append(b"a");
    one.read(1);
    let before = one.last();
    server.halt();
    one.away();
    let kept = server.dir().join("kept");
    copy(&server.data(), &kept);
    server.start();
    one.back();
    assert_eq!(one.follow(Some(before)), Follow::Batches);
    one.append(b"b");
    one.read(2);
    let after = one.last();
    let mut lost = joined(&url, "lost");
    server.halt();
    one.away();
    lost.away();
    fs::remove_dir_all(server.data()).unwrap();
    copy(&kept, &server.data());
    server.start();
    one.back();
    assert_eq!(one.follow(Some(after)), Follow::Rewritten);
    assert_eq!(one.follow(Some(before)), Follow::Batches, "that much is as it was");
    one.ask(3, b"c", None);
    assert_eq!(one.appended(3), Appending::Fenced, "batch 2 is lost");
    // A snapshot of the lost part must not replace the present log.
    assert_eq!(one.store(after.position, b"of another history").0, 0);
    // The engine assigns the number of a lost incarnation again. It does not mistake the first
    // owner for the second.
    lost.back();
    let mut new = joined(&url, "new");
    assert_eq!(new.host, lost.host);
    assert_eq!(lost.renew(), None);
    lost.ask(1, b"d", None);
    assert_eq!(lost.appended(1), Appending::Fenced);
    new.append(b"e");
}

#[test]
fn another_batch_at_the_same_place_is_noticed() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    let mut one = joined(&url, "one");
    server.halt();
    one.away();
    let kept = server.dir().join("kept");
    copy(&server.data(), &kept);
    server.start();
    one.back();
    one.append(b"a");
    one.load();
    let read = one.last();
    server.halt();
    one.away();
    fs::remove_dir_all(server.data()).unwrap();
    copy(&kept, &server.data());
    server.start();
    one.back();
    one.ask(1, b"b", None);
    assert_eq!(one.appended(1), Appending::At(read.position));
    assert_eq!(one.follow(Some(read)), Follow::Rewritten);
}

#[test]
fn a_standby_is_not_written_to_until_it_takes_over() {
    let Some(mut primary) = start_postgres() else { return };
    let url = primary.new_url();
    let Some(mut standby) = primary.standby() else { return };
    let database = url.rsplit('/').next().unwrap();
    let both = format!(
        "postgres://{database}@127.0.0.1:{},127.0.0.1:{}/{database}",
        standby.port, primary.port
    );
    let why = opened(&standby.url(database), "web").away();
    assert!(why.contains("standby"), "{why}");

    let mut one = joined(&both, "one");
    let position = one.append(b"a");
    one.read_to(position);
    standby.has_replayed(&primary);
    // The standby loses everything that it does not receive before it takes over.
    standby.halt();
    let first = one.last();
    let position = one.append(b"b");
    one.read_to(position);
    primary.halt();
    one.away();
    standby.start();
    standby.sql("SELECT pg_promote()");
    one.back();
    assert_eq!(one.follow(Some(one.last())), Follow::Rewritten);
    assert_eq!(one.follow(Some(first)), Follow::Batches);
}
