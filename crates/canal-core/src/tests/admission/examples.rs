//! Replays recorded histories of canal_lock and sleeplocks step by step.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::reentry::{a_re_entrant_hold_is_counted, a_slots_lock_is_re_entrant_also_when_full};
use crate::tests::world::{Wish, World, by, granted, grants, key};
use crate::*;

const CANAL_LOCK: &str = include_str!("../../../../../tests/data/canal_lock.json");
const SLEEPLOCKS: &str = include_str!("../../../../../tests/data/sleeplocks.json");

/// The processes that stand for the recorded clients, in the order of their first appearance.
#[derive(Default)]
struct Clients {
    pids: BTreeMap<String, u32>,
}

impl Clients {
    fn pid(&mut self, name: &str) -> u32 {
        let next = u32::try_from(self.pids.len()).unwrap() + 1;
        *self.pids.entry(name.to_owned()).or_insert(next)
    }
}

fn vectors(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["vectors"].as_array().unwrap().clone()
}

fn text<'v>(step: &'v Value, field: &str) -> &'v str {
    step[field].as_str().unwrap_or_else(|| panic!("no {field} in {step}"))
}

fn number(step: &Value, field: &str) -> u64 {
    step[field].as_u64().unwrap_or_else(|| panic!("no {field} in {step}"))
}

/// The flaws of both originals, each with a test of the right behaviour.
const FLAWS: [(&str, fn()); 19] = [
    ("creator_dies", sleeplocks_a_dead_holder_frees_only_its_own_slot),
    (
        "dead_waiter_gets_the_slot",
        sleeplocks_dead_holders_wake_the_queue_and_dead_waiters_are_passed,
    ),
    ("execute_nested_full", a_slots_lock_is_re_entrant_also_when_full),
    ("execute_nested_room", a_re_entrant_hold_is_counted),
    ("holder_dies_other_holder_remains", sleeplocks_a_dead_holder_frees_only_its_own_slot),
    (
        "holder_dies_with_waiters",
        sleeplocks_dead_holders_wake_the_queue_and_dead_waiters_are_passed,
    ),
    ("p_buckets_zero", canal_lock_odd_views_admit_none),
    ("p_death_with_larger_start", canal_lock_differing_per_never_corrupts_the_count),
    ("p_larger_maxper_after_full", canal_lock_differing_per_never_corrupts_the_count),
    (
        "p_manager_killed_by_death_with_smaller_start",
        canal_lock_differing_per_never_corrupts_the_count,
    ),
    ("p_maxper_zero", canal_lock_odd_views_admit_none),
    ("p_release_by_non_holder", canal_lock_foreign_releases_change_nothing),
    ("p_release_larger_maxper", canal_lock_differing_per_never_corrupts_the_count),
    ("p_release_smaller_maxper", canal_lock_differing_per_never_corrupts_the_count),
    ("p_release_zero_held", canal_lock_foreign_releases_change_nothing),
    ("p_smaller_maxper_clamps", canal_lock_differing_per_never_corrupts_the_count),
    ("reacquire_all_slots_used", a_slots_lock_is_re_entrant_also_when_full),
    ("reacquire_when_full", a_slots_lock_is_re_entrant_also_when_full),
    ("reacquire_when_room", a_re_entrant_hold_is_counted),
];

/// Flaws that are not about the table, and the tests of the right behaviour.
const FLAWS_OUTSIDE: [(&str, &str); 6] = [
    ("p_buckets_negative", "tests/whole/other_programs/flaws.rs"),
    ("p_manager_crash_forgets", "tests/whole/crash/kill.rs"),
    ("p_maxper_negative", "tests/whole/other_programs/flaws.rs"),
    ("slots_float", "tests/whole/other_programs/flaws.rs"),
    ("slots_negative", "tests/whole/other_programs/flaws.rs"),
    ("unknown_request_kills", "tests/daemon_wire/calls/service.rs"),
];

#[test]
fn each_flaw_has_its_test() {
    let files = [CANAL_LOCK, SLEEPLOCKS].map(|it| serde_json::from_str::<Value>(it).unwrap());
    let all = files.iter().flat_map(|file| file["flaws"].as_array().unwrap());
    let found: BTreeSet<&str> = all.map(|flaw| text(flaw, "name")).collect();
    let listed = FLAWS.iter().map(|it| it.0).chain(FLAWS_OUTSIDE.iter().map(|it| it.0));
    assert_eq!(found, listed.collect());
}

#[test]
fn canal_lock_replays() {
    for vector in vectors(CANAL_LOCK) {
        let name = text(&vector, "name");
        let (mut world, mut clients) = (World::new(), Clients::default());
        for step in vector["steps"].as_array().unwrap() {
            // A stopped manager corresponds to a missing daemon, which the command line reports.
            if text(step, "op") == "stop" {
                break;
            }
            let times = step["times"].as_u64();
            let results: Vec<Value> = (0..times.unwrap_or(1))
                .map(|_| canal_step(&mut world, &mut clients, step))
                .collect();
            let result = if times.is_some() { Value::Array(results) } else { results[0].clone() };
            assert_eq!(result, expected(name, step), "{name}: {step}");
        }
    }
}

