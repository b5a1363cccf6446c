//! `canal run --on`: enough nodes hold the lock while the command runs, and none after it, whatever
//! is killed.

use std::fs;
use std::io::pipe;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::{
    Cmd, Proc, alive, children, installed_or_skip, root_or_skip, signal, sleeps, state, wait_until,
};

/// The shortest TTL.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// When every lease with this TTL has ended that nothing renews.
pub(crate) const PAST_TTL: Duration = Duration::from_secs(12);

/// Three daemons, and a place for the commands that ask them.
pub(crate) struct Nodes {
    pub(crate) here: World,
    pub(crate) nodes: [World; 3],
}

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// A node with new state grants nothing for this time.
const CONFIGURATION: &str = "[nodes]\nlongest_ttl = \"10s\"\n";

/// The files of a node that has granted before. Its operator states its first start, because it
/// would otherwise grant nothing until [`TTL`] is over, and the other tests wait for these files.
static STATE: LazyLock<[(&str, Vec<u8>); 4]> = LazyLock::new(|| {
    let node = World::new();
    node.configure(CONFIGURATION);
    let daemon = first_start(&node);
    run_at(&node, &[]).end().code(0);
    node.canal(["daemon", "--stop"]).end().code(0);
    daemon.end().code(0);
    ["state.json", "journal.0", "journal.1", "leases.log"]
        .map(|file| (file, fs::read(node.runtime().join(file)).unwrap()))
});

fn new_node(configuration: &str) -> World {
    let node = World::new();
    node.configure(configuration);
    node.status();
    node
}

/// A node that has granted before.
fn with_state() -> World {
    let node = World::new();
    node.configure("[nodes]\nlongest_ttl = \"1h\"\n");
    for (file, content) in &*STATE {
        fs::write(node.runtime().join(file), content).unwrap();
    }
    node.status();
    node
}

/// `canal run` over one node.
fn run_at<'w>(node: &'w World, args: &[&str]) -> Cmd<'w> {
    let on = format!("unix:{}", node.socket().display());
    let words = ["run", "--on", &on, "--ttl", "10s", "-k", "x"];
    node.canal(words.into_iter().chain(args.iter().copied()).chain(["--", "true"]))
}

impl Nodes {
    pub(crate) fn new() -> Self {
        let nodes = [with_state(), with_state(), with_state()];
        let here = World::new();
        let mut config = "[node_groups]\nall = [\"a\", \"b\", \"c\"]\n[nodes]\n".to_owned();
        for (name, node) in NAMES.iter().zip(&nodes) {
            config += &format!("{name} = \"unix:{}\"\n", node.socket().display());
        }
        here.configure(&config);
        Self { here, nodes }
    }

    /// `canal run --on @all --ttl 10s ARGS`.
    pub(crate) fn run(&self, args: &[&str]) -> Cmd<'_> {
        let words = ["run", "--on", "@all", "--ttl", "10s", "-k", "x"];
        self.here.canal(words.iter().chain(args))
    }

    pub(crate) fn held(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.held("x")).collect()
    }

    /// Waits until this many requests wait at the node that is asked first.
    pub(crate) fn until_waiting(&self, waiting: u64) {
        wait_until(&format!("{waiting} wait for x"), || {
            self.nodes.iter().map(|node| node.key("x").waiting).sum::<u64>() == waiting
        });
    }

    pub(crate) fn until_free(&self) {
        wait_until("nothing is left on any node", || self.held() == [0, 0, 0]);
    }

    /// Starts a command that ends with its standard input, and waits until it runs.
    fn start(&self, args: &[&str]) -> (Proc, i32) {
        self.start_with(self.run(args))
    }

    /// The same over ssh.
    fn start_over_ssh(&self) -> (Proc, i32) {
        self.start_with(self.run_over_ssh("ssh:a,ssh:b,ssh:c"))
    }

    /// `canal run --on ON --ttl 10s`, with a shell in place of ssh.
    fn run_over_ssh(&self, on: &str) -> Cmd<'_> {
        let path = self.path_with_ssh();
        self.here.canal(["run", "--on", on, "--ttl", "10s", "-k", "x"]).env("PATH", &path)
    }

    /// A PATH with a shell in place of ssh.
    pub(crate) fn path_with_ssh(&self) -> String {
        let script = r#"CANAL_SOCKET=$(cat "${0%/*}/socket-of-$host") exec sh -c "$command""#;
        let path = stand_in(self, script);
        for (name, node) in NAMES.iter().zip(&self.nodes) {
            let file = self.here.path("bin").join(format!("socket-of-{name}"));
            fs::write(file, node.socket().as_os_str().as_bytes()).unwrap();
        }
        path
    }

    fn start_with(&self, run: Cmd<'_>) -> (Proc, i32) {
        let script = "echo $$ > started.tmp; mv started.tmp started; exec cat";
        let _ = fs::remove_file(self.here.path("work").join("started"));
        let run = run.args(["--", "sh", "-c", script]).stdin(std::process::Stdio::piped()).spawn();
        wait_until("the command runs", || !self.here.read("started").is_empty());
        let command = self.here.read("started").trim().parse().unwrap();
        (run, command)
    }
}

