//! Replays canal_lock through the command line: `canal acquire --json` for one living process per
//! client. It leaves out the original's counters and its manager: `start` has no equivalent in
//! canal. `p_stopped` and `p_release_unknown_key` deviate, because they ask a manager that does not
//! run: a daemon of canal starts automatically, and releasing a lock that the client does not hold
//! is an error that changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::World;
use crate::world::process::{BOUND, Proc};

/// The clients of a vector, each an idle process.
pub(crate) struct Clients<'w> {
    world: &'w World,
    live: BTreeMap<String, Proc>,
}

impl<'w> Clients<'w> {
    pub(crate) fn new(world: &'w World) -> Self {
        Self { world, live: BTreeMap::new() }
    }

    /// The process of a client, started if necessary.
    pub(crate) fn pid(&mut self, name: &str) -> String {
        let world = self.world;
        let start = || world.program("sleep", ["600"]).spawn();
        self.live.entry(name.to_owned()).or_insert_with(start).pid_text()
    }

    pub(crate) fn kill(&mut self, name: &str) {
        self.live.remove(name).expect("it lives").kill();
    }

    /// Runs `canal acquire`. Returns the number acquired, or `full`, as the vectors write it.
    fn acquire(
        &mut self,
        client: &str,
        key: &str,
        per: &Value,
        buckets: &Value,
        wait: Duration,
    ) -> Value {
        let pid = self.pid(client);
        let (per, buckets) = (per.to_string(), buckets.to_string());
        let wait = wait.as_secs_f64().to_string();
        let args = [
            "acquire",
            "--json",
            "--pid",
            &pid,
            "-k",
            key,
            "--per",
            &per,
            "--buckets",
            &buckets,
            "-w",
            &wait,
        ];
        let ended = self.world.canal(args).end();
        match ended.code {
            Some(0) => serde_json::json!({ "acquired": ended.json()["keys"][0]["acquired"] }),
            Some(75) => match ended.json()["refused"].as_str() {
                // canal refuses a request at once if it waits only for its own session.
                Some("full" | "deadlock") => "full".into(),
                Some("timeout") => "timeout".into(),
                other => panic!("{other:?}: {ended:?}"),
            },
            _ => panic!("{ended:?}"),
        }
    }

    fn release(&mut self, client: &str, key: &str) -> Value {
        let pid = self.pid(client);
        let ended = self.world.canal(["release", key, "--pid", &pid]).end();
        match ended.code {
            Some(0) => "ok".into(),
            Some(125) => serde_json::json!({ "error": "badarg" }),
            _ => panic!("{ended:?}"),
        }
    }

    /// Replays one step, `times` times.
    fn step(&mut self, step: &Value) -> Value {
        let text = |name: &str| step[name].as_str().unwrap_or_default();
        let (client, key) = (text("client"), text("key"));
        let view = (&step["maxper"], &step["buckets"]);
        let mut once = || match text("op") {
            "start" => "ok".into(),
            "acquire" => self.acquire(client, key, view.0, view.1, Duration::ZERO),
            "acquire_retry" => {
                let wait = Duration::from_millis(step["timeout_ms"].as_u64().unwrap());
                let got = self.acquire(client, key, view.0, view.1, wait);
                // A request that only its own session blocks does not wait; canal refuses it at
                // once.
                if got == "full" { "timeout".into() } else { got }
            }
            "release" => self.release(client, key),
            "kill" => {
                self.kill(client);
                "ok".into()
            }
            other => panic!("an unknown step: {other}"),
        };
        match step["times"].as_u64() {
            None => once(),
            Some(times) => (0..times).map(|_| once()).collect(),
        }
    }
}

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/canal_lock.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_vector_replays() {
    let mut replayed = 0;
    for vector in vectors()["vectors"].as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        assert_eq!(vector["verdict"], "conform", "{name}");
        if name == "p_stopped" {
            // The daemon starts automatically: see `a_stopped_daemon_is_started_again`.
            continue;
        }
        let world = World::with_daemon();
        let mut clients = Clients::new(&world);
        for (n, step) in vector["steps"].as_array().unwrap().iter().enumerate() {
            assert_eq!(clients.step(step), step["result"], "{name}, step {n}: {step}");
        }
        replayed += 1;
    }
    assert_eq!(replayed, 13);
}

