//! Requests over nodes: how one daemon acts as one of several.

mod collect;
mod confirm;
mod identity;
mod lists;
mod waits;

use canal::log::lease_file::LeaseLog;
use canal::log::stored_state::{self, Durable};
use serde_json::{Value, json};

use crate::wire::daemon::Daemon;
use crate::wire::peer::Peer;

/// Longer than any test takes.
const LONG_MS: u64 = 500_000;

const COLLECT: &str = "io.canal.Nodes.Collect";
const CONFIRM_AT: &str = "io.canal.Nodes.ConfirmAt";

/// A daemon that knows all its earlier grants.
#[track_caller]
fn node() -> Daemon {
    node_configured("[nodes]\nlongest_ttl = \"1h\"\n")
}

/// Starts such a daemon with this configuration file.
#[track_caller]
fn node_configured(config: &str) -> Daemon {
    let mut daemon = Daemon::lasting_folder();
    std::fs::write(daemon.path("canal.toml"), config).unwrap();
    stored_state::store(&daemon.path(""), &Durable::default()).unwrap();
    LeaseLog::open(&daemon.path("")).unwrap().log.write_anew(Vec::new()).unwrap();
    daemon.run(|_| {});
    daemon
}

fn hex(n: u128) -> String {
    format!("{n:032x}")
}

#[track_caller]
fn id_of(daemon: &Daemon) -> String {
    let identity = daemon.connect().call("io.canal.Nodes.Identify", json!({}));
    identity["node"].as_str().unwrap().to_owned()
}

/// The parameters of a `Collect` of a mutex over this node and another one; the handle of the lease
/// is the number of its tag.
#[track_caller]
fn part(daemon: &Daemon, tag: u128, key: &str) -> Value {
    let mut nodes = [id_of(daemon), "f".repeat(32)];
    nodes.sort();
    json!({
        "run": hex(1000 + tag),
        "tag": hex(tag),
        "handle": hex(tag),
        "ttl_ms": LONG_MS,
        "items": [{ "key": key, "slots": 1 }],
        "nodes": nodes,
        "require": "all",
        "command": format!("peer {tag}"),
    })
}

/// Returns the parameters with one field replaced.
fn with(mut parameters: Value, name: &str, value: Value) -> Value {
    parameters[name] = value;
    parameters
}

fn confirm(tag: u128, token: u64) -> Value {
    json!({ "tag": hex(tag), "handle": hex(tag), "token": token })
}

/// Acquires a part of a request over nodes, and confirms it with the next token, which it returns.
#[track_caller]
fn take(daemon: &Daemon, tag: u128, key: &str) -> u64 {
    let mut peer = daemon.connect();
    let token = peer.call(COLLECT, part(daemon, tag, key))["token"].as_u64().unwrap();
    assert_eq!(peer.call(CONFIRM_AT, confirm(tag, token + 1)), json!({ "token": token + 1 }));
    token + 1
}

/// Sends a call that fails. Returns the name of the error and its parameters.
#[track_caller]
fn failed(peer: &mut Peer, method: &str, parameters: Value) -> (String, Value) {
    peer.send(method, parameters);
    peer.error()
}

/// Simulates a reboot: the journal is void, but the state is not.
fn forget_the_journal(daemon: &Daemon) {
    for name in ["journal.0", "journal.1"] {
        std::fs::remove_file(daemon.path(name)).unwrap();
    }
}
