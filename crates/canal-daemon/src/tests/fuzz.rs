//! Random clients against the daemon's turns: whatever bytes and descriptors they send, in whatever
//! pieces, the daemon keeps running and all its replies are complete.
//!
//! `CANAL_FUZZ_CASES=100000` runs a campaign; `CANAL_FUZZ_SEED=…` repeats one case.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use fastrand::Rng;
use serde_json::{Value, json};

use crate::store::node_identity::Node;
use crate::tests::{Holder, Peer, World, granted, hex, try_mutex};
use canal_core::{Token, UnixMillis};
use canal_sys::clock;

/// The number of cases in an ordinary run.
const CASES: u64 = 25;

/// The number of steps in a case.
const STEPS: usize = 120;

/// The number of simultaneous connections.
const PEERS: usize = 5;

#[test]
fn no_peer_can_end_the_daemon() {
    let number = |name| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let one = number("CANAL_FUZZ_SEED");
    let first = one.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let count = if one.is_some() { 1 } else { number("CANAL_FUZZ_CASES").unwrap_or(CASES) };
    let holders: Vec<Holder> = (0..3).map(|_| Holder::start()).collect();
    let mut seen = Seen::new();
    for seed in first..first + count {
        let said = Said(seed);
        case(Rng::with_seed(seed), &holders, &mut seen);
        drop(said);
    }
    if count >= CASES {
        for reply in ["token", "released", "keys", "waits", "interfaces", "now", "lease"] {
            assert!(seen.contains_key(reply), "{reply} was never seen, but {seen:?}");
        }
    }
}

thread_local! {
    /// The id of the daemon as a node.
    static NODE: Cell<u128> = const { Cell::new(0) };
}

/// How many times each kind of reply was seen, by the names of its fields or of its error.
type Seen = BTreeMap<String, usize>;

/// Prints the seed of a failed case.
struct Said(u64);

impl Drop for Said {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("CANAL_FUZZ_SEED={}", self.0);
        }
    }
}

fn case(mut rng: Rng, holders: &[Holder], seen: &mut Seen) {
    let mut world = World::new();
    world.server.node = Node { is_lasting: true, ..Node::default() };
    NODE.set(world.server.node_id().unwrap().0);
    let mut peers: Vec<Peer> = Vec::new();
    // Owners that may end during the case.
    let mut mortals: Vec<Holder> = vec![Holder::start()];
    for _ in 0..STEPS {
        while peers.len() < PEERS {
            peers.push(world.connect());
        }
        let at = rng.usize(..peers.len());
        match rng.u8(..20) {
            0 | 5 => drop(peers.swap_remove(at)),
            1 => drop(peers[at].stream.shutdown(Shutdown::Write)),
            2 => drop(peers[at].stream.shutdown(Shutdown::Both)),
            3 if rng.bool() => mortals.drain(..).for_each(Holder::end),
            4 if rng.u8(..5) == 0 => world.server.leases.all_over(),
            6..8 => check(&mut peers[at], seen),
            _ => {
                send(&mut rng, &mut peers[at], holders, &mortals);
            }
        }
        if rng.u8(..4) > 0 {
            world.turn();
            world.server.stopping = false;
        }
    }
    world.turn();
    peers.iter_mut().for_each(|peer| check(peer, seen));
    drop(peers);
    world.turn();
    world.server.stopping = false;
    let mut last = world.connect();
    granted(&world.call(&mut last, "Acquire", &try_mutex(u128::MAX, "untouched")));
}

/// Checks that everything received is a reply.
fn check(peer: &mut Peer, seen: &mut Seen) {
    while let Some(reply) = peer.reply() {
        let fields = reply["parameters"].as_object().unwrap_or_else(|| panic!("{reply}"));
        let error = reply["error"].as_str().and_then(|name| name.rsplit('.').next());
        let names = error.into_iter().chain(fields.keys().map(String::as_str));
        names.for_each(|name| *seen.entry(name.to_owned()).or_default() += 1);
    }
    peer.fds.clear();
}

