//! Replays `locks` through the command line, except what concerns several nodes. An agent is a
//! process for which `canal acquire` asks, and its transaction ends with it.
//!
//! In a deadlock the original makes the youngest transaction surrender or abort. canal refuses the
//! youngest one's request, and the agent then ends, like a script that cannot continue. Other
//! differences are listed next to the vectors, with the rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::world::World;
use crate::world::process::{Proc, wait_until};

type Difference = (&'static str, usize, &'static str, &'static [&'static str], &'static str);

const DIFFERENT: &[Difference] = &include!("../../data/locks_different.in");

/// Only Erlang has transactions without locks.
const SKIPPED: &str = "e_begin_transaction_empty";

/// The visible effects of one step.
#[derive(Debug, PartialEq)]
struct Seen {
    result: String,
    /// Other agents whose wait ended with a grant.
    completed: BTreeSet<String>,
    /// Agents that ended because of a deadlock.
    victims: BTreeSet<String>,
}

/// A request of an agent.
struct Asked {
    /// `canal acquire`, until its result is known.
    acquire: Option<Proc>,
    key: String,
}

/// The agents of one history, each an idle process.
struct Agents {
    procs: BTreeMap<String, Proc>,
    asked: BTreeMap<String, Vec<Asked>>,
    gone: BTreeSet<String>,
    /// Calls that wait: for one request, or for all requests of the agent.
    calls: BTreeMap<String, Option<usize>>,
    world: World,
}

impl Agents {
    fn new() -> Self {
        let (procs, asked, gone, calls) = Default::default();
        Self { procs, asked, gone, calls, world: World::with_daemon() }
    }

    /// Whether a process waits for a key, or for any key.
    fn waits_for(&self, agent: &str, wanted: Option<&str>) -> bool {
        let pid = self.procs[agent].child.id();
        let keys = self.world.look().unwrap().keys;
        let of = keys.iter().filter(|key| wanted.is_none_or(|wanted| key.key == wanted));
        of.flat_map(|key| &key.waiters).any(|waiter| waiter.pid == pid)
    }

    fn is_known(&self, agent: &str) -> bool {
        let pid = self.procs[agent].child.id();
        let keys = self.world.look().unwrap().keys;
        let holds = keys.iter().flat_map(|key| &key.holders).any(|holder| holder.pid == pid);
        holds || keys.iter().flat_map(|key| &key.waiters).any(|waiter| waiter.pid == pid)
    }

    fn still_waits(&self, agent: &str, call: Option<usize>) -> bool {
        let pending = |asked: &Asked| asked.acquire.is_some();
        match call {
            Some(at) => pending(&self.asked[agent][at]),
            None => self.asked.get(agent).is_some_and(|all| all.iter().any(pending)),
        }
    }

    /// Asks for locks. On return, each is granted, refused or waited for.
    fn ask(&mut self, agent: &str, objects: &[&Value]) -> usize {
        let pid = self.procs[agent].pid_text();
        let mut args = vec!["acquire".to_owned(), "--pid".to_owned(), pid];
        for object in objects {
            let name = object["obj"].as_str().or(object[0].as_str()).unwrap();
            let mode = object["mode"].as_str().or(object[1].as_str()).unwrap();
            args.extend([format!("--{mode}"), name.to_owned()]);
        }
        let key = args[4].clone();
        let mut acquire = self.world.canal(&args).spawn();
        wait_until("it is answered, or queued", || {
            acquire.has_ended() || self.waits_for(agent, Some(&key))
        });
        let all = self.asked.entry(agent.to_owned()).or_default();
        all.push(Asked { acquire: Some(acquire), key });
        all.len() - 1
    }

    /// Ends an agent. On return, its locks are free or have other holders.
    fn die(&mut self, agent: &str) {
        self.calls.remove(agent);
        self.asked.remove(agent);
        if !self.gone.insert(agent.to_owned()) {
            return;
        }
        let pid = self.procs[agent].pid();
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
        wait_until("the agent is gone", || {
            self.procs.get_mut(agent).unwrap().has_ended() && !self.is_known(agent)
        });
    }

    /// Reads the answers. Returns a refused agent if there is one.
    fn take_answers(&mut self) -> Option<String> {
        let mut victim = None;
        let agents: Vec<String> = self.asked.keys().cloned().collect();
        for agent in agents {
            for at in 0..self.asked[&agent].len() {
                let asked = &self.asked[&agent][at];
                if asked.acquire.is_none() || self.waits_for(&agent, Some(&asked.key)) {
                    continue;
                }
                let asked = &mut self.asked.get_mut(&agent).unwrap()[at];
                let ended = asked.acquire.take().unwrap().end();
                if ended.code == Some(75) {
                    assert!(ended.stderr.contains("deadlock"), "{ended:?}");
                    victim.get_or_insert(agent.clone());
                } else {
                    ended.code(0);
                }
            }
        }
        victim
    }

