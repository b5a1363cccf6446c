//! The tree of keys, what a request waits for, and the wait-for graph.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::backend::{self, over_engines};
use crate::script::{Script, holder, until_nothing, waiter};
use crate::world::World;
use crate::world::process::{Proc, wait_until};

over_engines! {
    "a chain of waits leads over both hosts":
        why_a_process_waits_is_followed_to_the_end_of_the_chain;
}

/// The output of `canal ARGS` in a pipe.
fn piped(world: &World, args: &str) -> String {
    world.sh(&format!("canal {args} | cat")).end().code(0).stdout
}

fn json(world: &World, args: &str) -> Value {
    world.canal(args.split(' ')).end().code(0).json()
}

/// The line about a process.
#[track_caller]
fn line<'a>(text: &'a str, pid: &str) -> &'a str {
    let has = |line: &&str| line.split_whitespace().any(|word| word == pid);
    text.lines().find(has).unwrap_or_else(|| panic!("{pid} is not in {text}"))
}

#[test]
fn the_tree_below_a_key_is_shown_with_modes_and_waiters() {
    let world = World::with_daemon();
    let reader = holder(&world, "--read db");
    let job = holder(&world, "-k db/x/1 -j 3 --read conf");
    let other = holder(&world, "--write dbx");
    let writer = waiter(&world, "--write db/x", &["echo", "written"]);
    let behind = waiter(&world, "--read db/x/1", &["echo", "read"]);
    let text = piped(&world, "status db");
    for (proc, words) in [
        (&reader, &["holds", "read", "cat"][..]),
        (&job, &["holds", "cat"]),
        (&writer, &["#1", "write", "echo written"]),
        (&behind, &["#1", "read", "echo read"]),
    ] {
        let line = line(&text, &proc.pid_text());
        for word in words {
            assert!(line.contains(word), "{word}: {text}");
        }
    }
    let heads: Vec<&str> = text
        .lines()
        .filter(|l| !l.starts_with(' ') && !l.starts_with("engine "))
        .map(|l| l.split(' ').next().unwrap())
        .collect();
    assert_eq!(heads, ["db", "db/x", "db/x/1"], "{text}");
    assert!(!text.contains(&other.pid_text()), "{text}");

    let shown = json(&world, "status --json db");
    let keys = shown["keys"].as_array().unwrap();
    let names: Vec<&Value> = keys.iter().map(|key| &key["key"]).collect();
    assert_eq!(names, ["db", "db/x", "db/x/1"]);
    let holder = |n: usize| &keys[n]["holders"][0];
    assert_eq!((&holder(0)["pid"], &holder(0)["mode"]), (&reader.pid().into(), &"read".into()));
    assert_eq!((&holder(2)["pid"], &holder(2)["mode"]), (&job.pid().into(), &"counted".into()));
    assert_eq!(holder(2)["slots"], serde_json::json!([0]));
    let waiters = |n: usize| &keys[n]["waiters"][0];
    assert_eq!((&waiters(1)["pid"], &waiters(1)["mode"]), (&writer.pid().into(), &"write".into()));
    assert_eq!((&waiters(2)["pid"], &waiters(2)["mode"]), (&behind.pid().into(), &"read".into()));
    assert!(waiters(1)["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    assert_eq!(json(&world, "status --json db/y")["keys"], serde_json::json!([]));

    for one in [reader, job, other] {
        one.finish().code(0);
    }
    assert_eq!(writer.end().code(0).stdout, "written\n");
    assert_eq!(behind.end().code(0).stdout, "read\n");
    until_nothing(&world);
}

/// Four sessions in a chain; each waits for the one before it: for a, then b, then c.
fn chain(world: &World) -> (Proc, Vec<Script>) {
    let end = holder(world, "--write a");
    let mut scripts = vec![
        Script::start(world, "one", "--read b", "-k a/x"),
        Script::start(world, "two", "-k c", "--write b/x"),
        Script::start(world, "three", "--read d", "-k c"),
    ];
    for script in &mut scripts {
        script.go_and_wait(world);
    }
    (end, scripts)
}

#[test]
fn why_a_process_waits_is_followed_to_the_end_of_the_chain() {
    let world = World::with_daemon();
    let (end, scripts) = chain(&world);
    let inner: Vec<String> = scripts.iter().map(|s| s.inner_pid().to_string()).collect();
    let text = piped(&world, &format!("status --why {}", inner[2]));
    let begin = |n: usize| text.lines().nth(n).unwrap_or_default().trim_start().to_owned();
    assert!(begin(0).starts_with(&format!("pid {} `", inner[2])), "{text}");
    assert!(begin(0).contains("has been waiting for `c`"), "{text}");
    for (pid, words) in [
        (scripts[1].proc.pid_text(), "has held `c` since"),
        (inner[1].clone(), "has been waiting to write `b/x`"),
        (scripts[0].proc.pid_text(), "has held `b` for reading since"),
        (inner[0].clone(), "has been waiting for `a/x`"),
        (end.pid_text(), "has held `a` for writing since"),
    ] {
        let of = |line: &str| line.trim_start().starts_with(&format!("pid {pid} "));
        let told = text.lines().filter(|line| of(line) && line.contains(words)).count();
        assert_eq!(told, 1, "{pid} {words}: {text}");
    }
    // Starting in the middle, the report omits the earlier part of the chain.
    let middle = piped(&world, &format!("status --why {}", inner[1]));
    assert!(!middle.contains(&inner[2]) && middle.contains(&end.pid_text()), "{middle}");
    let nothing = piped(&world, &format!("status --why {}", end.pid()));
    let lines: Vec<&str> = nothing.lines().collect();
    assert_eq!(lines[0], format!("pid {} is not waiting for anything", end.pid()));
    assert_eq!(lines[1], "3 requests are waiting for it:");
    for (line, pid) in lines[2..].iter().zip(&inner) {
        assert!(line.starts_with(&format!("  pid {pid} `")), "{nothing}");
    }
    assert_eq!(lines.len(), 5, "{nothing}");

    let told = json(&world, &format!("status --json --why {}", inner[2]));
    let waits = told["waits"].as_array().unwrap();
    let pids: Vec<String> = waits.iter().map(|w| w["waiter"]["pid"].to_string()).collect();
    assert_eq!(pids, [&*inner[2], &*inner[1], &*inner[0]], "{told}");
    for wait in waits {
        assert!(wait["since"].is_string() && wait["reason"].is_string(), "{wait}");
        assert!(wait["mode"].is_string() && wait["key"].is_string(), "{wait}");
        let blockers = wait["blockers"].as_array().unwrap();
        assert_eq!(blockers.len(), 1, "{wait}");
        assert_eq!(blockers[0]["holds"], true, "{wait}");
        for name in ["key", "mode", "since"] {
            assert!(blockers[0][name].is_string(), "{name}: {wait}");
        }
        for name in ["pid", "uid", "command", "session"] {
            assert!(blockers[0]["party"].get(name).is_some(), "{name}: {wait}");
        }
    }
    let last = &waits[2]["blockers"][0]["party"];
    assert_eq!(last["pid"], end.pid());
    // A session name gives the same report as the pid.
    let session = waits[0]["waiter"]["session"].as_str().unwrap();
    let again = json(&world, &format!("status --json --why {session}"));
    assert_eq!(of_any_host(again), of_any_host(told));

    end.finish().code(0);
    for script in scripts {
        script.succeeds();
    }
    let gone = world.canal(["status", "--why", &inner[2]]).end().code(125);
    assert!(gone.stderr.starts_with("canal: "), "{gone:?}");
}

/// Drops times and, in the reasons, the names of other hosts: over an engine these depend on which
/// host answers.
fn of_any_host(mut told: Value) -> Value {
    if !backend::is_engine() {
        return told;
    }
    for wait in told["waits"].as_array_mut().unwrap() {
        wait["since"].take();
        wait["reason"].take();
        wait["blockers"].as_array_mut().unwrap().iter_mut().for_each(|it| drop(it["since"].take()));
    }
    told
}

/// The nodes and edges of a graph in DOT, in the plain form that canal writes.
fn parsed(dot: &str) -> (BTreeSet<String>, Vec<(String, String, String)>) {
    let body = dot.strip_prefix("digraph canal {\n").and_then(|d| d.strip_suffix("}\n"));
    let (mut nodes, mut edges) = (BTreeSet::new(), Vec::new());
    for statement in body.unwrap_or_else(|| panic!("{dot}")).lines() {
        let statement = statement.trim();
        assert!(statement.starts_with("//") || statement.ends_with(';'), "{statement}");
        let Some(rest) = statement.strip_prefix('"') else { continue };
        let (name, rest) = rest.split_once('"').unwrap();
        let (head, label) = rest.split_once("[label=\"").unwrap_or_else(|| panic!("{statement}"));
        // Within quotes each quote is escaped.
        let label = label.replace("\\\\", "").replace("\\\"", "");
        assert_eq!(label.matches('"').count(), 1, "{statement}");
        let label = label.split('"').next().unwrap().to_owned();
        match head.trim().strip_prefix("-> \"") {
            None => assert!(nodes.insert(name.to_owned()), "{name} twice: {dot}"),
            Some(to) => {
                let to = to.trim_matches([' ', '"']).to_owned();
                edges.push((name.to_owned(), to, label));
            }
        }
    }
    (nodes, edges)
}

#[test]
fn the_graph_is_dot_with_a_node_for_each_session_and_an_edge_for_each_wait() {
    let world = World::with_daemon();
    assert_eq!(parsed(&piped(&world, "status --graph")), (BTreeSet::new(), Vec::new()));
    let (end, scripts) = chain(&world);
    // A waiter also waits for the waiters ahead of it.
    let queued = waiter(&world, "-k c", &["sh", "-c", "echo \"a\\n\" && : '<b>'"]);
    let dot = piped(&world, "status --graph");
    let (nodes, edges) = parsed(&dot);
    assert_eq!(nodes.len(), 5, "{dot}");
    let of = |proc: &Proc| {
        let holders = world.look().unwrap().keys.into_iter().flat_map(|key| key.holders);
        holders.filter(|h| h.pid.cast_signed() == proc.pid()).map(|h| h.session).next().unwrap()
    };
    let [one, two, three] = [0, 1, 2].map(|n: usize| of(&scripts[n].proc));
    for (from, to, key) in
        [(&one, &of(&end), "a/x"), (&two, &one, "write b/x"), (&three, &two, "c")]
    {
        let found = edges.iter().any(|(f, t, label)| f == from && t == to && label.contains(key));
        assert!(found, "{from} -> {to} for {key}: {dot}");
    }
    for (from, to, _) in &edges {
        assert!(nodes.contains(from) && nodes.contains(to), "{from} -> {to}: {dot}");
    }
    let told = json(&world, "status --json --graph");
    assert_eq!(told["waits"].as_array().unwrap().len(), 4, "{told}");
    end.finish().code(0);
    for script in scripts {
        script.succeeds();
    }
    queued.end().code(0);
    wait_until("the graph is empty", || parsed(&piped(&world, "status --graph")).1.is_empty());
}
