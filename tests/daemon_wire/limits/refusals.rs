//! The daemon refuses what exceeds a limit, with an error that names the limit, and disturbs no
//! other client.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::wire::daemon::{BOUND, Daemon, peak, wait_until};
use crate::wire::peer::{Idler, Peer, call, mutex, mutex_for};

/// How many calls a client may send before the reply to an earlier one. The daemon uses the same
/// number.
const CALLS_AHEAD_MAX: usize = 256;

/// The maximum size of a call in bytes. The daemon uses the same number.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

#[test]
fn a_megabyte_of_junk_is_refused_and_disturbs_no_client() {
    let daemon = Daemon::start();
    let mut other = daemon.connect();
    let mut peer = daemon.connect();
    peer.send_until_full(&vec![b'x'; 1024 * 1024]);
    assert_eq!(peer.error().0, "TooMuch");
    assert_eq!(peer.reply(), None);
    other.call("Acquire", mutex(1, "a"));
}

#[test]
fn the_largest_message_passes_and_one_byte_more_does_not() {
    let daemon = Daemon::start();
    let message = |bytes: usize| {
        let bare = call("Status", json!({ "padding": "" }), json!({})).len() - 1;
        call("Status", json!({ "padding": "x".repeat(bytes - bare) }), json!({}))
    };
    let mut peer = daemon.connect();
    peer.raw(&message(MESSAGE_BYTES_MAX)).unwrap();
    peer.returned("Status");
    peer.raw(&message(MESSAGE_BYTES_MAX + 1)).unwrap();
    assert_eq!(peer.error().0, "TooMuch");
    assert_eq!(peer.reply(), None);
}

#[test]
fn malformed_input_is_refused_after_the_replies_to_earlier_calls() {
    let daemon = Daemon::start();
    for junk in [&b"{}\0"[..], b"\0", b"[1]\0", b"{\"method\":\0", b"\xff\xfe\0"] {
        let mut peer = daemon.connect();
        let mut bytes = call("Status", json!({}), json!({}));
        bytes.extend_from_slice(junk);
        bytes.extend(call("Status", json!({}), json!({})));
        peer.raw(&bytes).unwrap();
        peer.returned("Status");
        assert_eq!(peer.error().0, "Malformed", "{junk:?}");
        assert_eq!(peer.reply(), None);
    }
}

#[test]
fn an_incomplete_message_has_no_effect() {
    let daemon = Daemon::start();
    let whole = call("Acquire", mutex(1, "a"), json!({}));
    let mut peer = daemon.connect();
    peer.raw(&whole[..whole.len() / 2]).unwrap();
    drop(peer);
    let mut silent = daemon.connect();
    silent.raw(&whole[..whole.len() - 1]).unwrap();
    assert_eq!(daemon.use_of("a"), (0, 0));
    silent.raw(&whole[whole.len() - 1..]).unwrap();
    silent.returned("Acquire");
}

#[test]
fn a_message_may_come_byte_by_byte() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    for byte in call("Acquire", mutex(1, "a"), json!({})) {
        peer.raw(&[byte]).unwrap();
    }
    peer.returned("Acquire");
}

#[test]
fn calls_may_be_sent_ahead_up_to_a_limit() {
    let daemon = Daemon::start();
    let holder = daemon.hold(1, "a");
    let ahead = |count: usize| {
        let mut bytes = call("Acquire", mutex(2, "a"), json!({}));
        for _ in 0..count {
            bytes.extend(call("org.varlink.service.GetInfo", json!({}), json!({})));
        }
        bytes
    };
    let mut most = daemon.connect();
    most.raw(&ahead(CALLS_AHEAD_MAX)).unwrap();
    daemon.until_use("a", 1, 1);
    drop(holder);
    most.returned("Acquire");
    for _ in 0..CALLS_AHEAD_MAX {
        most.returned("org.varlink.service.GetInfo");
    }
    most.call("Release", json!({ "all": true }));

    let _holder = daemon.hold(3, "a");
    let mut more = daemon.connect();
    more.raw(&ahead(CALLS_AHEAD_MAX + 1)).unwrap();
    assert_eq!(more.error().0, "TooMuch");
    assert_eq!(more.reply(), None);
    daemon.until_use("a", 1, 0);
}

#[test]
fn calls_that_wait_for_nothing_may_be_any_number() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let one = call("Confirm", json!({ "tag": format!("{:032x}", 1) }), json!({}));
    let bytes = one.repeat(CALLS_AHEAD_MAX * 10);
    let (sent, read) = std::thread::scope(|scope| {
        let mut writer = peer.another();
        let writing = scope.spawn(move || writer.raw(&bytes).is_ok());
        let read = (0..CALLS_AHEAD_MAX * 10).filter(|_| peer.error().0 == "UnknownTag").count();
        (writing.join().unwrap(), read)
    });
    assert!(sent);
    assert_eq!(read, CALLS_AHEAD_MAX * 10);
}

