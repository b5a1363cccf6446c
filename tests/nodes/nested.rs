//! Runs within a run over nodes: the holds of the outer run do not block them, but block all
//! others.

use std::fs;

use crate::nodes::run::Nodes;
use crate::world::World;
use crate::world::process::{Cmd, Proc, wait_until};

/// `canal run --on @all --ttl 10s ARGS -- sh -c SCRIPT`.
fn within<'a>(nodes: &'a Nodes, args: &[&str], script: &str) -> Cmd<'a> {
    let words = ["run", "--on", "@all", "--ttl", "10s"].iter().chain(args);
    nodes.here.canal(words.chain(&["--", "sh", "-c", script]))
}

/// A command on the machine of one node, which asks that node as `local` and another one.
fn at_a<'a>(nodes: &'a Nodes, script: &str) -> Cmd<'a> {
    let [a, b, _] = &nodes.nodes;
    let other = format!("unix:{}", b.socket().display());
    let words = ["run", "--on", "local", "--on", &other, "--ttl", "10s", "-k", "x", "--"];
    a.canal(words.into_iter().chain(["sh", "-c", script]))
}

/// Waits until a command has reported that it runs, and lets it continue when `look` has returned.
fn while_it_runs(run: Cmd<'_>, here: &World, look: impl FnOnce()) -> Proc {
    let run = run.spawn();
    wait_until("it runs", || here.path("work").join("runs").exists());
    look();
    fs::write(here.path("work").join("go"), "").unwrap();
    run
}

const PAUSE: &str = "touch runs; until [ -e go ]; do sleep 0.05; done";

#[test]
fn a_key_below_that_of_the_outer_run_is_granted() {
    let nodes = Nodes::new();
    let inner = "canal run --on a --ttl 10s --read db/x -- echo read";
    let ended = nodes.here.sh(&format!("canal run --on a --ttl 10s --write db -- {inner}"));
    assert_eq!(ended.end().code(0).stdout, "read\n");
    nodes.until_free();
}

#[test]
fn the_same_key_is_granted_within_the_run_and_to_nobody_else() {
    let nodes = Nodes::new();
    for require in ["all", "majority"] {
        let asked = ["--require", require, "-k", "x"];
        let again = format!("canal run --on @all --ttl 10s --require {require} -k x");
        let script = format!("{again} -- {again} -- sh -c '{PAUSE}; echo inside'");
        let run = while_it_runs(within(&nodes, &asked, &script), &nodes.here, || {
            let asked = asked.iter().chain(&["-n"]).copied().collect::<Vec<_>>();
            within(&nodes, &asked, "true").end().code(75);
        });
        assert_eq!(run.end().code(0).stdout, "inside\n", "{require}");
        nodes.until_free();
        fs::remove_file(nodes.here.path("work").join("runs")).unwrap();
        fs::remove_file(nodes.here.path("work").join("go")).unwrap();
    }
}

#[test]
fn a_new_session_is_barred_by_the_outer_run() {
    let nodes = Nodes::new();
    let script = "canal run --on @all --ttl 10s --new-session -n -k x -- true";
    within(&nodes, &["-k", "x"], script).end().code(75);
}

#[test]
fn a_plain_run_at_a_node_is_within_the_run_over_nodes() {
    let nodes = Nodes::new();
    let [a, ..] = &nodes.nodes;
    let script = format!(
        "canal test x && canal run -n -k x -- canal run -n -k x -- sh -c '{PAUSE}; echo inside'"
    );
    let run = while_it_runs(at_a(&nodes, &script), a, || {
        a.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
        a.canal(["test", "x"]).end().code(75);
        let [one, other] = [0, 1].map(|at| a.key("x").holders[at].session.clone());
        assert_eq!(one, other);
    });
    assert_eq!(run.end().code(0).stdout, "inside\n");
    nodes.until_free();
    let new = "canal run -n --new-session -k x -- true";
    at_a(&nodes, new).end().code(75);
}

#[test]
fn nothing_below_a_new_session_is_within_the_run_over_nodes() {
    let nodes = Nodes::new();
    let below = r#"echo "[$CANAL_RUN$CANAL_RUN_NODES$CANAL_UNDER]"; canal run -n -k x -- true"#;
    let new = format!("canal run -n --new-session -k y -- sh -c '{below}'");
    assert_eq!(at_a(&nodes, &new).end().code(75).stdout, "[]\n");
    nodes.until_free();
}

/// A lease can only be within a lease: the hold of a process in between blocks it.
#[test]
fn a_run_over_nodes_within_a_plain_write_within_one_is_a_deadlock_and_told() {
    let nodes = Nodes::new();
    let inner = "canal run --on local --ttl 10s --write db/x -- echo inside";
    let ended = at_a(&nodes, &format!("canal run -n --write db -- {inner}")).end().code(75);
    assert!(ended.stderr.contains("the enclosing command holds `"), "{}", ended.stderr);
    nodes.until_free();
}

#[test]
fn a_script_within_the_run_takes_and_gives_back_a_plain_lock() {
    let nodes = Nodes::new();
    let script = "canal acquire -q -n -k x && canal release -q x && echo done";
    assert_eq!(at_a(&nodes, script).end().code(0).stdout, "done\n");
    nodes.until_free();
}

#[test]
fn a_node_that_was_killed_knows_after_it_what_is_within_the_run() {
    let nodes = Nodes::new();
    let [a, ..] = &nodes.nodes;
    let script = format!(
        "canal run -n -k x -- sh -c '{PAUSE}; canal run -n -k x -- canal run -n --on local --ttl 10s -k x -- echo inside'"
    );
    let run = while_it_runs(at_a(&nodes, &script), a, || {
        a.kill_daemon();
        a.status();
        a.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    });
    assert_eq!(run.end().code(0).stdout, "inside\n");
    nodes.until_free();
}

/// The hold of an inner run outlives the outer run, and then still blocks others.
#[test]
fn an_inner_run_that_outlives_the_outer_one_keeps_its_lock() {
    let nodes = Nodes::new();
    let [a, ..] = &nodes.nodes;
    let script = format!(
        "canal run -n -k x -- setsid sh -c '{PAUSE}' >/dev/null 2>&1 & \
        until [ -e runs ]; do sleep 0.05; done"
    );
    at_a(&nodes, &script).end().code(0);
    a.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert_eq!(a.held("x"), 1);
    fs::write(a.path("work").join("go"), "").unwrap();
    nodes.until_free();
}

/// A handle of a lease that has ended, or never existed, belongs to no session.
#[test]
fn a_handle_of_no_lease_opens_nothing() {
    let nodes = Nodes::new();
    let [a, ..] = &nodes.nodes;
    let handed_down = at_a(&nodes, "echo \"$CANAL_UNDER\"").end().code(0).stdout;
    assert!(handed_down.starts_with('n'), "{handed_down}");
    let stranger = format!("CANAL_UNDER={} canal run -n -k x -- true", handed_down.trim());
    let run = while_it_runs(at_a(&nodes, PAUSE), a, || {
        a.sh(&stranger).end().code(75);
        a.sh("CANAL_UNDER='nothing n00 n' canal run -n -k x -- true").end().code(75);
    });
    run.end().code(0);
}
