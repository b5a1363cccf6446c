//! Read and write locks on a tree of keys.

use serde_json::{Value, json};

use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, Peer, mutex_for};

/// The parameters of an `Acquire` for the process whose pidfd accompanies the call.
pub(crate) fn request(tag: u128, items: Value) -> Value {
    let mut parameters = mutex_for(tag, "");
    parameters["items"] = items;
    parameters
}

pub(crate) fn read(key: &str) -> Value {
    json!([{ "key": key, "mode": "read" }])
}

pub(crate) fn write(key: &str) -> Value {
    json!([{ "key": key, "mode": "write" }])
}

/// Sends a request for a process.
#[track_caller]
pub(crate) fn ask(daemon: &Daemon, owner: &Idler, parameters: Value) -> Peer {
    let mut peer = daemon.connect();
    peer.send_with("Acquire", parameters, &owner.pidfd());
    peer
}

/// Makes a process hold items in addition to its other holds.
#[track_caller]
pub(crate) fn give(daemon: &Daemon, owner: &Idler, tag: u128, items: Value) -> Value {
    let mut peer = ask(daemon, owner, request(tag, items));
    let grant = peer.returned("Acquire");
    peer.call("Confirm", json!({ "tag": format!("{tag:032x}") }));
    grant
}

/// The refusal of a client that may not wait.
#[track_caller]
fn refusal(daemon: &Daemon, tag: u128, items: Value) -> Value {
    let mut parameters = request(tag, items);
    parameters["wait_ms"] = 0.into();
    let (name, failure) = ask(daemon, &Idler::start(), parameters).error();
    assert_eq!((name.as_str(), &failure["reason"]), ("Refused", &json!("full")));
    failure
}

#[test]
fn readers_share_and_a_writer_waits_for_them() {
    let daemon = Daemon::start();
    let (one, other, writer) = (Idler::start(), Idler::start(), Idler::start());
    let grant = give(&daemon, &one, 1, read("db"));
    assert_eq!(grant["keys"], json!([{ "key": "db", "acquired": 1, "slots": [], "mode": "read" }]));
    assert_eq!(give(&daemon, &other, 2, read("db"))["keys"][0]["acquired"], 2);
    let mut waiter = ask(&daemon, &writer, request(3, write("db")));
    daemon.until_use("db", 0, 1);

    let key = daemon.key("db").unwrap();
    assert_eq!((key.kind, key.capacity, key.view), (None, None, None));
    let modes = key.holders.iter().map(|holder| holder.mode);
    assert_eq!(modes.collect::<Vec<_>>(), [Some(canal::protocol::Mode::Read); 2]);
    let shown = &key.waiters[0];
    assert_eq!((shown.mode, shown.count), (canal::protocol::Mode::Write, 0));
    let pid = one.pid();
    assert_eq!(shown.reason, format!("held for reading by pid {pid} and 1 other"));

    drop(one);
    drop(other);
    assert_eq!(waiter.returned("Acquire")["keys"][0]["mode"], "write");
}

#[test]
fn blockers_above_and_below_a_key_are_named_with_their_keys() {
    let daemon = Daemon::start();
    let (job, writer) = (Idler::start(), Idler::start());
    give(&daemon, &job, 1, json!([{ "key": "db/x", "slots": 2 }]));
    give(&daemon, &writer, 2, write("db/y/z"));

    let failure = refusal(&daemon, 3, write("db/x"));
    assert_eq!(
        failure["message"],
        format!("`db/x` is not free: slots are held by pid {}", job.pid())
    );
    assert!(failure["holders"][0].get("key").is_none());
    let failure = refusal(&daemon, 4, read("db"));
    assert_eq!(
        failure["message"],
        format!(
            "`db` is not free: `db/y/z`, a key below it, is held for writing by pid {}",
            writer.pid()
        )
    );
    assert_eq!(failure["holders"].as_array().unwrap().len(), 1);
    assert_eq!(failure["holders"][0]["key"], "db/y/z");
    let failure = refusal(&daemon, 5, json!([{ "key": "db/y/z/1", "slots": 1 }]));
    assert_eq!(failure["holders"][0]["key"], "db/y/z");
    let failure = refusal(&daemon, 6, write("db"));
    assert_eq!(failure["holders"].as_array().unwrap().len(), 2);

    let waiting = Idler::start();
    let mut waiter = ask(&daemon, &waiting, request(7, write("db")));
    daemon.until_use("db", 0, 1);
    let shown = daemon.key("db").unwrap();
    assert_eq!(
        shown.waiters[0].reason,
        format!("slots of `db/x`, a key below it, are held by pid {} and 1 other", job.pid())
    );
    drop((job, writer));
    waiter.returned("Acquire");
}

#[test]
fn the_status_of_a_key_covers_the_tree_below_it() {
    let daemon = Daemon::start();
    let idler = Idler::start();
    let items = ["db", "db/x/1", "db-x", "db0"].map(|key| json!({ "key": key, "mode": "read" }));
    give(&daemon, &idler, 1, json!(items));
    let status = daemon.connect().call("Status", json!({ "key": "db" }));
    let keys = status["keys"].as_array().unwrap().iter().map(|key| &key["key"]);
    assert_eq!(keys.collect::<Vec<_>>(), ["db", "db/x/1"]);
}

#[test]
fn reads_and_writes_outlive_a_killed_daemon() {
    let mut daemon = Daemon::start();
    let (reader, writer, waiting) = (Idler::start(), Idler::start(), Idler::start());
    give(&daemon, &reader, 1, read("a"));
    let grant = give(&daemon, &writer, 2, write("b/x"));
    let mut waiter = ask(
        &daemon,
        &waiting,
        request(
            3,
            json!([
                { "key": "a", "mode": "write" }, { "key": "b", "slots": 1 },
            ]),
        ),
    );
    daemon.until_use("a", 0, 1);
    daemon.kill();
    assert_eq!(waiter.reply(), None);
    daemon.run(|_| {});
    let mut waiter = ask(
        &daemon,
        &waiting,
        request(
            3,
            json!([
                { "key": "a", "mode": "write" }, { "key": "b", "slots": 1 },
            ]),
        ),
    );
    daemon.until_use("a", 0, 1);
    // A repeated request gets the same grant.
    let again = give(&daemon, &writer, 2, write("b/x"));
    assert_eq!(again, grant);
    drop(reader);
    assert!(waiter.is_silent(), "what lies below `b` is still written");
    drop(writer);
    waiter.returned("Acquire");
}