/// The process that starts as the parent of a command, not the one that becomes the command.
pub(crate) fn parent(command: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The coordinator: the child of the parent that leads a session.
pub(crate) fn coordinator(parent: i32, command: i32) -> Option<i32> {
    let living = children(parent).into_iter().filter(|pid| *pid != command && alive(*pid));
    living.into_iter().find(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let session = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(3));
        session == Some(&pid.to_string())
    })
}

#[test]
fn a_node_whose_state_is_new_grants_nothing_until_the_longest_ttl_is_over() {
    let node = new_node("[nodes]\nlongest_ttl = \"1h\"\n");
    let early = run_at(&node, &["-n"]).end().code(125);
    assert!(early.stderr.contains("is new or has lost its state"), "{}", early.stderr);
    assert!(early.stderr.contains("does not grant node leases yet"), "{}", early.stderr);
    let before = Instant::now();
    let node = new_node(CONFIGURATION);
    run_at(&node, &[]).end().code(0);
    assert!(before.elapsed() >= TTL, "{:?}", before.elapsed());
}

/// Starts a daemon that states that it has granted nothing before.
fn first_start(node: &World) -> Proc {
    let daemon = node.canal(["daemon", "--first-start"]).spawn();
    wait_until("the daemon answers", || {
        assert!(alive(daemon.pid()), "{}", daemon.stderr());
        node.socket().exists() && !node.daemon_pids().is_empty()
    });
    daemon
}

#[test]
fn a_node_that_states_its_first_start_grants_at_once() {
    let node = World::new();
    node.configure("[nodes]\nlongest_ttl = \"1h\"\n");
    let daemon = first_start(&node);
    run_at(&node, &["-n"]).end().code(0);
    node.canal(["daemon", "--stop"]).end().code(0);
    daemon.end().code(0);
    // The next daemon knows the grants of the first one.
    run_at(&node, &["-n"]).end().code(0);
}

#[test]
fn the_statement_of_a_first_start_is_refused_after_an_earlier_life() {
    // Any one of the files of an earlier daemon is enough, whether or not it granted anything.
    for file in ["state.json", "leases.log", "journal.0", "journal.1"] {
        let node = World::new();
        fs::write(node.runtime().join(file), "").unwrap();
        refuses_first_start(&node, file);
    }
    let node = new_node(CONFIGURATION);
    node.canal(["daemon", "--stop"]).end().code(0);
    refuses_first_start(&node, "exists");
    // It stays a new node, and counts the time from its own start.
    let early = run_at(&node, &["-n"]).end().code(125);
    assert!(early.stderr.contains("does not grant node leases yet"), "{}", early.stderr);
}

#[track_caller]
fn refuses_first_start(node: &World, file: &str) {
    let refused = node.canal(["daemon", "--first-start"]).end().code(125);
    let why = "--first-start declares that no daemon has run here before, but one has";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    assert!(refused.stderr.contains(file), "{}", refused.stderr);
}

#[test]
fn the_statement_of_a_first_start_goes_with_no_other_kind_of_start() {
    let node = World::new();
    for other in ["--replace", "--stop", "--reload", "--discard-journal", "--engine=etcd://x"] {
        node.canal(["daemon", "--first-start", other]).end().code(125);
    }
}