/// The answer that canal gives: the recorded result, apart from the deliberate differences.
fn expected(name: &str, step: &Value) -> Value {
    // Releasing a lock that the client does not hold is an error and changes nothing.
    if name == "p_release_unknown_key" && text(step, "op") == "release" {
        return "not held".into();
    }
    step["result"].clone()
}

fn canal_step(world: &mut World, clients: &mut Clients, step: &Value) -> Value {
    match text(step, "op") {
        "start" => "ok".into(),
        op @ ("acquire" | "acquire_retry") => {
            let pid = clients.pid(text(step, "client"));
            let (per, buckets) = (number(step, "maxper"), number(step, "buckets"));
            let wish = by(pid).canal(text(step, "key"), per, buckets).now();
            let (request, outcomes) = world.ask(wish);
            match granted(&outcomes, request) {
                Some(granted) => serde_json::json!({"acquired": granted.items[0].acquired}),
                None if op == "acquire" => "full".into(),
                None => "timeout".into(),
            }
        }
        "release" => {
            let pid = clients.pid(text(step, "client"));
            let outcomes = world.release(pid, text(step, "key"));
            let released = matches!(outcomes[0], Outcome::Released { .. });
            if released { "ok".into() } else { "not held".into() }
        }
        "kill" => {
            let pid = clients.pid(text(step, "client"));
            world.die(pid);
            "ok".into()
        }
        op => panic!("unknown step {op}"),
    }
}

/// One recorded lock of sleeplocks.
struct Sleeplock {
    world: World,
    clients: Clients,
    slots: u64,
    /// Requests that wait, by client.
    asked: BTreeMap<RequestId, String>,
}

impl Sleeplock {
    fn wish(&mut self, client: &str) -> Wish {
        by(self.clients.pid(client)).slots("lock", self.slots)
    }

    fn names(&self, pids: impl Iterator<Item = u32>) -> Vec<Value> {
        let name = |pid: u32| self.clients.pids.iter().find(|(_, p)| **p == pid).unwrap().0.clone();
        pids.map(|pid| name(pid).into()).collect()
    }

    fn holders(&self) -> Vec<Value> {
        let mut names = self.names(self.world.table.holds().map(|hold| pid(&hold.asked.owner)));
        names.sort_by_key(|name| self.clients.pids[name.as_str().unwrap()]);
        names.dedup();
        names
    }

    fn waiting(&self) -> Vec<Value> {
        let served = self.world.table.served(&key("lock"));
        let waiters = served.iter().filter_map(|id| self.world.table.waiter(*id));
        self.names(waiters.map(|waiter| pid(&waiter.request.owner)))
    }

    fn ask(&mut self, client: &str, now: bool) -> Value {
        let wish = self.wish(client);
        let wish = if now { wish.now() } else { wish };
        let (request, outcomes) = self.world.ask(wish);
        if granted(&outcomes, request).is_some() {
            return "ok".into();
        }
        if self.world.table.waiter(request).is_none() {
            return "unavailable".into();
        }
        self.asked.insert(request, client.to_owned());
        "blocked".into()
    }

    fn step(&mut self, step: &Value) -> Value {
        let client = step["client"].as_str().unwrap_or_default().to_owned();
        match text(step, "op") {
            "new" => {
                self.slots = step["slots"].as_f64().unwrap() as u64;
                "ok".into()
            }
            "acquire" => self.ask(&client, false),
            "attempt" => self.ask(&client, true),
            "release" => {
                let outcomes = {
                    let pid = self.clients.pid(&client);
                    self.world.release(pid, "lock")
                };
                self.told(&outcomes);
                let held = matches!(outcomes[0], Outcome::Released { .. });
                if held { "ok".into() } else { "not held".into() }
            }
            "kill" => {
                let pid = self.clients.pid(&client);
                self.world.die(pid);
                "ok".into()
            }
            "execute(fun returning 3)" => {
                assert_eq!(self.ask(&client, false), "ok");
                let pid = self.clients.pid(&client);
                self.world.release(pid, "lock");
                3.into()
            }
            // It runs, or waits to run: in both cases its caller is blocked.
            op if op.starts_with("execute(sleep") => {
                self.ask(&client, false);
                "blocked".into()
            }
            // The clients named here have slept long enough.
            "sleep" => {
                for client in step["also_completed"].as_object().unwrap().keys() {
                    let pid = self.clients.pid(client);
                    self.world.release(pid, "lock");
                }
                "ok".into()
            }
            op => panic!("unknown step {op}"),
        }
    }

    fn told(&mut self, outcomes: &[Outcome]) {
        for request in grants(outcomes) {
            self.asked.remove(&request);
        }
    }
}

fn pid(owner: &Owner) -> u32 {
    match owner {
        Owner::Process(process) => process.pid,
        Owner::Lease(_) | Owner::Jobserver(_) => panic!("only processes here"),
    }
}