/// Sends a few calls at once, each with or without descriptors, some of them broken.
fn send(rng: &mut Rng, peer: &mut Peer, holders: &[Holder], mortals: &[Holder]) {
    let null = std::fs::File::open("/dev/null").unwrap();
    for _ in 0..rng.usize(1..5) {
        let mut bytes = random_call(rng);
        if rng.u8(..16) == 0 {
            spoil(rng, &mut bytes);
        }
        let owners: Vec<_> = holders.iter().chain(mortals).map(Holder::pidfd).collect();
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        for _ in 0..*pick(rng, &[0, 1, 1, 2]) {
            fds.push(pick(rng, &owners).as_fd());
        }
        if rng.u8(..16) == 0 {
            fds.insert(rng.usize(..=fds.len()), null.as_fd());
        }
        if bytes.is_empty() {
            continue;
        }
        let cut = if rng.u8(..4) > 0 { bytes.len() } else { rng.usize(1..=bytes.len()) };
        if !peer.send(&bytes[..cut], &fds) || cut < bytes.len() && !peer.send(&bytes[cut..], &[]) {
            return;
        }
    }
}

fn spoil(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let (at, other) = (rng.usize(..bytes.len()), rng.usize(..bytes.len()));
    let (from, to) = (at.min(other), at.max(other));
    match rng.u8(..4) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes.truncate(at),
        2 => drop(bytes.drain(from..to)),
        _ => bytes.extend_from_within(from..to),
    }
}

fn random_call(rng: &mut Rng) -> Vec<u8> {
    let (method, parameters) = match rng.u8(..36) {
        29..32 => ("io.canal.Nodes.Collect", collect(rng)),
        32 | 33 => ("io.canal.Nodes.ConfirmAt", confirm_at(rng)),
        34 => (
            "io.canal.Nodes.Report",
            json!({ "handle": tag(rng), "need": 2, "held": 1, "waits_for": [command(rng)] }),
        ),
        35 => match rng.u8(..4) {
            0 => ("io.canal.Nodes.Restrict", json!({ "keys": [key(rng)] })),
            1 => {
                let frames = [rng.u64(..40)];
                (
                    "io.canal.Nodes.WaitsNear",
                    json!({ "runs": [tag(rng)], "frames": frames, "tag": tag(rng) }),
                )
            }
            _ => ("io.canal.Nodes.Identify", json!({})),
        },
        28 => ("io.canal.Lock.Leader", json!({ "key": key(rng) })),
        27 => ("io.canal.Lock.EndedLeases", json!({ "key": key(rng), "mine": rng.bool() })),
        24 => ("io.canal.Lock.WouldAcquire", acquire(rng)),
        25 => ("io.canal.Lock.WouldKill", would_kill(rng)),
        26 => ("io.canal.Lock.Kill", kill(rng)),
        0..9 => ("io.canal.Lock.Acquire", acquire(rng)),
        9..11 => ("io.canal.Lock.Confirm", json!({ "tag": tag(rng) })),
        11..14 => ("io.canal.Lock.Release", release(rng)),
        14 => ("io.canal.Lock.Renew", json!({ "handle": tag(rng) })),
        15 => ("io.canal.Lock.Resize", resize(rng)),
        16 => {
            let priority = pick(rng, &[json!(null), json!(1), json!(i32::MIN)]).clone();
            let session = format!("s{}", rng.u8(..40));
            ("io.canal.Lock.Prioritize", json!({ "session": session, "priority": priority }))
        }
        17 | 18 => ("io.canal.Lock.Status", status(rng)),
        19 => ("io.canal.Lock.Why", why(rng)),
        20 => (["io.canal.Lock.Graph", "io.canal.Lock.Metrics"][rng.usize(..2)], json!({})),
        21 => match rng.u8(..4) {
            3 => {
                let method = *pick(rng, &["io.canal.Lock.Abandon", "io.canal.Lock.Overrun"]);
                (method, json!({ "tag": tag(rng) }))
            }
            0 => ("io.canal.Lock.DeadlinePage", json!({})),
            1 => ("io.canal.Lock.Configuration", json!({})),
            _ => ("io.canal.Lock.Reload", json!({})),
        },
        22 if rng.u8(..8) == 0 => ("io.canal.Lock.Stop", json!({})),
        _ => described(rng),
    };
    let mut call = json!({ "method": method, "parameters": parameters });
    if rng.u8(..3) == 0 {
        call["more"] = true.into();
    }
    if rng.u8(..4) == 0 {
        call["oneway"] = true.into();
    }
    let mut bytes = call.to_string().into_bytes();
    bytes.push(0);
    bytes
}

fn described(rng: &mut Rng) -> (&'static str, Value) {
    match rng.u8(..4) {
        0 => {
            let interface = *pick(rng, &["io.canal.Lock", "org.varlink.service", "x", ""]);
            let asked = json!({ "interface": interface });
            ("org.varlink.service.GetInterfaceDescription", asked)
        }
        1 => (*pick(rng, &["", ".", "io.canal.Lock.", "io.canal.Lock.None", "é"]), json!({})),
        _ => ("org.varlink.service.GetInfo", json!({})),
    }
}

