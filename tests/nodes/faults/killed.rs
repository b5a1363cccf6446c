//! `kill -9` of each process of a run over nodes, at each of its steps: afterwards no node holds
//! anything, and no two commands ran at once.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::nodes::run::Nodes;
use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::{Cmd, Proc, alive, children, installed_or_skip, wait_until};

/// A command that keeps a lock of the kernel while it runs, and notes if another one has it. It is
/// one process, so the lock ends with it.
fn command(seconds: &str) -> String {
    // If the step comes while the command runs, the command waits for it.
    format!(
        "exec 9>>witness; flock -n 9 || echo both >>overlaps; \
         while [ \"$STEP_METHOD\" = Renew ] && ! [ -e \"$STEP_AT\" ]; do sleep 0.1 9>&-; done; \
         exec sleep {seconds}"
    )
}

/// Stands in for ssh to one node. Between canal and the bridge it watches for a call, creates the
/// folder `$STEP_AT`, and then passes nothing further on: it drops the call, or only its answer.
/// Only the first to create that folder does so. It ends when canal closes its end, as ssh does.
/// The bridge's input stays open for longer than the TTL, as over a network that is cut.
const SSH: &str = r#"#!/usr/bin/perl
use strict;
use IO::Select;
shift while $ARGV[0] ne '--';
pipe(my $calls, my $to_bridge) && pipe(my $answers, my $from_bridge) or die;
if (!fork) {
    open STDIN, '<&', $calls; open STDOUT, '>&', $from_bridge;
    close $_ for $calls, $to_bridge, $answers, $from_bridge;
    $ENV{CANAL_SOCKET} = $ENV{STEP_SOCKET};
    exec 'sh', '-c', $ARGV[2];
}
close $_ for $calls, $from_bridge;
my $polled = IO::Select->new(\*STDIN, $answers);
while (1) {
    for my $from ($polled->can_read) {
        exit unless sysread $from, my $bytes, 1 << 16;
        if ($from == $answers) { syswrite STDOUT, $bytes; next }
        my $stops = $bytes =~ /\.$ENV{STEP_METHOD}"/ && mkdir $ENV{STEP_AT};
        if ($stops && !fork) {
            close $_ for \*STDIN, $answers;
            open STDOUT, '>&', $to_bridge;
            exec 'sleep', 12;
        }
        syswrite $to_bridge, $bytes unless $stops && $ENV{STEP_SIDE} eq 'call';
        if ($stops) { 1 while sysread STDIN, $bytes, 1 << 16; exit }
    }
}
"#;

const METHODS: [&str; 5] = ["Identify", "Collect", "ConfirmAt", "Renew", "Release"];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Parent,
    Coordinator,
    Ssh,
    Bridge,
    Daemon,
}

/// The coordinator: the child of the parent that leads a session.
pub(crate) fn coordinator(parent: i32) -> Option<i32> {
    let leads = |pid: &i32| nix::unistd::getsid(Some(Pid::from_raw(*pid))).ok().map(Pid::as_raw);
    children(parent).into_iter().find(|pid| alive(*pid) && leads(pid) == Some(*pid))
}

/// The processes of a world with these words in their command line.
pub(crate) fn with_words(world: &World, words: &[&str]) -> Vec<i32> {
    let has = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.iter().all(|word| line.iter().any(|it| it.ends_with(word.as_bytes())))
    };
    world.processes().into_iter().filter(has).collect()
}

pub(crate) fn kill_now(pid: i32) {
    signal_quietly(pid, Signal::SIGKILL);
}

/// Sends a signal to a process that may have ended by itself.
pub(crate) fn signal_quietly(pid: i32, which: Signal) {
    let _ = kill(Pid::from_raw(pid), which);
}

impl Victim {
    fn kill(self, nodes: &Nodes, run: &Proc) {
        let parent = run.pid();
        match self {
            Self::Parent => kill_now(parent),
            Self::Coordinator => coordinator(parent).into_iter().for_each(kill_now),
            Self::Ssh => {
                let ssh = coordinator(parent).map(children).unwrap_or_default();
                ssh.into_iter().for_each(kill_now);
            }
            Self::Bridge => {
                with_words(&nodes.here, &["canal", "bridge"]).into_iter().for_each(kill_now);
            }
            Self::Daemon => {
                nodes.nodes[1].kill_daemon_quietly();
            }
        }
    }
}

