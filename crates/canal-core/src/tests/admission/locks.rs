//! Replays recorded histories of `locks` step by step, as far as they concern one node.
//!
//! An agent is a process, and the end of its transaction is the end of the process. Where the
//! original makes the youngest agent of a ring surrender its locks, or aborts it, canal refuses the
//! request of the same agent. Here that agent then ends, like a script that cannot continue.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::tests::world::{Wish, World, by, granted};
use crate::*;

const LOCKS: &str = include_str!("../../../../../tests/data/locks.json");

/// Vectors without a counterpart, and why.
const SKIPPED: [(&str, &str); 1] = [(
    "e_begin_transaction_empty",
    "a transaction without locks is Erlang's: a request names something, or is invalid",
)];

const DIFFERENT: &[Difference] = &include!("../../../../../tests/data/locks_different.in");

pub(in crate::tests) fn file() -> Value {
    serde_json::from_str(LOCKS).unwrap()
}

pub(in crate::tests) fn text<'v>(step: &'v Value, field: &str) -> &'v str {
    step[field].as_str().unwrap_or_else(|| panic!("no {field} in {step}"))
}

/// The visible effects of one step.
#[derive(Debug, PartialEq)]
struct Seen {
    result: String,
    /// Other agents whose wait ended with a grant.
    completed: BTreeSet<String>,
    /// Agents that a deadlock ended.
    victims: BTreeSet<String>,
}

/// The state of one recorded history.
#[derive(Default)]
struct Agents {
    pids: BTreeMap<String, u32>,
    gone: BTreeSet<String>,
    /// Calls that wait: for one request, or for all requests of the agent.
    calls: BTreeMap<String, Option<RequestId>>,
}

impl Agents {
    fn still_waits(&self, world: &World, agent: &str) -> bool {
        match self.calls.get(agent) {
            Some(Some(request)) => world.table.waiter(*request).is_some(),
            Some(None) => world.table.waiters_in(world.frame(self.pids[agent])).next().is_some(),
            None => false,
        }
    }

    fn step(&mut self, world: &mut World, step: &Value) -> Seen {
        let before = world.log.len();
        let agent = text(step, "agent").to_owned();
        let mut result = self.answer(world, &agent, step);
        let mut victims = BTreeSet::new();
        while let Some(victim) = self.victim_since(world, before) {
            if victim == agent {
                result = "deadlock".to_owned();
            }
            world.die(self.pids[&victim]);
            self.calls.remove(&victim);
            self.gone.insert(victim.clone());
            victims.insert(victim);
        }
        let calls = self.calls.keys().cloned();
        let mut completed: BTreeSet<String> =
            calls.filter(|agent| !self.still_waits(world, agent)).collect();
        self.calls.retain(|agent, _| !completed.contains(agent));
        if completed.remove(&agent) && result == "blocked" {
            result = "granted".to_owned();
        }
        Seen { result, completed, victims }
    }

    /// An agent that was refused after an entry and has not ended yet.
    fn victim_since(&self, world: &World, entry: usize) -> Option<String> {
        let outcomes = world.log[entry..].iter().flat_map(|(_, outcomes)| outcomes);
        let mut refused = outcomes.filter_map(|outcome| match outcome {
            Outcome::Refused { why: Refusal::Deadlock { cycle }, .. } => Some(cycle[0].frame),
            _ => None,
        });
        let pids = || self.pids.iter().filter(|(name, _)| !self.gone.contains(*name));
        refused.find_map(|frame| {
            pids().find(|(_, pid)| world.frame(**pid) == frame).map(|(name, _)| name.clone())
        })
    }