fn acquire(rng: &mut Rng) -> Value {
    let mut items: Vec<Value> = (0..*pick(rng, &[1, 1, 2, 3])).map(|_| item(rng)).collect();
    if rng.u8(..16) > 0 {
        items.sort_by_key(|item| item["key"].to_string());
        items.dedup_by_key(|item| item["key"].to_string());
    }
    let mut asked = json!({ "tag": tag(rng), "items": items, "command": command(rng) });
    let mut maybe = |name: &str, one_in: u8, value: &dyn Fn(&mut Rng) -> Value| {
        if rng.u8(..one_in) == 0 {
            asked[name] = value(rng);
        }
    };
    maybe("wait_ms", 2, &|rng| json!(*pick(rng, &[0, 0, 1, 60_000, u64::MAX])));
    maybe("max_run_ms", 8, &|rng| json!(*pick(rng, &[0, 1, 60_000, u64::MAX])));
    maybe("priority", 4, &|rng| json!(*pick(rng, &[1, -1, i32::MIN, i32::MAX])));
    maybe("supersede", 4, &|rng| json!(pick(rng, &["waiting", "running", "all"])));
    maybe("group", 6, &|rng| json!(pick(rng, &["g", "h", "", "\u{1}", &"ä".repeat(300)])));
    maybe("note", 4, &|rng| {
        json!(pick(rng, &["", "n", " a\n\u{202e}b", "\u{1}", &"ä".repeat(300)]))
    });
    maybe("owner_fd", 2, &|rng| json!(*pick(rng, &[0, 0, 0, 0, 0, 1, 2, u32::MAX])));
    maybe("with_children", 3, &|_| json!(true));
    maybe("jobserver", 6, &|_| json!(true));
    maybe("session", 8, &|_| json!("s1"));
    maybe("frame", 4, &|rng| json!(*pick(rng, &["f1", "f2", "", "f99999999999999999999"])));
    maybe("lease", 5, &|rng| {
        let ttl_ms = *pick(rng, &[1000, 1000, 600_000, 600_000, (1 << 53) - 1, u64::MAX, 0]);
        json!({ "handle": tag(rng), "ttl_ms": ttl_ms })
    });
    maybe("wrapper", 4, &|rng| json!(*pick(rng, &["exec", "supervised"])));
    maybe("on_lost", 8, &|rng| json!(*pick(rng, &["kill", "term", "warn"])));
    if asked["lease"].is_object() && rng.u8(..8) > 0 {
        asked["owner_fd"] = Value::Null;
        asked["with_children"] = false.into();
    }
    asked
}

fn item(rng: &mut Rng) -> Value {
    let key = key(rng);
    let odd = [0, 65_536, (1 << 53) - 1, u64::MAX];
    let number = |rng: &mut Rng| {
        if rng.u8(..10) == 0 { *pick(rng, &odd) } else { rng.u64(1..4) }
    };
    match rng.u8(..8) {
        0 => json!({ "key": key, "mode": "read" }),
        1 => json!({ "key": key, "mode": "write" }),
        2 => json!({ "key": key }),
        3 => json!({ "key": key, "per": number(rng), "buckets": number(rng) }),
        4 => json!({ "key": key, "slots": 3, "count": number(rng) }),
        5 => json!({ "key": key, "per": 2, "buckets": 2, "count": number(rng) }),
        _ => json!({ "key": key, "slots": rng.u8(1..3) }),
    }
}

fn release(rng: &mut Rng) -> Value {
    match rng.u8(..6) {
        0 => json!({ "all": true }),
        1 => json!({ "handle": tag(rng) }),
        2 => json!({ "token": *pick(rng, &[0, 1, 2, 3, u64::MAX]) }),
        3 => json!({ "key": key(rng), "owner_fd": *pick(rng, &[0, 1, u32::MAX]) }),
        4 => json!({ "all": true, "owner_fd": 0 }),
        _ => json!({ "key": key(rng) }),
    }
}