    fn step(&mut self, step: &Value) -> Seen {
        let agent = step["agent"].as_str().unwrap().to_owned();
        let mut result = self.answer(&agent, step);
        let mut victims = BTreeSet::new();
        while let Some(victim) = self.take_answers() {
            if victim == agent {
                result = "deadlock".to_owned();
            }
            self.die(&victim);
            victims.insert(victim);
        }
        let calls = self.calls.iter();
        let mut completed: BTreeSet<String> = calls
            .filter(|(agent, call)| !self.still_waits(agent, **call))
            .map(|(agent, _)| agent.clone())
            .collect();
        self.calls.retain(|agent, _| !completed.contains(agent));
        if completed.remove(&agent) && result == "blocked" {
            result = "granted".to_owned();
        }
        Seen { result, completed, victims }
    }

    fn answer(&mut self, agent: &str, step: &Value) -> String {
        let waits = |agents: &Self| agents.waits_for(agent, None);
        let words = match step["op"].as_str().unwrap() {
            "spawn" => {
                let sleep = self.world.program("sleep", ["600"]).spawn();
                self.procs.insert(agent.to_owned(), sleep);
                "ok"
            }
            "change_flag" => "ok",
            "lock" => {
                // The answers, read below, show whether it was granted.
                let at = self.ask(agent, &[step]);
                self.calls.insert(agent.to_owned(), Some(at));
                "blocked"
            }
            "lock_nowait" => {
                self.ask(agent, &[step]);
                "ok"
            }
            "lock_objects" => {
                let objects = step["objects"].as_array().unwrap();
                self.ask(agent, &objects.iter().collect::<Vec<_>>());
                "ok"
            }
            "await_all_locks" if waits(self) => {
                self.calls.insert(agent.to_owned(), None);
                "blocked"
            }
            "transaction_status" if waits(self) => "waiting",
            "await_all_locks" | "transaction_status" => "granted",
            "end_transaction" | "kill_client" | "exit_client" => {
                self.die(agent);
                "ok"
            }
            "poll" if self.calls.contains_key(agent) => "blocked",
            "poll" => "nothing outstanding",
            "agent_alive" => return self.is_known(agent).to_string(),
            op => panic!("unknown step {op}"),
        };
        words.to_owned()
    }

    /// The effects of a step in the original, in canal's terms.
    fn expected(&self, vector: &str, at: usize, step: &Value) -> Seen {
        let agent = step["agent"].as_str().unwrap();
        let words = |result: &Value| match result {
            Value::String(words) => words.clone(),
            Value::Bool(alive) => alive.to_string(),
            _ if result["error"].is_string() => "deadlock".to_owned(),
            _ if result["granted"] == true || result["have_all_locks"] == true => {
                "granted".to_owned()
            }
            _ => panic!("{vector}: {result}"),
        };
        let also = || step["also_completed"].as_object().into_iter().flatten();
        let results = also().map(|(_, result)| result).chain([&step["result"]]);
        let named = results.flat_map(|result| result["deadlocks"].as_array().into_iter().flatten());
        let named = named.map(|deadlock| deadlock[0].as_str().unwrap().to_owned());
        let mut victims: BTreeSet<String> =
            named.filter(|name| !self.gone.contains(name)).collect();
        let mut result = words(&step["result"]);
        if victims.contains(agent) {
            result = "deadlock".to_owned();
        }
        let mut completed: BTreeSet<String> = also()
            .map(|(name, _)| name.clone())
            .filter(|name| !self.gone.contains(name) && !victims.contains(name))
            .collect();
        for (_, _, answer, whose, _) in
            DIFFERENT.iter().filter(|(name, step, ..)| *name == vector && *step == at)
        {
            if *answer == "deadlock" {
                victims.insert(agent.to_owned());
            }
            result = (*answer).to_owned();
            completed = whose.iter().map(|name| (*name).to_owned()).collect();
        }
        Seen { result, completed, victims }
    }
}

#[test]
fn every_vector_replays() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/locks.json");
    let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    let (mut replayed, mut victims) = (0, 0);
    for vector in vectors {
        let name = vector["name"].as_str().unwrap();
        if name == SKIPPED {
            continue;
        }
        let mut agents = Agents::new();
        for (at, step) in vector["steps"].as_array().unwrap().iter().enumerate() {
            if agents.gone.contains(step["agent"].as_str().unwrap()) {
                continue;
            }
            let expected = agents.expected(name, at, step);
            let seen = agents.step(step);
            assert_eq!(seen, expected, "{name} {at}: {step}");
            victims += seen.victims.len();
        }
        replayed += 1;
    }
    assert_eq!((replayed, vectors.len()), (44, 45));
    assert!(victims > 5, "{victims} deadlocks");
}
