//! Deadlocks over several nodes: they are found within seconds, one request gives way, and its
//! message shows the ring.

use std::fs;

use canal::status::CycleStepInfo;
use canal::{Endpoint, ErrorKind, Lock};
use nix::sys::signal::Signal;

use crate::nodes::run::{NAMES, Nodes};
use crate::world::World;
use crate::world::process::{Ended, Proc, signal, wait_until};

/// Nodes that grant at once, and that this user has met.
fn nodes() -> Nodes {
    let nodes = Nodes::new();
    nodes.run(&["--", "true"]).end().code(0);
    nodes
}

/// `canal run --on NODE -k KEY -- COMMAND`, for a shell.
fn on(node: &str, key: &str, command: &str) -> String {
    format!("canal run --on {node} --ttl 10s -k {key} -- {command}")
}

/// A command that takes a key at a node and reports it, then asks for another one within it when
/// `go` exists.
fn nested(nodes: &Nodes, number: usize, outer: (&str, &str), inner: &str) -> Proc {
    let script = format!("touch held{number}; until [ -e go ]; do sleep 0.05; done; {inner}");
    let command = format!("sh -c '{script}'");
    let run = nodes.here.sh(&on(outer.0, outer.1, &command));
    let run = run.env("SECOND", nodes.nodes[1].socket()).spawn();
    wait_until("it holds its first lock", || {
        nodes.here.path("work").join(format!("held{number}")).exists()
    });
    run
}

fn go(nodes: &Nodes) {
    fs::write(nodes.here.path("work").join("go"), "").unwrap();
}

/// Checks that the message of the refused request shows the ring, with the node of each wait.
fn tells(ended: &Ended, requests: usize, at: &[&str]) {
    let said = &ended.stderr;
    let message = format!("{requests} requests on nodes would wait for each other forever");
    assert!(said.contains(&message), "{said}");
    for node in at {
        assert!(said.contains(&format!(" on {node}, held by")), "{said}");
    }
    assert!(said.contains("hint: rerun the command"), "{said}");
}

#[test]
fn of_two_runs_that_wait_for_each_other_at_two_nodes_the_younger_is_refused() {
    let nodes = nodes();
    let one = nested(&nodes, 1, ("a", "x"), &on("b", "y", "true"));
    let two = nested(&nodes, 2, ("b", "y"), &on("a", "x", "true"));
    go(&nodes);
    let refused = two.end().code(75);
    tells(&refused, 2, &["a", "b"]);
    let granted = one.end().code(0);
    assert!(!granted.stderr.contains("deadlock"), "{}", granted.stderr);
}

#[test]
fn three_in_a_ring_over_three_nodes_have_one_victim() {
    let nodes = nodes();
    let keys = ["x", "y", "z"];
    let runs: Vec<Proc> = (0..3)
        .map(|at| {
            let next = (at + 1) % 3;
            nested(&nodes, at, (NAMES[at], keys[at]), &on(NAMES[next], keys[next], "true"))
        })
        .collect();
    go(&nodes);
    let ended: Vec<Ended> = runs.into_iter().map(Proc::end).collect();
    let codes: Vec<Option<i32>> = ended.iter().map(|ended| ended.code).collect();
    assert_eq!(codes, [Some(0), Some(0), Some(75)]);
    tells(&ended[2], 3, &NAMES);
}

/// The addresses of the nodes, as a script has them from its environment.
const NODE_0: &str = "\"unix:$NODE_0\"";
const NODE_1: &str = "\"unix:$NODE_1\"";
const NODE_2: &str = "\"unix:$NODE_2\"";

/// Each request of the ring knows the addresses of only two nodes: they learn the third one's from
/// each other. `last`: where the last of them is, and how it takes its first lock.
#[track_caller]
fn strangers_in_a_ring_have_one_victim(nodes: &Nodes, last: (&World, &str)) {
    let places = [&World::new(), &World::new(), last.0];
    let runs = [
        (on(NODE_0, "x", "HELD"), on(NODE_1, "y", "true")),
        (on(NODE_1, "y", "HELD"), on(NODE_2, "z", "true")),
        (last.1.to_owned(), on(NODE_0, "x", "true")),
    ];
    let runs: Vec<Proc> = places
        .iter()
        .zip(runs)
        .map(|(place, (outer, inner))| {
            let held = format!("touch held; until [ -e go ]; do sleep 0.05; done; {inner}");
            let run = place.sh(&outer.replace("HELD", &format!("sh -c '{held}'")));
            let sockets = nodes.nodes.iter().enumerate();
            let run =
                sockets.fold(run, |run, (at, node)| run.env(&format!("NODE_{at}"), node.socket()));
            let run = run.spawn();
            let path = place.path("work").join("held");
            wait_until("it holds its first lock", || path.exists());
            run
        })
        .collect();
    for place in places {
        fs::write(place.path("work").join("go"), "").unwrap();
    }
    let ended: Vec<Ended> = runs.into_iter().map(Proc::end).collect();
    let mut codes: Vec<Option<i32>> = ended.iter().map(|ended| ended.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(0), Some(75)], "{ended:?}");
    let refused = ended.iter().find(|ended| ended.code == Some(75)).unwrap();
    assert!(
        refused.stderr.contains("3 requests on nodes would wait for each other"),
        "{}",
        refused.stderr
    );
}