fn would_kill(rng: &mut Rng) -> Value {
    match rng.u8(..7) {
        5 => json!({ "superseded_by": tag(rng) }),
        0 => json!({ "pid": *pick(rng, &[0, 1, std::process::id(), u32::MAX]) }),
        1 => json!({ "key": key(rng), "waiters": true }),
        2 => json!({ "key": key(rng) }),
        3 => json!({ "token": *pick(rng, &[0, 1, 2, 3, 5, u64::MAX]) }),
        4 => json!({ "request": *pick(rng, &[0, 1, 2, 3, 5, u64::MAX]) }),
        _ => json!({}),
    }
}

/// Signal 18 is SIGCONT, which ends no process: the owners are real.
fn kill(rng: &mut Rng) -> Value {
    let signal = *pick(rng, &[18, 18, 0, -1, 64, i32::MAX]);
    let number = *pick(rng, &[0, 1, 2, 3, 5, u64::MAX]);
    match rng.u8(..3) {
        0 => json!({ "request": number, "signal": signal }),
        1 => json!({ "token": number, "signal": signal }),
        _ => json!({ "signal": signal }),
    }
}

fn collect(rng: &mut Rng) -> Value {
    let mut asked = acquire(rng);
    let mut nodes = vec![hex(NODE.get())];
    nodes.extend((0..*pick(rng, &[0, 1, 2])).map(|_| hex(rng.u128(..4))));
    if rng.u8(..16) > 0 {
        nodes.sort();
        nodes.dedup();
    }
    asked["nodes"] = nodes.into();
    asked["run"] = tag(rng).into();
    // The same as its tag, so that it can be confirmed.
    asked["handle"] = asked["tag"].clone();
    asked["ttl_ms"] = (*pick(rng, &[0, 1000, 60_000, u64::MAX])).into();
    asked["require"] = (*pick(rng, &["all", "majority", "any", "none"])).into();
    if rng.u8(..3) == 0 {
        asked["spare"] = rng.bool().into();
    }
    if rng.u8(..4) == 0 {
        asked["under"] = tag(rng).into();
    }
    asked
}

fn confirm_at(rng: &mut Rng) -> Value {
    let tag = tag(rng);
    let near = Token::by_clock(UnixMillis(clock::unix_ms())).0 + (1 << 30);
    let token = *pick(rng, &[near, near, near + 1, near + 7, 0, 1 << 52, u64::MAX]);
    json!({ "tag": tag, "handle": tag, "token": token, "note": command(rng) })
}

fn resize(rng: &mut Rng) -> Value {
    let number = *pick(rng, &[0, 1, 2, 5, (1 << 53) - 1, u64::MAX]);
    match rng.u8(..4) {
        0 => json!({ "key": key(rng), "forget": true }),
        1 => json!({ "key": key(rng), "per": number, "buckets": 1 }),
        2 => json!({ "key": key(rng), "per": 2, "buckets": number }),
        _ => json!({ "key": key(rng), "slots": number }),
    }
}

fn status(rng: &mut Rng) -> Value {
    match rng.u8(..6) {
        4 => json!({ "mine": rng.bool(), "uid": *pick(rng, &[0, 1, u32::MAX]), "full": true }),
        5 => json!({ "key": key(rng), "waiting": true, "full": rng.bool(), "mine": rng.bool() }),
        0 => json!({ "key": key(rng) }),
        1 => json!({ "key": key(rng), "names_max": *pick(rng, &[0, 1, u64::MAX]) }),
        _ => json!({}),
    }
}

fn why(rng: &mut Rng) -> Value {
    match rng.u8(..3) {
        0 => json!({ "pid": *pick(rng, &[0, 1, std::process::id(), u32::MAX]) }),
        1 => json!({ "session": *pick(rng, &["s1", "s2", "s", "x", "s18446744073709551616"]) }),
        _ => json!({}),
    }
}

fn tag(rng: &mut Rng) -> String {
    match rng.u8(..12) {
        0 if rng.bool() => "no tag".to_owned(),
        1 => hex(u128::MAX - 1),
        _ => hex(rng.u128(1..30)),
    }
}

fn key(rng: &mut Rng) -> String {
    match rng.u8(..60) {
        0 => "/".to_owned(),
        1 => String::new(),
        2 => "k".repeat(rng.usize(..2000)),
        3 => "é/\u{1f512}".to_owned(),
        _ => (*pick(rng, &["a", "a/b", "a/b/c", "b", "c"])).to_owned(),
    }
}

fn command(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => "ä".repeat(rng.usize(..1500)),
        1 => "\u{0}\n\"\\\u{7f}".repeat(rng.usize(..300)),
        _ => "make".to_owned(),
    }
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}