#[test]
fn one_line_names_all_new_nodes_and_the_time_of_the_first_grant() {
    let nodes = [0, 1, 2].map(|_| new_node("[nodes]\nlongest_ttl = \"1h\"\n"));
    let here = World::new();
    let mut config = "[nodes]\n".to_owned();
    for (name, node) in NAMES.iter().zip(&nodes) {
        config += &format!("{name} = \"unix:{}\"\n", node.socket().display());
    }
    here.configure(&config);
    let words = ["run", "--on", "a,b,c", "--ttl", "10s", "-k", "x", "--", "true"];
    let waiting = here.canal(words).spawn();
    let line = " waiting for 3 new nodes (a, b, c): first grant in ";
    wait_until("the line names them", || waiting.stderr().contains(line));
    assert_eq!(waiting.stderr().matches("new node").count(), 1, "{}", waiting.stderr());
    signal(waiting.pid(), Signal::SIGTERM);
    waiting.end();
}

#[test]
fn all_any_and_majority_hold_the_lock_where_they_say_and_leave_nothing() {
    let nodes = Nodes::new();
    let (run, _) = nodes.start(&[]);
    assert_eq!(nodes.held(), [1, 1, 1]);
    let refused = nodes.run(&["-n", "--", "true"]).end().code(75);
    assert!(refused.stderr.contains("is full"), "{}", refused.stderr);
    run.finish().code(0);
    // The lock was released before canal ended.
    assert_eq!(nodes.held(), [0, 0, 0]);

    let (run, _) = nodes.start(&["--require", "majority"]);
    wait_until("a majority holds it", || nodes.held().iter().sum::<u64>() >= 2);
    nodes.run(&["-n", "--require", "majority", "--", "true"]).end().code(75);
    run.finish().code(0);
    assert_eq!(nodes.held(), [0, 0, 0]);

    let (run, _) = nodes.start(&["--require", "any"]);
    wait_until("surplus is given back", || nodes.held().iter().sum::<u64>() == 1);
    run.finish().code(0);
    nodes.until_free();

    let env = nodes.run(&["--require", "any", "--", "env"]).end().code(0).stdout;
    let value = |name: &str| {
        env.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).map(str::to_owned)
    };
    assert!(NAMES.contains(&value("CANAL_NODE").unwrap().as_str()), "{env}");
    assert_eq!(value("CANAL_NODE"), value("CANAL_NODES"));
    assert_eq!(value("CANAL_SLOT").as_deref(), Some("0"));
    let env = nodes.run(&["--", "env"]).end().code(0).stdout;
    assert!(env.contains("CANAL_TOKEN="), "{env}");
    assert!(!env.contains("CANAL_SLOT"), "{env}");
    let alive = nodes.run(&["--require", "all-alive", "--", "env"]).end().code(0).stdout;
    assert!(!alive.contains("CANAL_TOKEN="), "{alive}");
}

#[test]
fn tokens_grow_from_command_to_command_over_any_majority() {
    let nodes = Nodes::new();
    nodes.run(&["--", "true"]).end().code(0);
    let mut before = 0;
    for round in 0..6 {
        // Another node is silent each time, so the majority differs each time.
        let silent = nodes.nodes[round % 3].daemon_pid();
        signal(silent, Signal::SIGSTOP);
        let words = ["--require", "majority", "--", "sh", "-c", "echo $CANAL_TOKEN"];
        let out = nodes.run(&words).end().code(0).stdout;
        signal(silent, Signal::SIGCONT);
        let token: u64 = out.trim().parse().unwrap();
        assert!(token > before, "{token} after {before}");
        before = token;
    }
}

#[test]
fn of_two_that_do_not_wait_one_wins() {
    let nodes = Nodes::new();
    nodes.run(&["--", "true"]).end().code(0);
    for _ in 0..5 {
        let start = || nodes.run(&["-n", "--", "cat"]).stdin(std::process::Stdio::piped()).spawn();
        let (mut one, mut other) = (start(), start());
        wait_until("one has ended", || one.has_ended() || other.has_ended());
        let (loser, winner) = if one.has_ended() { (one, other) } else { (other, one) };
        loser.end().code(75);
        winner.finish().code(0);
        nodes.until_free();
    }
}

