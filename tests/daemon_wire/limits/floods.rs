//! A flood by one user delays other users only for a bounded time, and takes only a bounded amount
//! of memory.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::wire::daemon::{Daemon, peak, wait_until};
use crate::wire::peer::{Peer, call, mutex};

fn geteuid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Runs `flood` repeatedly in several threads until `meanwhile` returns.
fn flooded(threads: usize, flood: impl Fn() + Sync, meanwhile: impl FnOnce()) {
    let over = AtomicBool::new(false);
    /// Ends the flood even if `meanwhile` panics, because the scope waits for its threads.
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
fn a_flood_of_connections_to_the_abstract_socket_delays_no_client() {
    let daemon = Daemon::start();
    let address = SocketAddr::from_abstract_name(guard_of(&daemon)).unwrap();
    let connect = || drop(UnixStream::connect_addr(&address));
    flooded(8, connect, || {
        for _ in 0..20 {
            daemon.connect().call("Status", json!({}));
        }
    });
}

/// An `Acquire` of a lease of `hot` and many other long keys.
fn long_lease(tag: usize) -> serde_json::Value {
    let mut parameters = mutex(tag as u128, "");
    let key = |n: usize| json!({ "key": format!("{tag}/{n}/{}", "x".repeat(900)), "slots": 1 });
    let hot = json!({ "key": "hot", "slots": 1 });
    parameters["items"] = std::iter::once(hot).chain((0..40).map(key)).collect();
    parameters["lease"] = json!({ "handle": format!("{tag:032x}"), "ttl_ms": 600_000 });
    parameters
}

#[test]
fn unread_reports_take_little_memory_and_delay_no_client() {
    const WAITERS: usize = 30;
    let daemon = Daemon::start();
    let _holder = daemon.hold(1, "hot");
    let waiters: Vec<Peer> = (0..WAITERS)
        .map(|n| {
            let mut peer = daemon.connect();
            peer.send("Acquire", long_lease(n + 2));
            peer
        })
        .collect();
    let mut other = daemon.connect();
    wait_until("all wait", || {
        other.call("Status", json!({ "key": "hot" }))["keys"][0]["waiting"] == WAITERS
    });
    let report = daemon.connect().ask("Status", json!({})).unwrap().to_string().len();
    assert!(report > 1_400_000, "{report} bytes");
    let before = peak(&daemon);

    let deaf: Vec<Peer> = (0..60)
        .map(|n| {
            let mut peer = daemon.connect();
            peer.send(["Status", "Graph"][n % 2], json!({}));
            peer
        })
        .collect();
    for tag in 1000..1020 {
        other.call("Acquire", mutex(tag, "free"));
        other.call("Release", json!({ "key": "free" }));
    }
    // The daemon disconnects a peer that reads nothing, so the next one gets its turn.
    wait_until("some of them are closed", || deaf.iter().filter(|it| it.was_closed()).count() > 1);
    other.call("Acquire", mutex(2000, "free"));
    let more = peak(&daemon) - before;
    assert!(more < 8 * report, "{more} bytes more for 60 reports of {report} bytes");
    drop(waiters);
}

#[test]
fn any_number_of_reports_can_be_asked_for_if_the_client_reads_them() {
    const CALLS: usize = 1000;
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let bytes = call("Status", json!({}), json!({})).repeat(CALLS);
    thread::scope(|scope| {
        let mut writer = peer.another();
        scope.spawn(move || writer.raw(&bytes).unwrap());
        for _ in 0..CALLS {
            assert!(peer.reply().is_some_and(|reply| reply.get("error").is_none()));
        }
    });
}

#[test]
fn a_report_comes_after_the_reply_to_an_earlier_call() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let mut bytes = call("Acquire", mutex(1, "a"), json!({}));
    for _ in 0..3 {
        bytes.extend(call("Status", json!({}), json!({})));
        bytes.extend(call("Graph", json!({}), json!({})));
        bytes.extend(call("Confirm", json!({ "tag": format!("{:032x}", 7) }), json!({})));
    }
    peer.raw(&bytes).unwrap();
    peer.returned("Acquire");
    for _ in 0..3 {
        peer.returned("Status");
        peer.returned("Graph");
        assert_eq!(peer.error().0, "UnknownTag");
    }
}

#[test]
fn more_leases_than_a_user_may_hold_are_refused_by_name_and_recorded_nowhere() {
    let daemon = Daemon::configured("[limits]\nleases_per_user = 2\n");
    let mut peer = daemon.connect();
    let lease = |tag: u128| {
        let mut parameters = mutex(tag, &format!("key/{tag}"));
        parameters["lease"] = json!({ "handle": format!("{tag:032x}"), "ttl_ms": 600_000 });
        parameters
    };
    for tag in 1..=2 {
        peer.call("Acquire", lease(tag));
        peer.call("Confirm", json!({ "tag": format!("{tag:032x}") }));
    }
    peer.send("Acquire", lease(3));
    let (name, parameters) = peer.error();
    assert_eq!(name, "TooManyLeases");
    assert_eq!(parameters["message"], format!("uid {} holds 2 leases; the limit is 2", geteuid()));
    let hint = "release some first, or raise `leases_per_user` in the configuration";
    assert_eq!(parameters["hint"], hint);
    assert_eq!(daemon.status().keys.len(), 2);
    // Calls that are not about leases still work, and releasing a lease makes room for another.
    peer.call("Acquire", mutex(4, "a"));
    peer.call("Release", json!({ "handle": format!("{:032x}", 1) }));
    peer.call("Acquire", lease(5));
}

#[test]
fn keys_that_take_more_than_a_user_may_have_are_refused_by_name() {
    let daemon = Daemon::configured("[limits]\nkey_bytes_per_user = 200\n");
    let mut peer = daemon.connect();
    // Each key takes 64 + 36 bytes.
    let key = |tag: u128| mutex(tag, &format!("{tag:036}"));
    peer.call("Acquire", key(1));
    let _idler = daemon.hold(9, "x");
    peer.send("Acquire", key(2));
    assert_eq!(peer.error().0, "TooManyKeys");
    peer.call("Release", json!({ "key": format!("{:036}", 1) }));
    peer.call("Acquire", key(3));
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(4, &format!("{:036}", 3)));
    let (name, parameters) = waiter.error();
    assert_eq!(name, "TooManyKeys");
    assert!(parameters["hint"].as_str().unwrap().contains("`key_bytes_per_user`"), "{parameters}");
}