#[test]
fn a_stopped_daemon_is_started_again() {
    // Deviates from `p_stopped`, where no process answers.
    let world = World::with_daemon();
    world.canal(["daemon", "--stop"]).end().code(0);
    let mut clients = Clients::new(&world);
    let step = |json: &str| serde_json::from_str::<Value>(json).unwrap();
    let acquire = step(r#"{"op":"acquire","client":"A","key":"k","maxper":2,"buckets":1}"#);
    assert_eq!(clients.step(&acquire), step(r#"{"acquired":1}"#));
}

/// Replays a story in canal's own notation: `A acquires PERxBUCKETS: NUMBER` (or `full`),
/// `A releases: ok` (or `not held`), `A dies`. Returns the clients, which hold their locks while
/// they live.
fn replay<'w>(world: &'w World, story: &[&str]) -> Clients<'w> {
    let mut clients = Clients::new(world);
    for line in story {
        let (act, expected) = line.split_once(": ").unwrap_or((line, ""));
        let words: Vec<&str> = act.split(' ').collect();
        let result = match words[..] {
            [client, "acquires", view] => {
                let (per, buckets) = view.split_once('x').unwrap();
                let number = |text: &str| Value::from(text.parse::<u64>().unwrap());
                let got =
                    clients.acquire(client, "k", &number(per), &number(buckets), Duration::ZERO);
                got.as_str().map_or_else(|| got["acquired"].to_string(), str::to_owned)
            }
            [client, "releases"] => {
                let got = clients.release(client, "k");
                got.as_str().unwrap_or("not held").to_owned()
            }
            [client, "dies"] => {
                clients.kill(client);
                String::new()
            }
            _ => panic!("{line}"),
        };
        assert_eq!(result, expected, "{line}");
    }
    clients
}

#[test]
fn each_flaw_has_its_test() {
    let flaws = vectors()["flaws"].as_array().unwrap().clone();
    let mut names: Vec<&str> = flaws.iter().map(|f| f["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "p_buckets_negative",
            "p_buckets_zero",
            "p_death_with_larger_start",
            "p_larger_maxper_after_full",
            "p_manager_crash_forgets",
            "p_manager_killed_by_death_with_smaller_start",
            "p_maxper_negative",
            "p_maxper_zero",
            "p_release_by_non_holder",
            "p_release_larger_maxper",
            "p_release_smaller_maxper",
            "p_release_zero_held",
            "p_smaller_maxper_clamps",
        ]
    );
}

#[test]
fn p_release_zero_held_and_by_non_holder_are_errors_that_change_nothing() {
    let world = World::with_daemon();
    let _clients = replay(
        &world,
        &[
            "A acquires 2x1: 1",
            "A releases: ok",
            "A releases: not held",
            "A acquires 2x1: 1",
            "A acquires 2x1: 2",
            "B releases: not held",
            "C acquires 2x1: full",
        ],
    );
    assert_eq!(world.held("k"), 2);
}

#[test]
fn p_buckets_zero_admits_none_and_negative_ones_and_p_maxper_zero_are_errors() {
    let world = World::with_daemon();
    let views =
        [("2", "0", 75), ("2", "-1", 125), ("0", "1", 125), ("-1", "1", 125), ("0", "0", 125)];
    for (per, buckets, code) in views {
        let ended =
            world.canal(["run", "-k", "k", "--per", per, "--buckets", buckets, "true"]).end();
        assert_eq!(ended.code, Some(code), "per {per}, buckets {buckets}: {ended:?}");
    }
    assert_eq!(world.held("k"), 0);
}

#[test]
fn p_smaller_maxper_clamps_is_an_exact_count() {
    let world = World::with_daemon();
    let _clients = replay(
        &world,
        &[
            "A acquires 5x1: 1",
            "A acquires 5x1: 2",
            "A acquires 5x1: 3",
            "A acquires 5x1: 4",
            "B acquires 2x1: full",
            "A acquires 5x1: 5",
            "B acquires 5x1: full",
            "B acquires 2x3: 6",
            "B acquires 2x3: full",
        ],
    );
    assert_eq!(world.held("k"), 6);
}

#[test]
fn p_larger_maxper_after_full_counts_what_is_held_and_no_sentinel() {
    let world = World::with_daemon();
    let _clients = replay(
        &world,
        &[
            "A acquires 3x1: 1",
            "A acquires 3x1: 2",
            "A acquires 3x1: 3",
            "B acquires 3x1: full",
            "B acquires 5x1: 4",
            "B acquires 5x1: 5",
            "B acquires 5x1: full",
        ],
    );
    assert_eq!(world.held("k"), 5);
}

#[test]
fn p_manager_killed_by_death_and_p_death_with_larger_start_free_what_the_dead_held() {
    let world = World::with_daemon();
    let daemon = world.daemon_pid();
    let _clients = replay(
        &world,
        &[
            "A acquires 3x1: 1",
            "A acquires 3x1: 2",
            "A acquires 3x1: 3",
            "B acquires 3x1: full",
            "A dies",
            "B acquires 5x1: 1",
            "B acquires 5x1: 2",
            "B acquires 5x1: 3",
            "C acquires 3x1: full",
            "B dies",
            "C acquires 3x1: 1",
        ],
    );
    assert_eq!(world.held("k"), 1);
    assert_eq!(world.daemon_pid(), daemon);
}

#[test]
fn p_release_smaller_and_p_release_larger_maxper_give_back_one_slot() {
    // A release passes no size, so no size can be wrong.
    let world = World::with_daemon();
    let _clients = replay(
        &world,
        &[
            "A acquires 4x1: 1",
            "A acquires 4x1: 2",
            "A acquires 4x1: 3",
            "A acquires 4x1: 4",
            "A acquires 2x1: full",
            "A releases: ok",
            "B acquires 4x1: 4",
            "B acquires 9x1: 5",
            "A dies",
            "B acquires 4x1: 3",
        ],
    );
    assert_eq!(world.held("k"), 3);
}

#[test]
fn p_manager_crash_forgets_nothing() {
    let world = World::with_daemon();
    let mut clients = Clients::new(&world);
    let step = |json: &str| serde_json::from_str::<Value>(json).unwrap();
    let acquire = step(r#"{"op":"acquire","client":"A","key":"k","maxper":2,"buckets":1}"#);
    assert_eq!(clients.step(&acquire), step(r#"{"acquired":1}"#));
    world.kill_daemon();
    assert_eq!(clients.step(&acquire), step(r#"{"acquired":2}"#));
    assert_eq!(clients.step(&acquire), step(r#""full""#));
}

#[test]
fn a_retry_takes_what_is_freed_meanwhile() {
    // The vectors poll with `acquire_retry`; canal waits.
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "k=1x1"]);
    let waiter = world.waiter("k", &["--per", "1", "--buckets", "1"], &["true"]);
    let begun = Instant::now();
    holder.finish();
    waiter.end().code(0);
    assert!(begun.elapsed() < BOUND);
}