#[test]
fn a_killed_coordinator_is_replaced_and_the_lock_stays_held() {
    let nodes = Nodes::new();
    let (run, command) = nodes.start(&["--require", "majority"]);
    let parent = parent(command);
    let first = coordinator(parent, command).unwrap();
    signal(first, Signal::SIGKILL);
    wait_until("there is another one", || {
        coordinator(parent, command).is_some_and(|pid| pid != first)
    });
    // Its leases would have ended by now.
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "the command keeps running");
        assert!(nodes.held().iter().sum::<u64>() >= 2);
        std::thread::sleep(Duration::from_millis(200));
    }
    run.finish().code(0);
    nodes.until_free();
}

#[test]
fn what_a_killed_coordinator_leaves_is_reaped_while_the_command_runs() {
    let nodes = Nodes::new();
    let (run, command) = nodes.start_over_ssh();
    let parent = parent(command);
    for _ in 0..2 {
        let first = coordinator(parent, command).unwrap();
        wait_until("it has its ssh processes", || children(first).len() == 3);
        let ssh = children(first);
        signal(first, Signal::SIGKILL);
        wait_until("there is another one", || {
            coordinator(parent, command).is_some_and(|pid| pid != first)
        });
        // A zombie has a state, too.
        wait_until("it and its ssh processes are gone", || {
            ssh.iter().chain([&first]).all(|pid| state(*pid).is_none())
        });
        assert!(alive(command));
    }
    run.finish().code(0);
    nodes.until_free();
}

#[test]
fn a_command_whose_parent_is_killed_keeps_the_lock_until_it_ends() {
    let nodes = Nodes::new();
    let (run, command) = nodes.start(&[]);
    let parent = parent(command);
    signal(parent, Signal::SIGKILL);
    wait_until("it is gone", || !alive(parent));
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "the command keeps running");
        assert_eq!(nodes.held(), [1, 1, 1]);
        std::thread::sleep(Duration::from_millis(200));
    }
    signal(command, Signal::SIGKILL);
    nodes.until_free();
    drop(run);
}

#[test]
fn nodes_that_are_killed_and_come_back_cost_the_command_nothing() {
    let nodes = Nodes::new();
    let (run, command) = nodes.start(&[]);
    for node in &nodes.nodes {
        node.kill_daemon();
    }
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "the command keeps running");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(nodes.held(), [1, 1, 1]);
    run.finish().code(0);
    nodes.until_free();
}

#[test]
fn a_majority_survives_the_loss_of_any_one_node() {
    std::thread::scope(|scope| {
        for lost in 0..NAMES.len() {
            scope.spawn(move || a_majority_survives_the_loss_of(lost));
        }
    });
}

#[track_caller]
fn a_majority_survives_the_loss_of(lost: usize) {
    let nodes = Nodes::new();
    let (run, command) = nodes.start(&["--require", "majority"]);
    wait_until("the third holds it, too", || nodes.held() == [1, 1, 1]);
    let daemon = nodes.nodes[lost].daemon_pid();
    signal(daemon, Signal::SIGSTOP);
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "without {}", NAMES[lost]);
        std::thread::sleep(Duration::from_millis(200));
    }
    signal(daemon, Signal::SIGCONT);
    run.finish().code(0);
    nodes.until_free();
}

#[test]
fn a_node_that_hangs_is_passed_over_while_enough_others_answer() {
    let nodes = Nodes::new();
    let daemon = nodes.nodes[0].daemon_pid();
    signal(daemon, Signal::SIGSTOP);
    let begun = Instant::now();
    let never_met = nodes.run(&["-n", "--", "true"]).end().code(125);
    assert!(
        never_met.stderr.contains("cannot reach a, which canal has never reached"),
        "{}",
        never_met.stderr
    );
    assert!(begun.elapsed() < Duration::from_secs(20), "it waited for as long as without -n");
    signal(daemon, Signal::SIGCONT);
    nodes.run(&["--", "true"]).end().code(0);
    for (node, name) in nodes.nodes.iter().zip(NAMES) {
        let daemon = node.daemon_pid();
        signal(daemon, Signal::SIGSTOP);
        for how in ["-n", "-w4"] {
            nodes.run(&[how, "--require", "majority", "--", "true"]).end().code(0);
        }
        let needed = nodes.run(&["-w3", "--", "true"]).end().code(75);
        let expected = format!("the wait timed out; {name} does not answer");
        assert!(needed.stderr.contains(&expected), "{}", needed.stderr);
        signal(daemon, Signal::SIGCONT);
        nodes.until_free();
    }
}

