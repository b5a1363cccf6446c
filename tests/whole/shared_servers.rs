//! The servers that the worlds over engines share: an etcd and a PostgreSQL.

use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::etcd_server::{self, Etcd};
use crate::postgres_server;
use crate::world::hosts::Log;

/// Whether etcd is installed. Otherwise the test is skipped.
pub(crate) fn has_etcd() -> bool {
    etcd_server::installed()
}

/// Whether PostgreSQL is installed. Otherwise the test is skipped.
pub(crate) fn has_postgres() -> bool {
    postgres_server::shared().is_some()
}

/// A prefix in etcd. The first world starts the server, and the last one ends it.
pub(crate) fn log_in_etcd(number: u32) -> Log {
    static SERVER: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let server = shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(etcd_server::start_etcd());
        *shared = Arc::downgrade(&server);
        server
    });
    let url = format!("etcd://{}/world{number}", server.endpoint());
    Log { url, _server: Some(server) }
}

/// A schema in PostgreSQL.
pub(crate) fn log_in_postgres(number: u32) -> Log {
    static DATABASE: LazyLock<String> =
        LazyLock::new(|| postgres_server::shared().map(|server| server.new_url()).unwrap());
    Log { url: format!("{}?canal_schema=world{number}", *DATABASE), _server: None }
}
