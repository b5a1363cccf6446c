//! The daemon answers every call. One log entry may queue a request and grant it at once, or refuse
//! it because it completes a deadlock.

use std::time::SystemTime;

use canal::sys::pidfd::Pidfd;
use canal::sys::process::{RunState, run_state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, Peer, call};

/// How many processes each group has; the first one owns nothing.
const OWNERS: usize = 5;

/// How many independent groups ask at the same time, so that the machine does not wait for one
/// reply after another.
const GROUPS: usize = 10;

/// A request of one of the processes.
#[derive(Clone, Debug)]
struct Wish {
    owner: usize,
    items: Value,
    priority: i32,
    wait_ms: Option<u64>,
}

/// A request that has been sent.
struct Asked {
    tag: String,
    peer: Peer,
    owner: usize,
    /// `Some(Some(token))` if granted, `Some(None)` if refused, `None` while it waits.
    answer: Option<Option<u64>>,
}

fn read(key: &str) -> Value {
    json!({ "key": key, "mode": "read" })
}

fn write(key: &str) -> Value {
    json!({ "key": key, "mode": "write" })
}

fn slot(key: &str) -> Value {
    json!({ "key": key })
}

fn wish(owner: usize, priority: i32, items: &[Value]) -> Wish {
    Wish { owner, items: items.into(), priority, wait_ms: None }
}

/// Requests of which the last makes one log entry queue it, find that the waiter ahead waits for
/// its own session, and grant it.
fn granted_as_soon_as_queued() -> [Wish; 6] {
    [
        wish(1, 0, &[read("a")]),
        wish(4, 0, &[slot("s")]),
        wish(3, 0, &[slot("anything")]),
        wish(4, 0, &[write("a")]),
        wish(2, 1, &[slot("s"), write("a")]),
        Wish { wait_ms: Some(60_000), ..wish(3, 1, &[read("a")]) },
    ]
}

/// A daemon and the processes that own its locks.
struct Scene {
    daemon: Daemon,
    owners: Vec<(Idler, Pidfd)>,
    control: Peer,
    /// Connections without an open call.
    spare: Vec<Peer>,
    tags: u128,
}

impl Scene {
    fn new() -> Self {
        Self::of(1)
    }

    /// A scene with this number of groups of owners.
    fn of(groups: usize) -> Self {
        let daemon = Daemon::start();
        let owners = (0..groups * OWNERS).map(|_| Idler::start());
        let owners = owners.map(|idler| (Idler::pidfd(&idler), idler)).map(|(fd, it)| (it, fd));
        let (owners, control) = (owners.collect(), daemon.connect());
        Self { daemon, owners, control, spare: Vec::new(), tags: 0 }
    }

    fn send(&self, peer: &mut Peer, tag: &str, wish: &Wish) {
        let mut parameters = json!({
            "tag": tag,
            "items": wish.items,
            "command": format!("{wish:?}"),
            "priority": wish.priority,
            "owner_fd": 0,
        });
        if let Some(wait_ms) = wish.wait_ms {
            parameters["wait_ms"] = wait_ms.into();
        }
        peer.send_more_with("Acquire", parameters, &self.owners[wish.owner].1);
    }

    /// Sends a request on its own connection.
    #[track_caller]
    fn ask(&mut self, wish: &Wish) -> Asked {
        self.tags += 1;
        let tag = format!("{:032x}", self.tags);
        let mut peer = self.spare.pop().unwrap_or_else(|| self.daemon.connect());
        self.send(&mut peer, &tag, wish);
        Asked { tag, peer, owner: wish.owner, answer: None }
    }

    /// Sends the requests in this order. Each client reads at once either what its request waits
    /// for or its result.
    #[track_caller]
    fn ask_all(&mut self, wishes: &[Wish]) -> Vec<Asked> {
        let mut asked: Vec<Asked> = wishes.iter().map(|wish| self.ask(wish)).collect();
        asked.iter_mut().for_each(Asked::read_reply);
        asked
    }

    /// Whether any key has a holder or a waiter.
    fn is_used(&mut self) -> bool {
        let status = self.control.call("Status", json!({}));
        status["keys"].as_array().is_some_and(|keys| !keys.is_empty())
    }

    /// Releases every grant until no request waits. By then every call must have its answer.
    #[track_caller]
    fn let_all_go(&mut self, mut asked: Vec<Asked>) {
        while !asked.is_empty() {
            wait_until("a waiter is answered, because no lock is held", || {
                asked.iter_mut().for_each(Asked::read_pending_replies);
                asked.iter().any(|it| it.answer.is_some())
            });
            let (answered, left) = asked.into_iter().partition(|it| it.answer.is_some());
            self.give_back(answered);
            asked = left;
        }
        assert!(!self.is_used());
    }

    fn give_back(&mut self, answered: Vec<Asked>) {
        let mut calls = Vec::new();
        for asked in &answered {
            let Some(Some(token)) = asked.answer else { continue };
            calls.extend(call("Confirm", json!({ "tag": asked.tag }), json!({})));
            calls.extend(call("Release", json!({ "token": token }), json!({})));
        }
        self.control.raw(&calls).unwrap();
        for asked in answered {
            if let Some(Some(_)) = asked.answer {
                self.control.returned("Confirm");
                self.control.returned("Release");
            }
            self.spare.push(asked.peer);
        }
    }
}