/// The nodes of a test; the second is reached over the stand-in for ssh.
struct Steps(Nodes);

impl Steps {
    fn new() -> Self {
        let nodes = Nodes::new();
        let dir = nodes.here.path("bin");
        fs::create_dir(&dir).unwrap();
        executable(dir.join("ssh"), SSH);
        let this = Self(nodes);
        // From now on, both names of the second node are known.
        this.stepping("Nothing", "call", "0").end().code(0);
        this.plain("0").end().code(0);
        this
    }

    fn words(on: &str, seconds: &str) -> Vec<String> {
        let words = ["run", "--on", on, "--ttl", "10s", "-k", "x", "--", "sh", "-c"];
        words.iter().map(|word| (*word).to_owned()).chain([command(seconds)]).collect()
    }

    /// A run that stops when it reaches this step.
    fn stepping(&self, method: &str, side: &str, seconds: &str) -> Cmd<'_> {
        let here = &self.0.here;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = [here.path("bin"), crate::world::canal().parent().unwrap().to_owned()];
        let dirs = own.into_iter().chain(std::env::split_paths(&path));
        here.canal(Self::words("a,ssh:b,c", seconds))
            .env("PATH", std::env::join_paths(dirs).unwrap())
            .env("STEP_SOCKET", self.0.nodes[1].socket())
            .env("STEP_METHOD", method)
            .env("STEP_SIDE", side)
            .env("STEP_AT", here.path("step"))
    }

    fn plain(&self, seconds: &str) -> Cmd<'_> {
        self.0.here.canal(Self::words("a,b,c", seconds))
    }

    /// Kills a process when a run has reached a step. Another run then gets the lock, and nothing
    /// is left.
    #[track_caller]
    fn kill_at(&self, victim: Victim, method: &str, side: &str) {
        let at = self.0.here.path("step");
        let what = format!("{victim:?} at the {side} of {method}");
        let seconds = if method == "Renew" { "3" } else { "1" };
        let run = self.stepping(method, side, seconds).spawn();
        wait_until(&format!("it has come to the {side} of {method}"), || at.exists());
        victim.kill(&self.0, &run);
        self.plain("0").end().code(0);
        let ended = run.end();
        assert!(!ended.stderr.contains("panicked"), "{what}: {}", ended.stderr);
        self.until_nothing_is_left(&what);
        fs::remove_dir(&at).unwrap();
    }

    #[track_caller]
    fn until_nothing_is_left(&self, what: &str) {
        self.0.until_free();
        let waiting = || self.0.nodes.iter().map(|node| node.key("x").waiting).sum::<u64>();
        wait_until(&format!("nobody waits after {what}"), || waiting() == 0);
        self.0.here.until_no_process(&format!("no process is left after {what}"));
        assert_eq!(self.0.here.read("overlaps"), "", "{what}: two commands ran at once");
    }
}

/// Kills a process at each step. The steps run in parallel, because each waits for the end of a
/// TTL.
#[track_caller]
fn each_step(victim: Victim) {
    if !installed_or_skip("perl", "kill -9 at each step") {
        return;
    }
    // A campaign has time for both sides of each step.
    let both = std::env::var_os("CAMPAIGN").is_some();
    std::thread::scope(|scope| {
        for (number, method) in METHODS.into_iter().enumerate() {
            let first = (number + victim as usize) % 2;
            let sides = [["call", "answer"][first], ["answer", "call"][first]];
            scope.spawn(move || {
                let steps = Steps::new();
                for side in &sides[..1 + usize::from(both)] {
                    steps.kill_at(victim, method, side);
                }
            });
        }
    });
}

#[test]
fn a_parent_that_is_killed_at_any_step_leaves_nothing() {
    each_step(Victim::Parent);
}

#[test]
fn a_coordinator_that_is_killed_at_any_step_leaves_nothing() {
    each_step(Victim::Coordinator);
}

#[test]
fn an_ssh_that_is_killed_at_any_step_leaves_nothing() {
    each_step(Victim::Ssh);
}

#[test]
fn a_bridge_that_is_killed_at_any_step_leaves_nothing() {
    each_step(Victim::Bridge);
}

#[test]
fn a_daemon_that_is_killed_at_any_step_leaves_nothing() {
    each_step(Victim::Daemon);
}
