//! Leases over the wire: the handle renews and releases them, and they end without renewals.

mod acquire;
mod handles;
mod restart;

use serde_json::{Value, json};

use crate::wire::daemon::Daemon;
use crate::wire::peer::{Peer, mutex};

/// Longer than any test takes.
const LONG_MS: u64 = 600_000;
/// The minimum.
const SHORT_MS: u64 = 1000;

pub(crate) fn handle(n: u128) -> String {
    format!("{n:032x}")
}

/// The parameters of an `Acquire` of a mutex as a lease; its handle is the number of its tag.
fn lease(tag: u128, key: &str, ttl_ms: u64) -> Value {
    let mut parameters = mutex(tag, key);
    parameters["lease"] = json!({ "handle": handle(tag), "ttl_ms": ttl_ms });
    parameters
}

/// Acquires a lease and confirms it.
#[track_caller]
fn take(daemon: &Daemon, tag: u128, key: &str, ttl_ms: u64) -> Value {
    let mut asker = daemon.connect();
    let grant = asker.call("Acquire", lease(tag, key, ttl_ms));
    asker.call("Confirm", json!({ "tag": handle(tag) }));
    grant
}

fn by_handle(n: u128) -> Value {
    json!({ "handle": handle(n) })
}

#[track_caller]
fn lost(peer: &mut Peer, method: &str, n: u128, reason: &str) -> Value {
    peer.send(method, by_handle(n));
    let (name, parameters) = peer.error();
    assert_eq!((name.as_str(), parameters["reason"].as_str()), ("LeaseLost", Some(reason)));
    parameters
}