impl Asked {
    /// Reads the next reply, which must exist.
    #[track_caller]
    fn read_reply(&mut self) {
        let reply = self.peer.reply().expect("a reply");
        if reply.get("continues").is_some() {
            return;
        }
        self.answer = Some(match reply.get("error") {
            Some(error) => {
                let known = error == "io.canal.Lock.Refused";
                assert!(known, "owner {}: {reply}", self.owner);
                None
            }
            None => Some(reply["parameters"]["token"].as_u64().expect("a token")),
        });
    }

    fn read_pending_replies(&mut self) {
        while self.answer.is_none() && !self.peer.is_silent() {
            self.read_reply();
        }
    }
}

/// A small random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at + 1);
            list.swap(at, other);
        }
    }

    /// Requests of one group, mostly those that caused the original fault.
    fn wishes_of(&mut self, group: usize) -> Vec<Wish> {
        let mut wishes = granted_as_soon_as_queued().to_vec();
        if self.below(10) == 0 {
            wishes.iter_mut().for_each(|wish| *wish = self.wish());
        }
        for wish in &mut wishes {
            wish.priority = [0, 0, 1, 2][self.below(4)];
            wish.owner += group * OWNERS;
            for item in wish.items.as_array_mut().unwrap() {
                item["key"] = format!("g{group}/{}", item["key"].as_str().unwrap()).into();
            }
        }
        wishes
    }

    /// Any request that the owners of the scene may make for its keys.
    fn wish(&mut self) -> Wish {
        let keys = [["a", "s"], ["s", "a"], ["a", "anything"], ["a/b", "s"], ["anything", "a/b"]];
        let keys = keys[self.below(keys.len())];
        let count = 1 + self.below(4) / 3;
        let items: Vec<Value> = keys[..count]
            .iter()
            .map(|key| match self.below(3) {
                0 => read(key),
                1 => write(key),
                _ => slot(key),
            })
            .collect();
        let wait_ms = [None, None, None, Some(0)][self.below(4)];
        Wish { wait_ms, ..wish(1 + self.below(4), 0, &items) }
    }
}

#[test]
fn a_request_that_one_entry_queues_and_grants_is_answered() {
    let mut scene = Scene::new();
    let asked = scene.ask_all(&granted_as_soon_as_queued());
    let held: Vec<bool> = asked.iter().map(|it| matches!(it.answer, Some(Some(_)))).collect();
    assert_eq!(held, [true, true, true, false, false, true]);
    scene.let_all_go(asked);
}

#[test]
fn the_lock_stays_with_the_last_connection_that_asked_for_it() {
    let mut scene = Scene::new();
    let wishes = granted_as_soon_as_queued();
    let mut asked = scene.ask_all(&wishes);
    let first = asked.pop().unwrap();
    let mut again = Asked { peer: scene.daemon.connect(), answer: None, ..first };
    scene.send(&mut again.peer, &again.tag, &wishes[5]);
    again.read_reply();
    let token = again.answer.flatten().expect("it is held");
    drop(first.peer);
    // The daemon notices the end of the first connection before it reads this call.
    scene.control.call("Confirm", json!({ "tag": again.tag }));
    let status = scene.control.call("Status", json!({ "key": "a" }));
    let holders = status["keys"][0]["holders"].as_array().unwrap().clone();
    assert!(holders.iter().any(|holder| holder["token"] == token), "{status}");
    asked.push(again);
    scene.let_all_go(asked);
}

#[test]
fn a_grant_is_sent_although_part_of_it_was_released_before() {
    let scene = Scene::new();
    let (owner, pidfd) = &scene.owners[1];
    let holder = scene.daemon.hold(100, "a");
    let held = scene.daemon.key("a").unwrap().holders[0].token;
    let mut waiter = scene.daemon.connect();
    scene.send(&mut waiter, &format!("{:032x}", 1), &wish(1, 0, &[slot("a"), slot("b")]));
    waiter.progress();
    let stop = |signal| kill(Pid::from_raw(owner.pid().cast_signed()), signal).unwrap();
    stop(Signal::SIGSTOP);
    wait_until("it is stopped", || run_state(owner.pid()) == RunState::Stopped);
    // The first release causes a grant; the second one releases part of that grant in the same
    // turn.
    let mut bytes = call("Release", json!({ "token": held }), json!({}));
    bytes.extend(call("Release", json!({ "key": "a", "owner_fd": 0 }), json!({})));
    let mut control = scene.daemon.connect();
    control.send_bytes_with(&bytes, pidfd).unwrap();
    control.returned("Release");
    control.returned("Release");
    stop(Signal::SIGCONT);
    let grant = waiter.returned("Acquire");
    assert_eq!(grant["keys"].as_array().unwrap().len(), 1, "{grant}");
    assert_eq!(grant["keys"][0]["key"], "b");
    drop(holder);
}

#[test]
fn every_call_is_answered_in_every_order_of_calls() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = std::env::var("SEED").map_or(now.as_nanos() as u64, |it| it.parse().unwrap()) | 1;
    eprintln!("SEED={seed}");
    let mut random = Random(seed);
    let mut scene = Scene::of(GROUPS);
    // The daemon's simulator tries many more orders.
    for _ in 0..20 {
        let groups = 0..GROUPS;
        let mut wishes: Vec<Wish> = groups.flat_map(|group| random.wishes_of(group)).collect();
        random.shuffle(&mut wishes);
        let asked = scene.ask_all(&wishes);
        scene.let_all_go(asked);
    }
}
