//! `canal metrics` reports past events and the current state.

use crate::backend::{self, over_engines};
use crate::whole::metrics::{metrics, value};
use crate::world::World;
use crate::world::process::wait_until;

over_engines! {
    "an engine has figures of its own, and the journal has none":
        grants_refusals_waits_and_ends_are_counted_by_key;
}

/// Waits until a figure has a value.
#[track_caller]
fn until(world: &World, sample: &str, expected: f64) {
    let mut text = String::new();
    wait_until("a figure has its value", || {
        text = metrics(world);
        let found = value(&text, sample);
        assert!(found.is_some(), "{sample} is missing in\n{text}");
        found == Some(expected)
    });
}

#[test]
fn grants_refusals_waits_and_ends_are_counted_by_key() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db", "-j", "1"]);
    world.canal(["run", "-n", "-k", "db", "--", "true"]).end().code(75);
    let waiter = world.waiter("db", &[], &["true"]);
    let text = metrics(&world);
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    for (sample, expected) in [
        ("canal_key_held_slots{key=\"db\"}", 1.0),
        ("canal_key_holds{key=\"db\"}", 1.0),
        ("canal_key_capacity_slots{key=\"db\"}", 1.0),
        ("canal_key_waiting_requests{key=\"db\"}", 1.0),
        ("canal_key_paused{key=\"db\"}", 0.0),
        ("canal_grants_total{key=\"db\"}", 1.0),
        ("canal_refusals_total{key=\"db\",reason=\"full\"}", 1.0),
        ("canal_refusals_total{key=\"db\",reason=\"deadlock\"}", 0.0),
        ("canal_hold_seconds_count{key=\"db\"}", 0.0),
        ("canal_holds", 1.0),
        ("canal_waiting_requests", 1.0),
        ("canal_deadlocks_total", 0.0),
    ] {
        assert_eq!(value(&text, sample), Some(expected), "{sample}\n{text}");
    }
    wait_until("the wait grows", || {
        let oldest = value(&metrics(&world), "canal_key_oldest_wait_seconds{key=\"db\"}");
        oldest.is_some_and(|seconds| seconds > 0.0)
    });
    holder.finish();
    waiter.end().code(0);
    until(&world, "canal_hold_seconds_count{key=\"db\"}", 2.0);
    let text = metrics(&world);
    assert_eq!(value(&text, "canal_wait_seconds_count{key=\"db\"}"), Some(2.0));
    assert_eq!(value(&text, "canal_wait_seconds_bucket{key=\"db\",le=\"+Inf\"}"), Some(2.0));
    assert!(value(&text, "canal_wait_seconds_sum{key=\"db\"}").unwrap() > 0.0);
    assert_eq!(value(&text, "canal_key_held_slots{key=\"db\"}"), Some(0.0));
    let has_journal = value(&text, "canal_journal_bytes").is_some();
    assert_ne!(has_journal, backend::is_engine());
    let appended = value(&text, "canal_engine_append_seconds_count");
    assert_eq!(appended.is_some_and(|count| count >= 2.0), backend::is_engine(), "{text}");
    assert_eq!(value(&text, "canal_engine_up") == Some(1.0), backend::is_engine());
}

#[test]
fn a_deadlock_and_a_release_by_force_are_counted() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "forced"]);
    let token = world.key("forced").holders[0].token.to_string();
    world.canal(["release", "--force", "--token", &token]).end().code(0);
    holder.finish();
    until(&world, "canal_lost_holds_total{why=\"forced\"}", 1.0);
    // A lock of this kind is not re-entrant, so the inner request waits for the outer one.
    let inner = ["run", "-k", "d", "--per", "1", "--", "canal", "run", "-k", "d", "--per", "1"];
    world.canal(inner.into_iter().chain(["--", "true"])).end().code(75);
    until(&world, "canal_deadlocks_total", 1.0);
    until(&world, "canal_refusals_total{key=\"d\",reason=\"deadlock\"}", 1.0);
}

#[test]
fn what_is_told_is_bounded_however_many_keys_are_used() {
    let world = World::with_daemon().on_one_host();
    let script = "for n in $(seq 130); do canal run -k job/$n -- true || exit; done";
    world.sh(script).end().code(0);
    let text = metrics(&world);
    let grants = text.lines().filter(|line| line.starts_with("canal_grants_total{"));
    let counts: Vec<u64> =
        grants.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert_eq!(counts.len(), 101, "{text}");
    assert_eq!(counts.iter().sum::<u64>(), 130);
    assert_eq!(value(&text, "canal_grants_total{key=\"other\"}"), Some(30.0));
}

#[test]
fn nothing_but_names_of_keys_is_told() {
    let world = World::with_daemon().on_one_host();
    let args = ["run", "-k", "db", "--note", "my-secret-note", "--"];
    world.canal(args.into_iter().chain(["sh", "-c", ": my-secret-word"])).end().code(0);
    let text = metrics(&world);
    assert!(text.contains("{key=\"db\"}") && !text.contains("secret"), "{text}");
}
