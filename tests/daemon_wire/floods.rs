//! A flood by one user delays nobody else for long, and takes a bounded amount of memory.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::daemon::Daemon;

/// Runs `flood` in so many threads, again and again, until `meanwhile` returns.
fn flooded(threads: usize, flood: impl Fn() + Sync, meanwhile: impl FnOnce()) {
    let over = AtomicBool::new(false);
    /// Ends the flood also if `meanwhile` panics: the scope waits for its threads.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _ends = Ends(&over);
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    flood();
                }
            });
        }
        meanwhile();
    });
}

/// The name of the abstract socket that keeps a second daemon out.
fn guard_of(daemon: &Daemon) -> String {
    let links = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let links = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    let sockets: Vec<String> = links.filter_map(|it| it.to_str().map(str::to_owned)).collect();
    let known = std::fs::read_to_string("/proc/net/unix").unwrap();
    let found = known.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(6);
        let (inode, name) = (words.next()?, words.next()?.strip_prefix("@canal-")?);
        sockets.contains(&format!("socket:[{inode}]")).then(|| format!("canal-{name}"))
    });
    found.expect("an abstract socket of the daemon")
}

#[test]
fn who_connects_to_the_abstract_socket_without_end_delays_nobody() {
    let daemon = Daemon::start();
    let address = SocketAddr::from_abstract_name(guard_of(&daemon)).unwrap();
    let connect = || drop(UnixStream::connect_addr(&address));
    flooded(8, connect, || {
        for _ in 0..20 {
            daemon.connect().call("Status", json!({}));
        }
    });
}