#[test]
fn three_who_know_their_own_nodes_only_have_one_victim() {
    let nodes = nodes();
    let third = on(NODE_2, "z", "HELD");
    strangers_in_a_ring_have_one_victim(&nodes, (&World::new(), &third));
}

/// The last of them holds a plain lock of the third node's machine.
#[test]
fn a_ring_of_strangers_through_a_plain_lock_is_found() {
    let nodes = nodes();
    strangers_in_a_ring_have_one_victim(&nodes, (&nodes.nodes[2], "canal run -k z -- HELD"));
}

#[test]
fn whoever_waits_is_told_which_node_could_not_be_read() {
    let nodes = nodes();
    let script = "touch held; until [ -e go ]; do sleep 0.05; done";
    let script = format!("canal run --on a,b --ttl 1m -k y -- sh -c '{script}'");
    let holder = nodes.here.sh(&script);
    let holder = holder.spawn();
    wait_until("it holds both", || nodes.here.path("work").join("held").exists());
    let waits = nodes.here.sh(&on("c", "x", &on("a", "y", "true"))).spawn();
    wait_until("it waits", || nodes.nodes[0].key("y").waiting == 1);
    let hung = nodes.nodes[1].daemon_pid();
    signal(hung, Signal::SIGSTOP);
    let note = "cannot read b: canal would not find a deadlock that involves it";
    wait_until("it says so", || waits.stderr().contains(note));
    signal(hung, Signal::SIGCONT);
    go(&nodes);
    holder.end().code(0);
    waits.end().code(0);
}

