//! An etcd that the worlds of this test program share, each under its own prefix.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::etcd_server::{self, Etcd};
use crate::world::hosts::Log;

/// Whether an engine keeps the table. If so, the clients of a world are spread over two hosts.
pub(crate) const IS_ENGINE: bool = true;

static SERVER: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A log for one world. The first world starts the server, and the last one ends it. Without an
/// installed etcd, this ends the test program.
pub(crate) fn log() -> Option<Log> {
    if !etcd_server::installed() {
        std::process::exit(0);
    }
    let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let server = shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(etcd_server::start_etcd());
        *shared = Arc::downgrade(&server);
        server
    });
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let url = format!("etcd://{}/world{number}", server.endpoint());
    Some(Log { url, _server: Some(server) })
}
