//! The engine in PostgreSQL, against real servers that the tests start.

mod connection;
mod contract;
mod eras;
mod events;
mod evidence;
mod failover;
mod login;
mod pooler;
mod schema;
mod session;
mod tls;

use canal::log::engine::postgres;
use events::EngineEvents as _;

use crate::engine_contract::peer::Peer;
use crate::isolation;

/// A host that has made no calls yet.
fn opened(url: &str, label: &str) -> Peer {
    Peer::with(Box::new(postgres::open(super::fixed(url), label).unwrap()), label)
}

/// A host that is registered and reads.
fn joined(url: &str, label: &str) -> Peer {
    let mut peer = opened(url, label);
    peer.register();
    peer.load();
    peer
}

/// The reason why a host cannot use that address, and the hint.
fn unable(url: &str) -> (String, String) {
    opened(url, "web").unable()
}

/// Whether `program` is installed. Without it the test is skipped.
fn is_installed(program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = dirs.into_iter().any(|dir| dir.join(program).exists());
    if !found {
        isolation::skipped(&format!("{program} is not installed (Debian: apt install {package})"));
    }
    found
}