/// A process and all below it, without daemons that it started.
fn family(pid: i32) -> Vec<i32> {
    let line = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_daemon = |pid: &i32| line(pid).split(|byte| *byte == 0).nth(1) == Some(b"daemon");
    let below = children(pid).into_iter().filter(|pid| !is_daemon(pid));
    below.flat_map(family).chain([pid]).collect()
}

/// A run has this many processes: its parent, its coordinator with an ssh for each node of another
/// machine, and its command or the child that waits to become it. All together wake less than once
/// a second.
#[track_caller]
pub(crate) fn rests(run: &Proc, processes: usize) {
    wait_until("it has its processes", || family(run.pid()).len() == processes);
    let slept = || family(run.pid()).into_iter().map(sleeps).sum::<u64>();
    // Nodes may still join during the first seconds, and a busy machine causes more wake-ups. One
    // that polls never has such a quiet time.
    let seconds = Duration::from_secs(10);
    let mut before = (Instant::now(), slept());
    wait_until("its processes wake less than once a second", || {
        let now = (Instant::now(), slept());
        if now.0 - before.0 < seconds {
            return false;
        }
        let slept = now.1 - std::mem::replace(&mut before, now).1;
        slept < seconds.as_secs()
    });
    assert_eq!(family(run.pid()).len(), processes);
}

#[test]
fn a_run_has_three_processes_that_rest_while_it_holds_and_while_it_waits() {
    let nodes = Nodes::new();
    // The clients start the daemons.
    nodes.nodes.iter().for_each(|node| _ = node.kill_daemon_quietly());
    let minute = ["run", "--on", "@all", "--ttl", "1m", "-k", "x"];
    let (holder, _) = nodes.start_with(nodes.here.canal(minute));
    let waiter = nodes.here.canal(minute).args(["--", "true"]).spawn();
    nodes.until_waiting(1);
    std::thread::scope(|scope| {
        for run in [&holder, &waiter] {
            scope.spawn(move || rests(run, 3));
        }
    });
    holder.finish().code(0);
    waiter.end().code(0);
    nodes.until_free();
}

#[test]
fn a_command_is_killed_before_its_lock_can_be_taken() {
    let nodes = Nodes::new();
    let (run, command) = nodes.start(&[]);
    let daemon = nodes.nodes[1].daemon_pid();
    // The last renewal was sent earlier.
    let stopped = Instant::now();
    signal(daemon, Signal::SIGSTOP);
    wait_until("canal ends the command", || !alive(command));
    assert!(stopped.elapsed() < TTL, "{:?}", stopped.elapsed());
    let ended = run.end().code(122);
    assert!(ended.stderr.contains("lost `x`"), "{}", ended.stderr);
    assert!(ended.stderr.contains("b has not answered since"), "{}", ended.stderr);
    signal(daemon, Signal::SIGCONT);
    nodes.until_free();
}

#[test]
fn ctrl_c_while_it_waits_leaves_nothing() {
    let nodes = Nodes::new();
    let (run, _) = nodes.start(&[]);
    let waiter = nodes.run(&["--", "true"]).spawn();
    let waiting = || nodes.nodes.iter().map(|node| node.key("x").waiting).sum::<u64>();
    wait_until("it waits at the first node", || waiting() == 1);
    waiter.signal(Signal::SIGINT);
    assert_eq!(waiter.end().signal, Some(libc::SIGINT));
    wait_until("it is withdrawn", || waiting() == 0);
    run.finish().code(0);
    nodes.until_free();
}

