//! Replays SharpLock through the command line: each acquire is a separate lease, and a second of
//! the original takes a tenth of a second here. A lock of the original is stale
//! `lockTime * (multiplier + 1)` after its last refresh; that is the TTL here. Two deviations, as
//! `docs/differences.md` has them: releasing a lock that the client does not hold is an error
//! (there `true`), and a lost lease stays lost (there a late refresh revives it).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::{Value, json};

use crate::lease::Lease;
use crate::world::World;
use crate::world::process::{Ended, Proc};

/// Steps that canal deliberately answers differently: case, step.
const DEVIATIONS: &[(&str, usize)] = &[
    // A client without a hold releases, and gets an error.
    ("release without acquire", 0),
    ("stolen lock: refresh", 4),
    // The lease was lost after 15 seconds and stays lost, so the lock is free.
    ("late refresh revives an expired but not stolen lock", 1),
    ("late refresh revives an expired but not stolen lock", 2),
];

/// The original's time in tenths.
fn scaled(seconds: f64, tenths: u32) -> Duration {
    Duration::from_secs_f64(seconds / 10.0) * tenths
}

/// The locked document and its clients.
struct Replay {
    world: World,
    tenths: u32,
    ttl: Duration,
    /// The last lease of each client, and when the client last asked for it or for a refresh. The
    /// TTL does not begin before that.
    leases: BTreeMap<String, (Lease, Instant)>,
    /// Clients that know that their lease is lost, or that released it.
    without: BTreeSet<String>,
}

impl Replay {
    fn new(case: &Value, tenths: u32) -> Self {
        let lock_time = case["lock_time_s"].as_f64().unwrap_or(30.0);
        let multiplier = case["multiplier"].as_f64().unwrap_or(10.0);
        let ttl = scaled(lock_time * (multiplier + 1.0), tenths);
        let (leases, without) = Default::default();
        Self { world: World::with_daemon(), tenths, ttl, leases, without }
    }

    fn ask(&self, key: &str, wait: Duration) -> Proc {
        let ttl = format!("{}ms", self.ttl.as_millis());
        let wait = format!("{}ms", wait.as_millis());
        Lease::ask(&self.world, &ttl, &["-k", key, "-w", &wait])
    }

    /// The result of an acquire sent at `asked`.
    fn got(&mut self, client: &str, asked: Instant, ended: &Ended) -> bool {
        match ended.code {
            Some(0) => {
                let lease = (Lease::of(ended), asked);
                self.leases.insert(client.to_owned(), lease);
                self.without.remove(client);
                true
            }
            Some(75) => false,
            // Its TTL passed before its client had confirmed it.
            _ if ended.stderr.contains("took the lock back before the confirmation") => false,
            _ => panic!("{ended:?}"),
        }
    }

