//! `canal leader --on`: the leader is the request that enough nodes name.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::nodes::run::{NAMES, Nodes};
use crate::world::canal;
use crate::world::executable::executable;
use crate::world::process::{Cmd, Proc, children, signal, wait_until};

/// Nodes that are reached by an `ssh` that a test can break for each node.
struct Breakable(Nodes);

impl Breakable {
    fn new() -> Self {
        let nodes = Nodes::new();
        let bin = nodes.here.path("bin");
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(canal(), bin.join("program")).unwrap();
        for (name, node) in NAMES.iter().zip(&nodes.nodes) {
            fs::write(bin.join(format!("socket-{name}")), node.socket().as_os_str().as_bytes())
                .unwrap();
        }
        let script = r#"#!/bin/sh
            bin=${0%/*}
            for word; do case $word in web-*)
                name=${word#web-}
                [ -e "$bin/../down-$name" ] && { echo 'ssh: connect: Connection refused' >&2; exit 255; }
                exec "$bin/program" --socket "$(cat "$bin/socket-$name")" bridge;;
            esac; done
            exit 255
            "#;
        executable(bin.join("ssh"), script);
        Self(nodes)
    }

    /// `canal leader x --on … ARGS`.
    fn leader(&self, args: &[&str]) -> Cmd<'_> {
        let on = NAMES.map(|name| format!("ssh:web-{name}")).join(",");
        let words = ["leader", "x", "--on", &on];
        let path = format!(
            "{}:{}",
            self.0.here.path("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        self.0.here.canal(words.iter().chain(args)).env("PATH", path)
    }

    /// A candidate, which leads or waits until the test ends it.
    fn candidate(&self, note: &str) -> Proc {
        let words = ["run", "--on", "@all", "--require", "majority", "--ttl", "1m", "-k", "x"];
        let rest = ["--note", note, "--", "sleep", "600"];
        self.0.here.canal(words.iter().chain(&rest)).spawn()
    }

    /// Prevents new connections to these nodes, and ends the existing ones.
    fn break_off(&self, names: &[&str], watcher: &Proc) {
        for name in names {
            fs::write(self.0.here.path(&format!("down-{name}")), "").unwrap();
        }
        children(watcher.pid()).into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
    }

    fn mend(&self) {
        for name in NAMES {
            let _ = fs::remove_file(self.0.here.path(&format!("down-{name}")));
        }
    }

    fn waiting(&self) -> u64 {
        self.0.nodes.iter().map(|node| node.key("x").waiting).sum()
    }
}

/// The output lines of a watcher.
fn lines(watcher: &Proc) -> Vec<Value> {
    let text = watcher.stdout();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The meaning of a line: the note of the leader, `-` if there is none, `?` if that is unknown.
fn word(line: &Value) -> String {
    match (line["stale"].as_bool().unwrap(), line["leader"]["note"].as_str()) {
        (true, None) => "?".to_owned(),
        (false, note) => note.unwrap_or("-").to_owned(),
        (true, Some(note)) => panic!("{note} is not believed, and named all the same: {line}"),
    }
}

#[track_caller]
pub(crate) fn until(watcher: &Proc, said: &str) -> Value {
    wait_until(&format!("the watcher says {said}"), || {
        lines(watcher).last().is_some_and(|line| word(line) == said)
    });
    lines(watcher).pop().unwrap()
}

fn states(line: &Value) -> Vec<&str> {
    let nodes = line["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node["state"].as_str().unwrap()).collect()
}

#[test]
fn a_watcher_names_what_a_majority_says_while_nodes_come_and_go() {
    let nodes = Breakable::new();
    let watcher = nodes.leader(&["--watch"]).spawn();
    until(&watcher, "-");
    let first = nodes.candidate("one");
    let line = until(&watcher, "one");
    assert_eq!(line["need"], 2, "{line}");
    let second = nodes.candidate("two");
    wait_until("the second candidate waits", || nodes.waiting() > 0);

    // The loss of one node changes nothing.
    nodes.break_off(&["c"], &watcher);
    wait_until("it is said", || {
        watcher.stderr().contains("canal: ssh:web-c is unreachable: ssh: conn")
    });
    assert_eq!(lines(&watcher).len(), 2, "{}", watcher.stdout());
    nodes.break_off(&["b"], &watcher);
    until(&watcher, "?");
    let said = watcher.stderr();
    assert!(
        said.contains("the leader is unknown while ssh:web-b, ssh:web-c are unreachable"),
        "{said}"
    );
    nodes.mend();
    until(&watcher, "one");
    wait_until("both answer", || watcher.stderr().matches("is answering again").count() == 2);
    for node in &nodes.0.nodes {
        node.kill_daemon();
    }
    let token = |line: &Value| line["leader"]["token"].as_u64().unwrap();
    first.signal(Signal::SIGTERM);
    let last = until(&watcher, "two");
    assert!(token(&last) > token(&line), "{line} {last}");
    second.signal(Signal::SIGTERM);
    until(&watcher, "-");
    first.end();
    second.end();
    let mut said: Vec<String> = lines(&watcher).iter().map(word).collect();
    // Before the next one leads, the watcher may see the nodes disagree or restart.
    said.retain(|word| word != "?" && word != "-");
    said.dedup();
    assert_eq!(said, ["one", "two"]);
}

#[test]
fn one_question_is_answered_by_those_that_are_needed() {
    let nodes = Breakable::new();
    let none = nodes.leader(&[]).end().code(75);
    assert!(none.stderr.contains("no request holds it on 2 of the 3 nodes"), "{none:?}");
    let plain: Vec<Proc> = nodes.0.nodes.iter().map(|node| node.holder(&["-k", "x"])).collect();
    let line = nodes.leader(&["--json"]).end().code(75).json();
    assert_eq!(word(&line), "-", "a holder at each node is no leader: {line}");
    plain.into_iter().for_each(|holder| drop(holder.kill()));

    let leader = nodes.candidate("one");
    wait_until("it leads at each node", || {
        let asked = nodes.leader(&["--json", "--require", "all"]).end();
        asked.code == Some(0) && states(&asked.json()) == ["leader"; 3]
    });
    let asked = nodes.leader(&[]).end().code(0);
    assert!(asked.stdout.starts_with("leader of x: a lease requested by `sleep 600`"), "{asked:?}");
    assert!(asked.stdout.contains("note: one"), "{asked:?}");

    fs::write(nodes.0.here.path("down-a"), "").unwrap();
    let asked = nodes.leader(&[]).end().code(0);
    assert!(asked.stdout.contains("note: one"), "{asked:?}");
    let unsure = nodes.leader(&["--require", "all"]).end().code(125);
    assert!(
        unsure
            .stderr
            .contains("the leader of `x` is unknown: ssh:web-a is unreachable: ssh: connection"),
        "{unsure:?}"
    );
    fs::write(nodes.0.here.path("down-b"), "").unwrap();
    let unsure = nodes.leader(&["--json"]).end().code(125);
    assert_eq!(unsure.stdout, "");
    assert!(unsure.stderr.contains("ssh:web-b is unreachable"), "{unsure:?}");
    leader.signal(Signal::SIGTERM);
    leader.end();
}

#[test]
fn a_list_that_can_never_answer_is_an_error_and_no_watch() {
    let nodes = Breakable::new();
    let [a, b, _] = NAMES.map(|name| format!("ssh:web-{name}"));
    let twice = format!("{a},{}", NAMES[0]);
    let path = format!("{}:/usr/bin:/bin", nodes.0.here.path("bin").display());
    let leader = |on: &str| {
        nodes.0.here.canal(["leader", "x", "--watch", "--on", on]).env("PATH", &path).end()
    };
    let one_daemon = leader(&twice).code(125);
    assert!(one_daemon.stderr.contains("are the same daemon"), "{one_daemon:?}");
    executable(nodes.0.here.path("bin").join("ssh"), "#!/bin/sh\nexit 127\n");
    let without = leader(&format!("{a},{b}")).code(125);
    assert!(without.stderr.contains("there is no `canal` on that machine"), "{without:?}");
}