#[test]
fn a_peer_that_does_not_read_gets_no_more_and_delays_no_client() {
    let daemon = Daemon::start();
    let mut holders: Vec<Peer> = Vec::new();
    for n in 0..100 {
        let mut peer = daemon.connect();
        peer.call("Acquire", mutex(n, &format!("key/{n}")));
        holders.push(peer);
    }
    let mut deaf = daemon.connect();
    let one = call("Status", json!({}), json!({}));
    let calls = one.repeat(100);
    let before = peak(&daemon);
    let begun = Instant::now();
    let sent = deaf.send_until_full(&calls);
    let mut other = daemon.connect();
    other.call("Acquire", mutex(200, "other"));
    assert!(begun.elapsed() < BOUND);
    let first = deaf.reply().unwrap().to_string().len();
    let more = peak(&daemon) - before;
    // Pages of the allocator and the kernel count too, so the bound is much larger than one reply.
    assert!(more < 40 * first, "{more} bytes more for 100 replies of {first} bytes");
    // When the peer finally reads, it gets a complete reply to everything that it sent.
    for _ in 1..sent / one.len() {
        assert!(deaf.reply().is_some_and(|reply| reply.get("error").is_none()));
    }
    assert_eq!(daemon.status().keys.len(), 101, "no client lost anything");
}

#[test]
fn connections_over_the_limit_are_refused_and_the_others_go_on() {
    let daemon = Daemon::configured("[limits]\nconnections = 3\n");
    let mut peers = Vec::new();
    // The daemon may not have closed the connections of the start-up check yet.
    wait_until("three are there", || {
        let mut peer = daemon.connect();
        let reply = peer.ask("Status", json!({}));
        if reply.is_some_and(|reply| reply.get("error").is_none()) {
            peers.push(peer);
        }
        peers.len() == 3
    });
    let mut late = daemon.connect();
    // The daemon may close the connection before the peer sends anything.
    late.send_until_full(&call("Status", json!({}), json!({})));
    let (name, parameters) = late.error();
    assert_eq!(name, "TooManyConnections");
    assert!(parameters["hint"].as_str().unwrap().contains("`connections`"), "{parameters}");
    assert_eq!(late.reply(), None);
    peers[0].call("Acquire", mutex(1, "a"));
    drop(peers.pop());
    wait_until("there is room again", || {
        daemon.connect().ask("Status", json!({})).is_some_and(|reply| reply.get("error").is_none())
    });
}

#[test]
fn too_many_waiting_requests_of_a_user_are_refused() {
    let daemon = Daemon::configured("[limits]\nwaiters_per_user = 2\n");
    let _holder = daemon.hold(1, "a");
    let mut waiters: Vec<Peer> = (2..4).map(|_| daemon.connect()).collect();
    for (tag, waiter) in (2..).zip(&mut waiters) {
        waiter.send("Acquire", mutex(tag, "a"));
    }
    daemon.until_use("a", 1, 2);
    let mut late = daemon.connect();
    late.send("Acquire", mutex(5, "a"));
    assert_eq!(late.error().0, "TooManyWaiters");
    // A place that becomes free is available again.
    drop(waiters.pop());
    daemon.until_use("a", 1, 1);
    late.send("Acquire", mutex(6, "a"));
    daemon.until_use("a", 1, 2);
}

#[test]
fn running_out_of_descriptors_refuses_new_clients_and_ends_none() {
    let mut daemon = Daemon::folder();
    daemon.adopt(under(&daemon, "ulimit -n 80").spawn().unwrap());
    // Each waiter takes three descriptors: the connection, the owner's pidfd that came with the
    // call, and one for its frame.
    let idlers: Vec<Idler> = (0..60).map(|_| Idler::start()).collect();
    let mut peers = Vec::new();
    let mut refused = 0;
    for (tag, idler) in (0..).zip(&idlers) {
        let Some(mut peer) = daemon.try_connect() else { break };
        // A refused peer may find the connection closed; the reason is in its receive buffer.
        let call = mutex_for(tag, &format!("key/{tag}"));
        let _ = peer.try_send_with("Acquire", call, &idler.pidfd());
        match peer.reply() {
            Some(reply) if reply.get("error").is_none() => peers.push(peer),
            Some(reply) => {
                assert_eq!(reply["error"], "io.canal.Lock.TooManyConnections", "{reply}");
                refused += 1;
            }
            None => refused += 1,
        }
    }
    assert!(peers.len() > 5 && refused > 5, "{} granted, {refused} refused", peers.len());
    let held = peers.len();
    drop(peers.pop());
    wait_until("the others are there", || {
        let status = daemon.try_connect().and_then(|mut peer| peer.ask("Status", json!({})));
        status.is_some_and(|status| {
            status["parameters"]["keys"].as_array().is_some_and(|keys| keys.len() == held - 1)
        })
    });
}