    /// Returns `object`, or null if the wait ended without a grant.
    fn acquire(&mut self, client: &str, op: &str, named: &str) -> Value {
        let key = match op {
            "acquire list element 0" => "document/list/0",
            "acquire list element 1" => "document/list/1",
            _ => "document",
        };
        // The original's default is the time after which any lock is stale. It is longer here,
        // because the lock that it waits for becomes stale only when the test releases it.
        let default = named.contains("default timeout");
        let stated = op.split_once("timeout ").map(|(_, rest)| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            scaled(digits.parse().unwrap(), self.tenths)
        });
        let wait = stated.unwrap_or(self.ttl + Duration::from_secs(10));
        let holder = self.leases.values().map(|(_, since)| *since).max();
        let asked = Instant::now();
        let ended = self.ask(key, wait).end();
        if !self.got(client, asked, &ended) {
            return Value::Null;
        }
        if let Some(since) = holder.filter(|_| default) {
            assert!(since.elapsed() >= self.ttl, "taken over before it was stale");
        }
        json!("object")
    }

    /// The exit code of a command about a client's lease; 125 without a lease.
    fn about(&self, client: &str, verb: &str) -> i32 {
        let handle = self.leases.get(client).map(|(lease, _)| lease.handle.clone());
        let ended = self.world.canal([verb]).env("CANAL_HANDLE", handle.unwrap_or_default()).end();
        let code = ended.code.unwrap();
        assert!(code == 0 || ended.stderr.starts_with("canal: "), "{ended:?}");
        code
    }

    fn refresh(&mut self, client: &str) -> bool {
        let asked = Instant::now();
        let refreshed = self.about(client, "renew") == 0;
        if let Some((_, since)) = self.leases.get_mut(client).filter(|_| refreshed) {
            *since = asked;
        }
        if !refreshed {
            self.without.insert(client.to_owned());
        }
        refreshed
    }

    fn release(&mut self, client: &str) -> bool {
        let released = self.about(client, "release") == 0;
        self.without.insert(client.to_owned());
        released
    }

    /// Whether a client has a lease and does not know that it is lost.
    fn has(&self, client: &str) -> bool {
        self.leases.contains_key(client) && !self.without.contains(client)
    }

    fn step(&mut self, step: &Value) -> Value {
        let (named, op) = (step["client"].as_str().unwrap(), step["op"].as_str().unwrap());
        let client = named.split(' ').next().unwrap();
        match op {
            _ if op.starts_with("acquire") => self.acquire(client, op, named),
            "refresh" | "refresh(throw)" => self.refresh(client).into(),
            "release" | "release(throw)" => self.release(client).into(),
            "lock_acquired" => self.has(client).into(),
            "get_object" | "get_object(throw)" => {
                let holds = self.leases.get(client).is_some_and(|(it, _)| it.holds(&self.world));
                if holds { json!("object") } else { Value::Null }
            }
            "to_string" => self.has(client).into(),
            "dispose" => {
                self.release(client);
                json!("disposed")
            }
            other => panic!("what is {other:?}?"),
        }
    }
}

/// The original's answer, as [`Replay::step`] would return it.
fn recorded(step: &Value) -> Value {
    match &step["result"] {
        Value::String(text) => match text.as_str() {
            "null" | "null; lock_acquired stays true" => Value::Null,
            "disposed" => json!("disposed"),
            "No lock acquired." => false.into(),
            text if text.starts_with("LockId: ") => true.into(),
            text if text.contains("Exception: No lock is acquired.") => match &step["op"] {
                op if op == "get_object(throw)" => Value::Null,
                _ => false.into(),
            },
            text if text.contains("Exception: Failed to acquire") => Value::Null,
            text if text.contains("Exception: Failed to refresh") => false.into(),
            text if text.starts_with("null after ") => Value::Null,
            text if text.starts_with("object") || text.contains("object at the first poll") => {
                json!("object")
            }
            other => panic!("what is {other:?}?"),
        },
        other => other.clone(),
    }
}

/// A step that begins later than this after its time is late: its result may be correct and still
/// differ.
const LATE: Duration = Duration::from_millis(50);

/// How often a case is replayed, each time more slowly, if the machine was too slow for its times.
const PLAYED_MAX: usize = 16;

fn replay(case: &Value) {
    let tries = (0..PLAYED_MAX).map(|before| play(case, 1 << (before / 4)));
    let mut wrong = tries.take_while(Result::is_err).map(Result::unwrap_err).collect::<Vec<_>>();
    if wrong.len() == PLAYED_MAX {
        panic!("late each time, and then: {}", wrong.pop().unwrap());
    }
}

/// Plays a case once, in `tenths` of the original's time. The result counts unless a step was late.
fn play(case: &Value, tenths: u32) -> Result<(), String> {
    let name = case["name"].as_str().unwrap();
    let mut replay = Replay::new(case, tenths);
    let begun = Instant::now();
    let mut late = false;
    for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
        // Never start a step early. If something must be over by then, the step waits for it.
        let time = scaled(step["t_s"].as_f64().unwrap(), tenths);
        while begun.elapsed() < time {
            thread::sleep(Duration::from_millis(5));
        }
        late |= begun.elapsed() > time + LATE * tenths;
        let (found, expected) = (replay.step(step), recorded(step));
        let deviates = DEVIATIONS.contains(&(name, at));
        if (found == expected) == deviates {
            let kind = if deviates { "no deviation any more" } else { "another answer" };
            let wrong = format!("{kind}: {found}, not {expected}: {name}, step {at}: {step}");
            // A lease may have ended during a step that took this long.
            late |= begun.elapsed() > time + replay.ttl / 2;
            assert!(late, "{wrong}");
            return Err(wrong);
        }
    }
    Ok(())
}