#[test]
fn lists_and_options_that_cannot_be_used_are_one_line_with_a_hint() {
    let nodes = Nodes::new();
    let a = nodes.nodes[0].socket();
    let again = format!("a,unix:{}", a.parent().unwrap().join("../run/canal.sock").display());
    for (args, message, hint) in [
        (&["--on", "wbe"][..], "unknown node `wbe`", "[nodes] of "),
        (&["--on", "@al"], "unknown group `@al`", "did you mean @all?"),
        (&["--on", "a,a"], "a is named twice", "name each node once"),
        (&["--on", ""], "the list of nodes is empty", "write a list like"),
        (&["--on", &again], " are the same daemon: ", "name each daemon once"),
        (&["--on", "ssh:-oProxyCommand=x"], "cannot begin with `-`", ""),
        (&["--on", "a", "--ttl", "9s"], "at least 10s", "no time to reconnect"),
        (&["--ttl", "20s"], "--ttl needs --on", ""),
        (&["--require", "all"], "--on", ""),
        (
            &["--on", "a,unix:/proc/nope/s"],
            "cannot reach unix:/proc/nope/s, which canal has never reached",
            "",
        ),
    ] {
        let words = ["run", "-k", "x"].iter().chain(args).chain(&["--", "true"]);
        let ended = nodes.here.canal(words).end().code(125);
        assert!(ended.stderr.contains(message), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(hint), "{args:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
    let write = ["run", "--on", "@all", "--require", "majority", "--write", "x", "--", "true"];
    let ended = nodes.here.canal(write).end().code(125);
    assert!(ended.stderr.contains("block all nodes with --require all"), "{}", ended.stderr);
    assert_eq!(nodes.held(), [0, 0, 0]);
}

#[test]
fn a_node_that_is_another_daemon_than_before_is_refused() {
    let nodes = Nodes::new();
    nodes.run(&["--", "true"]).end().code(0);
    let pins = nodes.here.runtime().join("nodes.json");
    let text = fs::read_to_string(&pins).unwrap();
    let mut met: serde_json::Value = serde_json::from_str(&text).unwrap();
    let first = met["nodes"].as_object_mut().unwrap().values_mut().next().unwrap();
    first["node"] = format!("{:032x}", 7).into();
    fs::write(&pins, met.to_string()).unwrap();
    let ended = nodes.run(&["--", "true"]).end().code(125);
    assert!(ended.stderr.contains("is now a different daemon"), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: if that is intended"), "{}", ended.stderr);
    nodes.until_free();
}

/// Puts a program named `ssh` before the real one. `$host` is the host that canal wants to reach,
/// `$command` the command to run there.
fn stand_in(nodes: &Nodes, script: &str) -> String {
    let dir = nodes.here.path("bin");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("ssh");
    let text = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nhost=$2 command=$3\n{script}\n"
    );
    executable(path, &text);
    let canal = crate::world::canal().parent().unwrap().display();
    format!("{}:{canal}:{}", dir.display(), std::env::var("PATH").unwrap())
}

#[test]
fn nodes_are_reached_over_ssh() {
    let nodes = Nodes::new();
    let env = nodes.run_over_ssh("ssh:a,ssh:u@b:2222").args(["--", "env"]).end().code(0).stdout;
    let names = env.lines().find_map(|line| line.strip_prefix("CANAL_NODES=")).unwrap();
    let mut names: Vec<&str> = names.split(',').collect();
    names.sort_unstable();
    assert_eq!(names, ["ssh:a", "ssh:u@b:2222"]);
    nodes.until_free();
}

#[test]
fn an_ssh_that_could_not_connect_is_reaped_while_the_command_runs() {
    let nodes = Nodes::new();
    let path = stand_in(&nodes, "exit 1");
    let script = "echo $$ > started.tmp; mv started.tmp started; cat";
    let words = [
        "run",
        "--on",
        "a,ssh:web1",
        "--require",
        "any",
        "--ttl",
        "10s",
        "-k",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ];
    let run =
        nodes.here.canal(words).env("PATH", &path).stdin(std::process::Stdio::piped()).spawn();
    wait_until("the command runs", || !nodes.here.read("started").is_empty());
    let command = nodes.here.read("started").trim().parse().unwrap();
    let coordinator = coordinator(parent(command), command).unwrap();
    wait_until("nothing is left of it", || {
        children(coordinator).into_iter().all(|pid| state(pid) != Some('Z'))
    });
    assert!(alive(command));
    run.finish().code(0);
}

#[test]
fn what_ssh_says_is_said_with_what_to_do() {
    let nodes = Nodes::new();
    for (script, message, hint) in [
        (
            "echo \"u@$host: Permission denied (publickey,password).\" >&2; exit 255",
            ": permission denied; it asks for a password",
            "`ssh-copy-id` installs your key there",
        ),
        (
            "echo \"ssh: Could not resolve hostname $host: Name or service not known\" >&2; exit 255",
            "no such host",
            "make `ssh web1` work",
        ),
        (
            "echo 'sh: canal: not found' >&2; exit 127",
            "there is no `canal` on that machine",
            "install canal there",
        ),
        (
            "echo 'canal: unknown command `bridge`' >&2; exit 125",
            "the canal there is older",
            "install the same version",
        ),
        (
            "echo 'welcome to web1'; cat",
            "expected an answer from canal, but the other side sent",
            "login script",
        ),
    ] {
        let path = stand_in(&nodes, script);
        let words = ["run", "--on", "a,ssh:web1", "-k", "x", "--", "true"];
        let ended = nodes.here.canal(words).env("PATH", &path).end().code(125);
        assert!(ended.stderr.contains(message), "{script}: {}", ended.stderr);
        assert!(ended.stderr.contains(hint), "{script}: {}", ended.stderr);
    }
    assert_eq!(nodes.held(), [0, 0, 0]);
}

#[test]
fn a_first_meeting_that_breaks_off_is_repeated_within_the_wait() {
    let nodes = Nodes::new();
    let run = |on: &str, script: &str, wait: &str| {
        nodes.path_with_ssh();
        let path = stand_in(&nodes, script);
        let words = ["run", "--on", on, "--ttl", "10s", "-w", wait, "-k", "x", "--", "true"];
        nodes.here.canal(words).env("PATH", &path).end()
    };
    // The first connection ends before the other side reads anything, the second one while the node
    // is to identify itself.
    let breaks_twice = r#"times="${0%/*}/times-$host"
if mkdir "$times-1" 2>/dev/null; then exit 255; fi
if mkdir "$times-2" 2>/dev/null; then head -c 1 >/dev/null; exit 255; fi
CANAL_SOCKET=$(cat "${0%/*}/socket-of-$host") exec sh -c "$command""#;
    let met = run("ssh:a,ssh:b", breaks_twice, "60s").code(0);
    for name in ["ssh:a", "ssh:b"] {
        let said = format!("cannot reach {name} yet: ssh: the connection was closed");
        assert_eq!(met.stderr.matches(&said).count(), 1, "{}", met.stderr);
    }
    // It is never reached, and the others were.
    let breaks_always = r#"if [ "$host" = d ]; then exit 255; fi
CANAL_SOCKET=$(cat "${0%/*}/socket-of-$host") exec sh -c "$command""#;
    let refused = run("ssh:a,ssh:d", breaks_always, "1s").code(125);
    let said = "cannot reach ssh:d, which canal has never reached: ssh: the connection was closed";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    nodes.until_free();
}

#[test]
fn a_killed_bridge_is_replaced() {
    let nodes = Nodes::new();
    let (run, command) = nodes.start_over_ssh();
    let coordinator = coordinator(parent(command), command).unwrap();
    wait_until("it has its bridges", || children(coordinator).len() == 3);
    children(coordinator).into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "the command keeps running");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(nodes.held(), [1, 1, 1]);
    run.finish().code(0);
    nodes.until_free();
}

/// The first child of the run becomes process 1 there, and getppid(2) shows none of them its
/// parent.
#[test]
fn a_run_whose_children_get_a_pid_namespace_waits_as_long_as_it_lives() {
    let what = "a run over nodes with its children in another pid namespace";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) {
        return;
    }
    let nodes = Nodes::new();
    let (holder, _) = nodes.start(&[]);
    let args = ["-p", "canal", "run", "--on", "@all", "--ttl", "10s", "-k", "x", "--", "true"];
    let waiter = || {
        let waiter = nodes.here.program("unshare", args).spawn();
        nodes.until_waiting(1);
        waiter
    };
    waiter().kill();
    nodes.until_waiting(0);
    let waiter = waiter();
    holder.finish().code(0);
    waiter.end().code(0);
    nodes.until_free();
}