#[test]
fn sleeplocks_replays() {
    for vector in vectors(SLEEPLOCKS) {
        let name = text(&vector, "name");
        let mut lock = Sleeplock {
            world: World::new(),
            clients: Clients::default(),
            slots: 0,
            asked: BTreeMap::new(),
        };
        for step in vector["steps"].as_array().unwrap() {
            let result = lock.step(step);
            let (expected, own_re_entry) = sleeplocks_expected(name, step);
            assert_eq!(result, expected, "{name}: {step}");
            if !own_re_entry {
                assert_eq!(Value::Array(lock.holders()), step["holders"], "{name}: {step}");
                assert_eq!(Value::Array(lock.waiting()), step["waiting"], "{name}: {step}");
            }
        }
    }
}

/// The answer that canal gives: the recorded result, apart from the deliberate differences.
fn sleeplocks_expected(name: &str, step: &Value) -> (Value, bool) {
    match (name, text(step, "op")) {
        // Releasing a lock that the client does not hold is an error and changes nothing.
        ("release_when_free", "release") => ("not held".into(), false),
        // A re-entrant request for a slots key is granted immediately, even when the lock is full.
        ("readme_erlang", "attempt") if step["result"] == "unavailable" => ("ok".into(), true),
        // It is also counted: the lock is free after its owner's last release.
        ("readme_erlang", "release") if step["holders"] == Value::Array(Vec::new()) => {
            (step["result"].clone(), true)
        }
        ("readme_erlang", "execute(fun returning 3)") => (step["result"].clone(), true),
        _ => (step["result"].clone(), false),
    }
}

#[test]
fn canal_lock_differing_per_never_corrupts_the_count() {
    // p_smaller_maxper_clamps, p_larger_maxper_after_full: a refusal changes nothing.
    let mut world = World::new();
    for acquired in 1..=5 {
        assert_eq!(world.take(by(1).canal("k", 5, 1)).items[0].acquired, acquired);
    }
    assert_eq!(world.refused(by(2).canal("k", 3, 1).now()), Refusal::Full { item: 0 });
    assert_eq!(world.refused(by(2).canal("k", 5, 1).now()), Refusal::Full { item: 0 });
    assert_eq!(world.take(by(2).canal("k", 6, 1)).items[0].acquired, 6);
    assert_eq!(world.held("k"), 6);
    // p_manager_killed_by_death_..., p_death_with_larger_start: a death frees exactly its slots.
    world.die(1);
    assert_eq!(world.held("k"), 1);
    // p_release_smaller_maxper, p_release_larger_maxper: a release needs no view.
    assert!(matches!(world.release(2, "k")[0], Outcome::Released { whole: true, .. }));
    assert_eq!(world.held("k"), 0);
}

#[test]
fn canal_lock_foreign_releases_change_nothing() {
    // p_release_by_non_holder, p_release_zero_held.
    let mut world = World::new();
    world.take(by(1).canal("k", 2, 1));
    world.take(by(2).canal("other", 1, 1));
    assert_eq!(world.release(2, "k"), [Outcome::NotHeld]);
    assert_eq!(world.release(3, "k"), [Outcome::NotHeld]);
    assert_eq!(world.held("k"), 1);
    world.take(by(2).canal("k", 2, 1));
    assert_eq!(world.refused(by(3).canal("k", 2, 1).now()), Refusal::Full { item: 0 });
}

#[test]
fn canal_lock_odd_views_admit_none() {
    // p_buckets_zero, p_maxper_zero. canal's numbers cannot be negative.
    let mut world = World::new();
    let zero = Refusal::TooLarge { item: 0, capacity: 0 };
    assert_eq!(world.refused(by(1).canal("k", 3, 0).now()), zero);
    assert_eq!(world.refused(by(1).canal("k", 3, 0)), zero);
    assert_eq!(world.refused(by(1).canal("k", 0, 3)), Refusal::Invalid { item: 0 });
    assert_eq!(world.table.keys(None).count(), 0);
}

#[test]
fn sleeplocks_dead_holders_wake_the_queue_and_dead_waiters_are_passed() {
    // holder_dies_with_waiters, dead_waiter_gets_the_slot.
    let mut world = World::new();
    world.take(by(1).slots("lock", 1));
    world.wait(by(2).slots("lock", 1));
    let third = world.wait(by(3).slots("lock", 1));
    assert_eq!(world.die(2), []);
    assert_eq!(world.die(1), [third]);
    assert_eq!(world.refused(by(4).slots("lock", 1).now()), Refusal::Full { item: 0 });
}

#[test]
fn sleeplocks_a_dead_holder_frees_only_its_own_slot() {
    // holder_dies_other_holder_remains, creator_dies.
    let mut world = World::new();
    world.take(by(1).slots("lock", 2));
    world.take(by(2).slots("lock", 2));
    let third = world.wait(by(3).slots("lock", 2));
    assert_eq!(world.die(1), [third]);
    assert_eq!(world.held("lock"), 2);
    assert_eq!(world.refused(by(4).slots("lock", 2).now()), Refusal::Full { item: 0 });
}