/// A hundred clients at once: one of them has the lock at any time.
fn race(case: &Value) {
    let mut replay = Replay::new(case, 1);
    let count = usize::try_from(case["clients"].as_u64().unwrap()).unwrap();
    let askers: Vec<Proc> = (0..count).map(|_| replay.ask("document", scaled(1.0, 1))).collect();
    let asked = Instant::now();
    for (n, asker) in askers.into_iter().enumerate() {
        let ended = asker.end();
        replay.got(&n.to_string(), asked, &ended);
    }
    let clients: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    let winners = |replay: &Replay| clients.iter().filter(|client| replay.has(client)).count();
    assert_eq!(winners(&replay), 1);
    let true_for = |replay: &mut Replay, what: fn(&mut Replay, &str) -> bool| {
        clients.iter().filter(|client| what(replay, client)).count()
    };
    assert_eq!(true_for(&mut replay, Replay::refresh), 1);
    // The original answers true a hundred times, because a release without a lock is no error
    // there.
    assert_eq!(true_for(&mut replay, Replay::release), 1);
    assert_eq!(winners(&replay), 0);
    replay.world.until_idle();
}

#[test]
fn every_case_of_sharplock_replays() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sharplock.json");
    let data: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let cases = data["vectors"].as_array().unwrap();
    // The original has cases for each kind of document; here these are the same.
    let mut seen = BTreeSet::new();
    let different = cases.iter().filter(|case| seen.insert(case["steps"].to_string()));
    let (races, replayed): (Vec<&Value>, Vec<&Value>) =
        different.partition(|case| case["clients"].is_number());
    assert_eq!((races.len(), replayed.len(), cases.len()), (1, 14, 27));
    // Each case waits for nearly all of its time, so they run in parallel.
    thread::scope(|scope| {
        for case in &replayed {
            scope.spawn(|| replay(case));
        }
    });
    races.into_iter().for_each(race);
    for (name, at) in DEVIATIONS {
        let case = cases.iter().find(|case| case["name"] == *name);
        assert!(case.is_some_and(|case| case["steps"][*at].is_object()), "{name}, step {at}");
    }
}

/// Checks everything that `flaws` lists about the original, against the correct answer.
#[test]
fn every_flaw_of_sharplock_is_right_here() {
    let world = World::with_daemon();
    let take = |key: &str, wait: &str| {
        let ended = Lease::ask(&world, "10m", &["-k", key, "-w", wait]).end();
        (ended.code == Some(0)).then(|| Lease::of(&ended))
    };
    // A wait of 0 tries once.
    let first = take("a", "0").unwrap();
    assert!(take("a", "0").is_none());
    // The holder's TTL decides when the lock is stale, not the TTL of a waiter.
    let short = Lease::ask(&world, "1s", &["-k", "a", "-w", "1.5"]).end().code(75);
    assert_eq!(short.json()["refused"], "timeout");
    // A client whose second request is refused can still release its hold.
    first.release(&world).code(0);
    // Two refreshes at the same time both count.
    let lease = take("a", "0").unwrap();
    let renewals: Vec<Proc> =
        (0..8).map(|_| world.canal(["renew"]).env("CANAL_HANDLE", &lease.handle).spawn()).collect();
    renewals.into_iter().for_each(|one| drop(one.end().code(0)));
    // If another client holds the lock by now, the release is an error and changes nothing.
    world.canal(["release", "--force", "--token", &lease.token.to_string()]).end().code(0);
    let next = take("a", "0").unwrap();
    lease.release(&world).code(122);
    lease.renew(&world).code(122);
    next.renew(&world).code(0);
}