    fn answer(&mut self, world: &mut World, agent: &str, step: &Value) -> String {
        let op = text(step, "op");
        if op == "spawn" {
            let next = u32::try_from(self.pids.len()).unwrap() + 1;
            self.pids.insert(agent.to_owned(), next);
            return "ok".to_owned();
        }
        let pid = self.pids[agent];
        let waits = |world: &World| world.table.waiters_in(world.frame(pid)).next().is_some();
        let words = match op {
            "change_flag" => "ok",
            "lock" => {
                let (request, outcomes) = world.ask(wish(pid, &[step]));
                let granted = granted(&outcomes, request).is_some();
                if !granted {
                    self.calls.insert(agent.to_owned(), Some(request));
                }
                if granted { "granted" } else { "blocked" }
            }
            "lock_nowait" => {
                world.ask(wish(pid, &[step]));
                "ok"
            }
            "lock_objects" => {
                let objects = step["objects"].as_array().unwrap();
                world.ask(wish(pid, &objects.iter().collect::<Vec<_>>()));
                "ok"
            }
            "await_all_locks" if waits(world) => {
                self.calls.insert(agent.to_owned(), None);
                "blocked"
            }
            "await_all_locks" => "granted",
            "transaction_status" => {
                if waits(world) {
                    "waiting"
                } else {
                    "granted"
                }
            }
            "end_transaction" | "kill_client" | "exit_client" => {
                self.calls.remove(agent);
                world.die(pid);
                "ok"
            }
            "poll" if self.calls.contains_key(agent) => "blocked",
            "poll" => "nothing outstanding",
            "agent_alive" => {
                let alive = world.table.frame(world.frame(pid)).is_some();
                return alive.to_string();
            }
            op => panic!("unknown step {op}"),
        };
        words.to_owned()
    }

    /// The visible effects of a step in the original, in canal's terms.
    fn expected(&self, vector: &str, at: usize, step: &Value) -> Seen {
        let words = |result: &Value| match result {
            Value::String(words) => words.clone(),
            Value::Bool(alive) => alive.to_string(),
            _ if result["error"].is_string() => "deadlock".to_owned(),
            _ if result["granted"] == true || result["have_all_locks"] == true => {
                "granted".to_owned()
            }
            _ => panic!("{vector}: {result}"),
        };
        let also = step["also_completed"].as_object().into_iter().flatten();
        let results = also.clone().map(|(_, result)| result).chain([&step["result"]]);
        let named = results.flat_map(|result| result["deadlocks"].as_array().into_iter().flatten());
        let named = named.map(|deadlock| deadlock[0].as_str().unwrap().to_owned());
        let mut victims: BTreeSet<String> =
            named.filter(|name| !self.gone.contains(name)).collect();
        let mut result = words(&step["result"]);
        if victims.contains(text(step, "agent")) {
            result = "deadlock".to_owned();
        }
        let completed = also.map(|(name, _)| name.clone());
        let mut completed: BTreeSet<String> =
            completed.filter(|name| !self.gone.contains(name) && !victims.contains(name)).collect();
        for (_, _, answer, whose, _) in different(vector, at) {
            if answer == "deadlock" {
                victims.insert(text(step, "agent").to_owned());
            }
            (result, completed) =
                (answer.to_owned(), whose.iter().map(|name| (*name).to_owned()).collect());
        }
        Seen { result, completed, victims }
    }
}

type Difference = (&'static str, usize, &'static str, &'static [&'static str], &'static str);

fn different(vector: &str, at: usize) -> impl Iterator<Item = Difference> {
    DIFFERENT.iter().copied().filter(move |(name, step, ..)| *name == vector && *step == at)
}

fn wish(pid: u32, objects: &[&Value]) -> Wish {
    objects.iter().fold(by(pid), |wish, object| {
        let name = object["obj"].as_str().or(object[0].as_str()).unwrap();
        match object["mode"].as_str().or(object[1].as_str()).unwrap() {
            "read" => wish.read(name),
            "write" => wish.write(name),
            mode => panic!("unknown mode {mode}"),
        }
    })
}

#[test]
fn locks_replays() {
    let (mut replayed, mut victims) = (0, 0);
    let mut different_steps = 0;
    for vector in file()["vectors"].as_array().unwrap() {
        let name = text(vector, "name");
        if SKIPPED.iter().any(|(skipped, _)| *skipped == name) {
            continue;
        }
        assert_eq!(text(vector, "verdict"), "conform", "{name}: is not to be replayed as it is");
        let (mut world, mut agents) = (World::new(), Agents::default());
        for (at, step) in vector["steps"].as_array().unwrap().iter().enumerate() {
            if agents.gone.contains(text(step, "agent")) {
                continue;
            }
            let recorded = agents.expected(name, at, step);
            let seen = agents.step(&mut world, step);
            assert_eq!(seen, recorded, "{name} {at}: {step}");
            victims += seen.victims.len();
            different_steps += different(name, at).count();
        }
        replayed += 1;
    }
    println!("{replayed} vectors replayed, {victims} deadlocks");
    assert_eq!(replayed + SKIPPED.len(), file()["vectors"].as_array().unwrap().len());
    assert_eq!(different_steps, DIFFERENT.len(), "a difference is listed at a step that is none");
}