#[test]
fn a_wait_whose_output_nobody_can_read_is_abandoned_at_its_node() {
    let nodes = Nodes::new();
    let (holder, _) = nodes.start(&[]);
    let over_nodes = ["--on", "@all", "--ttl", "10s", "-k", "x"];
    let abandoned = || {
        let at = |node: &World| {
            let shown = node.canal(["history", "--json", "x"]).end().code(0).json();
            let records = shown["records"].as_array().unwrap();
            records.iter().filter(|record| record["how"] == "abandoned").count()
        };
        nodes.nodes.iter().map(at).sum::<usize>()
    };
    for (verb, rest) in [("run", &["--", "true"][..]), ("acquire", &[])] {
        let before = abandoned();
        let ((out, stdout), (err, stderr)) = (pipe().unwrap(), pipe().unwrap());
        let args = [verb].into_iter().chain(over_nodes).chain(rest.iter().copied());
        let waiter = nodes.here.canal(args).stdout(stdout).stderr(stderr).spawn();
        nodes.until_waiting(1);
        drop((out, err));
        waiter.end().code(75);
        // On a busy machine, it may also have asked another node.
        wait_until("its end is recorded", || abandoned() > before);
    }
    holder.finish().code(0);
    nodes.until_free();
}

/// Two majorities share one node, which neither of them needs.
#[test]
fn of_two_majorities_with_one_node_in_common_the_second_is_refused_if_that_can_be_asked() {
    let nodes = Nodes::new();
    let more = [with_state(), with_state()];
    let all = || nodes.nodes.iter().chain(&more);
    let address = |node: &World| format!("unix:{}", node.socket().display());
    let on = all().map(address).collect::<Vec<_>>().join(",");
    let order = nodes.here.canal(["run", "--on", &on, "-k", "y", "--", "printenv", "CANAL_NODES"]);
    let order = order.end().code(0).stdout;
    let order: Vec<&str> = order.trim().split(',').collect();
    let list = |at: [usize; 3]| at.map(|at| order[at]).join(",");
    let (first, second) = (list([0, 1, 4]), list([2, 3, 4]));
    let common = all().find(|node| address(node) == order[4]).unwrap();
    let majority = |on: &str| {
        let words = ["run", "--on", on, "--require", "majority", "--ttl", "10s", "-k", "x"];
        nodes.here.canal(words)
    };
    let start = |on: &str, name: &str| {
        let script = format!("touch {name}; cat");
        let run = majority(on).args(["--", "sh", "-c", &script]);
        let run = run.stdin(std::process::Stdio::piped()).spawn();
        wait_until("the command runs", || nodes.here.path("work").join(name).exists());
        run
    };
    // The common node's own job keeps it from granting a part, but it still knows the list.
    for key in ["z", "x"] {
        let job = common.canal(["run", "-k", key, "--", "cat"]);
        let job = job.stdin(std::process::Stdio::piped()).spawn();
        wait_until("the job runs", || common.held(key) == 1);
        let runs = start(&first, key);
        let refused = majority(&second).args(["-w", "5s", "--", "true"]).end().code(125);
        assert!(refused.stderr.contains("is in use on another list of nodes"), "{refused:?}");
        runs.finish().code(0);
        job.finish().code(0);
    }
    // A run that does not reach it in time runs, and reports it later, when it does.
    let runs = start(&first, "one");
    wait_until("the common node takes part", || common.held("x") == 1);
    let daemon = common.daemon_pid();
    signal(daemon, Signal::SIGSTOP);
    let also_runs = start(&second, "other");
    signal(daemon, Signal::SIGCONT);
    wait_until("it says so", || also_runs.stderr().contains("does not take part in the lock"));
    let doctor = common.canal(["doctor"]).end().stdout;
    assert!(doctor.contains("might run at the same time: `x` is in use on"), "{doctor}");
    let history = common.canal(["history"]).end().stdout;
    assert!(history.contains("mismatch"), "{history}");
    also_runs.finish().code(0);
    runs.finish().code(0);
}