#[test]
fn without_a_free_descriptor_the_daemon_sleeps_and_serves_its_clients() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    peer.call("Acquire", mutex(1, "a"));
    let limit = |files: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--pid={}", daemon.pid())).arg(format!("--nofile={files}:"));
        command.status().is_ok_and(|status| status.success())
    };
    if !limit("3") {
        return crate::isolation::skipped("`prlimit` is not installed");
    }
    let mut newcomer = daemon.connect();
    newcomer.send("Status", json!({}));
    wait_until("it sleeps", || {
        let (ticks, sleeps) = activity(&daemon);
        std::thread::sleep(Duration::from_secs(1));
        let now = activity(&daemon);
        now.0 - ticks < 10 && now.1 - sleeps < 50
    });
    peer.call("Release", json!({ "key": "a" }));
    assert!(newcomer.is_silent());
    assert!(limit("1000"));
    newcomer.returned("Status");
}

/// The CPU time of the daemon in hundredths of a second, and how often it went to sleep.
fn activity(daemon: &Daemon) -> (u64, u64) {
    let read = |name| std::fs::read_to_string(format!("/proc/{}/{name}", daemon.pid())).unwrap();
    let stat = read("stat");
    let numbers = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    let status = read("status");
    let sleeps = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    (numbers.map(|it| it.parse::<u64>().unwrap()).sum(), sleeps.trim().parse().unwrap())
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_does_not_end_the_daemon() {
    let mut daemon = Daemon::folder();
    let ended = under(&daemon, "ulimit -f 1").output().unwrap();
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.starts_with("canal: ") && said.contains("journal"), "{said}");

    daemon.adopt(under(&daemon, "ulimit -f 4000").spawn().unwrap());
    let mut peer = daemon.connect();
    let acquire = |tag: usize| {
        let mut parameters = mutex(tag as u128, "");
        let key = |n: usize| json!({ "key": format!("{tag}/{n}/{}", "x".repeat(1000)) });
        parameters["items"] = (0..50).map(key).collect();
        parameters
    };
    let replies = (1..1000).map(|tag| peer.ask("Acquire", acquire(tag)).expect("an answer"));
    let errors: Vec<_> =
        replies.map(|it| it["error"].clone()).take_while(|e| e.is_null()).collect();
    assert!((1..999).contains(&errors.len()), "{} were granted", errors.len());
    let reply = peer.ask("Acquire", acquire(1000)).unwrap();
    assert_eq!(reply["error"], "io.canal.Lock.DiskFull");
    peer.call("Release", json!({ "all": true }));
}

/// `canal daemon` in the folder of `daemon`, started by a shell that has set a limit.
fn under(daemon: &Daemon, limit: &str) -> Command {
    let canal = daemon.command();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]).arg0("sh");
    command.arg(canal.get_program()).args(canal.get_args());
    command
}

/// How many connections the daemon has open. It has two more sockets: the one on which it listens
/// and the one that keeps a second daemon out.
fn connections(daemon: &Daemon) -> usize {
    let links = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let links = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:")).count();
    sockets.checked_sub(2).expect("the daemon listens")
}

/// The random changes modify, cut out, duplicate or cut off bytes of calls.
#[test]
fn randomly_changed_calls_neither_end_the_daemon_nor_leave_holds() {
    let daemon = Daemon::start();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("SEED").map_or(now.as_nanos() as u64, |it| it.parse().unwrap()) | 1;
    eprintln!("SEED={seed}");
    let mut dice = seed;
    let mut throw = |sides: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        usize::try_from(dice % sides as u64).unwrap()
    };
    let calls = [
        call("Acquire", mutex_for(1, "a"), json!({ "more": true })),
        call("Acquire", mutex(2, "a"), json!({ "oneway": true })),
        call("Release", json!({ "key": "a", "all": false, "token": null }), json!({})),
        call("Resize", json!({ "key": "a", "slots": 18_446_744_073_709_551_615_u64 }), json!({})),
        call("Status", json!({ "key": "a", "names_max": 3 }), json!({ "more": true })),
        call("Confirm", json!({ "tag": format!("{:032x}", 1) }), json!({})),
    ];
    for round in 0..2000 {
        let mut bytes = Vec::new();
        for _ in 0..=throw(4) {
            bytes.extend(&calls[throw(calls.len())]);
        }
        for _ in 0..throw(6) {
            let (at, other) = (throw(bytes.len()), throw(bytes.len()));
            let (from, to) = (at.min(other), at.max(other));
            match throw(4) {
                0 => bytes[at] = u8::try_from(throw(256)).unwrap(),
                1 => bytes.truncate(at.max(1)),
                2 => drop(bytes.drain(from..to)),
                _ => bytes.extend_from_within(from..to),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let mut peer = daemon.connect();
        let _ = peer.raw(&bytes);
        if round % 2 == 0 {
            peer.hang_up();
            while peer.reply().is_some() {}
        }
    }
    // Wait for this reply, because the daemon sends it after it has accepted all earlier
    // connections. Before that, a later release could overtake an earlier call: releases go first
    // in a turn.
    let _ = daemon.status();
    wait_until("every connection is closed", || connections(&daemon) == 0);
    // Some changed calls were still valid, and this process owns the locks that they acquired.
    let _ = daemon.connect().ask("Release", json!({ "all": true }));
    wait_until("nothing is left", || {
        daemon.status().keys.iter().all(|key| key.held + key.waiting == 0)
    });
}
