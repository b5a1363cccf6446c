//! A PostgreSQL that the worlds of this test program share, each in its own schema.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::postgres_server;
use crate::world::hosts::Log;

/// Whether an engine keeps the table. If so, the clients of a world are spread over two hosts.
pub(crate) const IS_ENGINE: bool = true;

/// A log for one world. Without an installed PostgreSQL, this ends the test program.
pub(crate) fn log() -> Option<Log> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    static DATABASE: LazyLock<String> = LazyLock::new(|| {
        let Some(server) = postgres_server::shared() else {
            std::process::exit(0);
        };
        server.new_url()
    });
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Some(Log { url: format!("{}?canal_schema=world{number}", *DATABASE), _server: None })
}
