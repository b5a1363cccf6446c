//! Ports for the servers of tests. A test binary includes this folder by path.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port of loopback that is free now, and that no outgoing connection takes while its server is
/// down: below those that the kernel gives out (`ip_local_port_range`).
pub(crate) fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(fastrand::u32(..)));
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 15_000 + u16::try_from(n % 17_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