/// Within a plain lock on the machine of one node, a command asks for a lock over nodes.
#[test]
fn a_ring_through_a_plain_lock_of_one_node_is_found() {
    let nodes = nodes();
    let one = nested(&nodes, 1, ("a", "x"), &on("b", "y", "true"));
    let [a, b, _] = &nodes.nodes;
    let script = format!("touch held2; {}", on(r#""unix:$THERE""#, "x", "true"));
    let plain = b.sh(&format!("canal run -k y -- sh -c '{script}'"));
    let plain = plain.env("THERE", a.socket()).spawn();
    wait_until("it holds the plain lock", || b.path("work").join("held2").exists());
    go(&nodes);
    let refused = plain.end().code(75);
    assert!(
        refused.stderr.contains("2 requests on nodes would wait for each other"),
        "{}",
        refused.stderr
    );
    one.end().code(0);
}

/// A plain `canal run` within a run over nodes names that run.
#[test]
fn a_ring_in_which_a_plain_run_waits_is_found() {
    let nodes = nodes();
    let plain = r#"canal --socket "$SECOND" run -k y -- true"#;
    let one = nested(&nodes, 1, ("a", "x"), plain);
    let two = nested(&nodes, 2, ("b", "y"), &on("a", "x", "true"));
    go(&nodes);
    tells(&two.end().code(75), 2, &["a", "b"]);
    one.end().code(0);
}

/// On each of two machines, a command waits at its own daemon for a key that the other machine has
/// locked there. `inner` asks for the key that follows it.
#[track_caller]
fn of_a_ring_at_two_daemons_the_younger_is_refused(inner: &str) {
    let nodes = nodes();
    let [a, b, _] = &nodes.nodes;
    let start = |here: &World, there: &World, outer, wanted| {
        let script = format!("touch held; until [ -e go ]; do sleep 0.05; done; {inner} {wanted}");
        let run = here.sh(&on(r#""unix:$THERE""#, outer, &format!("sh -c '{script}'")));
        let run = run.env("THERE", there.socket()).env("PROGRAM", std::env::current_exe().unwrap());
        let run = run.spawn();
        wait_until("it holds its first lock", || here.path("work").join("held").exists());
        run
    };
    let one = start(b, a, "x", "y");
    let two = start(a, b, "y", "x");
    for here in [a, b] {
        fs::write(here.path("work").join("go"), "").unwrap();
    }
    let refused = two.end().code(75);
    assert!(
        refused.stderr.contains("2 requests on nodes would wait for each other"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains(" on local, held by"), "{}", refused.stderr);
    one.end().code(0);
}

#[test]
fn of_a_ring_in_which_only_plain_runs_wait_the_younger_is_refused() {
    of_a_ring_at_two_daemons_the_younger_is_refused("exec canal run -c true -k");
}

#[test]
fn of_a_ring_in_which_only_leases_wait_the_younger_is_refused() {
    of_a_ring_at_two_daemons_the_younger_is_refused("exec canal acquire --ttl 10s -k");
}

#[test]
fn of_a_ring_in_which_locks_of_shells_wait_the_younger_is_refused() {
    of_a_ring_at_two_daemons_the_younger_is_refused("canal acquire --pid $$ -k");
}

#[test]
fn of_a_ring_in_which_leases_over_nodes_wait_the_younger_is_refused() {
    of_a_ring_at_two_daemons_the_younger_is_refused("canal acquire --on local --ttl 10s -k");
}

/// Takes the lock that a variable names, and ends as `canal run` does.
#[test]
#[ignore = "a program that the next test starts"]
fn a_program_that_uses_the_library() {
    let endpoint = Endpoint::new().program(crate::world::canal());
    let key = std::env::var("LIBRARY_KEY").unwrap();
    match Lock::new(key).endpoint(&endpoint).acquire() {
        Ok(guard) => drop(guard),
        Err(error) if error.kind() == ErrorKind::Deadlock => {
            let steps = error.cycle().iter();
            let at = |step: &CycleStepInfo| step.node.clone().unwrap_or_default();
            let steps: Vec<String> =
                steps.map(|step| format!("{} on {}, held by", step.key, at(step))).collect();
            eprintln!("{error}: {}", steps.join(" "));
            std::process::exit(75);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn of_a_ring_in_which_programs_wait_the_younger_is_refused() {
    of_a_ring_at_two_daemons_the_younger_is_refused(
        "uses() { export LIBRARY_KEY=$1; exec \"$PROGRAM\" --exact --ignored --nocapture \
         nodes::deadlock::a_program_that_uses_the_library; }; uses",
    );
}

/// The ids of the nodes decide which is asked first.
fn in_order(nodes: &Nodes) -> [usize; 2] {
    let text = fs::read_to_string(nodes.here.runtime().join("nodes.json")).unwrap();
    let met: serde_json::Value = serde_json::from_str(&text).unwrap();
    let id = |at: usize| {
        let address = format!("unix:{}", nodes.nodes[at].socket().display());
        met["nodes"][address]["node"].as_str().unwrap().to_owned()
    };
    if id(0) < id(1) { [0, 1] } else { [1, 0] }
}

#[test]
fn one_whose_command_has_not_begun_asks_anew_and_nobody_is_refused() {
    let nodes = nodes();
    let [first, second] = in_order(&nodes);
    let run = nested(&nodes, 1, (NAMES[second], "x"), &on(NAMES[first], "x", "true"));
    let both = nodes.here.sh(&on("a,b", "x", "true")).spawn();
    let waits = || nodes.nodes[second].key("x").waiting == 1 && nodes.nodes[first].held("x") == 1;
    wait_until("it has the one, and waits for the other", waits);
    go(&nodes);
    run.end().code(0);
    let gave_way = both.end().code(0);
    assert!(gave_way.stderr.contains("gave way to another request"), "{}", gave_way.stderr);
}

#[test]
fn one_that_is_merely_slow_is_no_deadlock() {
    let nodes = nodes();
    let script = "touch held0; until [ -e go ]; do sleep 0.05; done";
    let slow = nodes.here.sh(&on("b", "y", &format!("sh -c \"{script}\""))).spawn();
    let work = nodes.here.path("work");
    wait_until("the slow one holds", || work.join("held0").exists());
    let command = format!("sh -c \"touch held1; {}\"", on("b", "y", "true"));
    let waits = nodes.here.sh(&on("a", "x", &command)).spawn();
    wait_until("it holds its first lock", || work.join("held1").exists());
    let behind = nodes.here.sh(&on("a", "x", "true")).spawn();
    wait_until("both wait", || {
        nodes.nodes[1].key("y").waiting == 1 && nodes.nodes[0].key("x").waiting == 1
    });
    // By then they have looked a few times.
    std::thread::sleep(std::time::Duration::from_secs(13));
    assert_eq!((nodes.nodes[1].key("y").waiting, nodes.nodes[0].key("x").waiting), (1, 1));
    go(&nodes);
    for run in [slow, waits, behind] {
        let ended = run.end().code(0);
        assert!(!ended.stderr.contains("deadlock"), "{}", ended.stderr);
    }
}
