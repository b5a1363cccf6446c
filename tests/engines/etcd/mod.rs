//! The engine of etcd against real servers.

mod auth;
mod cluster;
mod conditions;
mod connection;
mod eras;
mod history;
mod lease;
mod quota;
mod refusals;
mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use canal::log::engine::{Engine, etcd};

use crate::engine_contract::{Log, contract};
use crate::etcd_server;

/// An engine for an address.
fn open(address: &str) -> Box<dyn Engine + Send> {
    Box::new(etcd::open(super::fixed(address)).unwrap())
}

/// A separate prefix on the server that the tests share.
struct Prefix {
    server: Arc<etcd_server::Etcd>,
    number: u32,
}

impl Log for Prefix {
    fn engine(&self, _label: &str) -> Box<dyn Engine + Send> {
        open(&format!("etcd://{}/test{}", self.server.endpoint(), self.number))
    }
}

/// The first test starts the server, and the last one ends it.
static SERVER: Mutex<Weak<etcd_server::Etcd>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

fn prefix() -> Option<Prefix> {
    if !etcd_server::installed() {
        return None;
    }
    let mut shared = SERVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(etcd_server::start_etcd());
        *shared = Arc::downgrade(&server);
        server
    });
    Some(Prefix { server, number: NUMBER.fetch_add(1, Ordering::Relaxed) })
}

contract!(prefix);
