//! Scripts that take one lock within another, and go on when the test tells them to.
//!
//! A script holds its first lock, and for each line on its standard input takes a step. So a test
//! says in which order things happen, and nothing depends on how fast they do.

use std::io::Write as _;
use std::process::Stdio;

use canal::protocol::{KeyInfo, Waits};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::peer::Peer;
use crate::process::{Ended, Proc, signal, state, wait_until};
use crate::world::World;

/// A shell that runs under `canal run OUTER` and, at a word, runs `canal run INNER`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) proc: Proc,
    inner: String,
    /// The key of the inner lock.
    key: String,
}

impl Script {
    /// Holds `outer`; the command within `inner` notes `name`.
    #[track_caller]
    pub(crate) fn start(world: &World, name: &str, outer: &str, inner: &str) -> Self {
        let noted = format!("sh -c 'echo \"+ {name}\" >>events; echo \"- {name}\" >>events'");
        Self::doing(world, outer, inner, &noted)
    }

    /// The same with another command.
    #[track_caller]
    pub(crate) fn doing(world: &World, outer: &str, inner: &str, command: &str) -> Self {
        let inner = format!("canal run {inner} -- {command}");
        let body = format!("read go && {inner}; exit $?");
        let args = [&["run"][..], &words(outer), &["--", "sh", "-c", &body]].concat();
        let proc = world.canal(args).stdin(Stdio::piped()).spawn();
        for key in keys(outer) {
            until_holds(world, proc.pid(), &key);
        }
        let key = keys(&inner).remove(0);
        Self { proc, inner, key }
    }

    /// Lets it ask for its inner lock.
    pub(crate) fn go(&mut self) {
        say(&mut self.proc, "go");
    }

    /// Lets it ask for its inner lock, and waits until it waits for it.
    #[track_caller]
    pub(crate) fn go_and_wait(&mut self, world: &World) {
        let before = world.key(&self.key).waiting;
        self.go();
        world.until_waiting(&self.key, before + 1);
    }

    /// The process that asks for the inner lock.
    #[track_caller]
    pub(crate) fn inner_pid(&self) -> i32 {
        let inner = |pid| crate::process::commands(pid).first().copied();
        wait_until("the inner canal is there", || inner(self.proc.pid()).is_some());
        inner(self.proc.pid()).unwrap()
    }

    /// It is refused as a deadlock's victim, at once, and says so.
    #[track_caller]
    pub(crate) fn refused(self) -> Ended {
        let ended = self.proc.end().code(75);
        assert!(ended.stderr.contains("deadlock"), "{} was refused: {ended:?}", self.inner);
        ended
    }

    /// It gets its inner lock, and says nothing of a deadlock.
    #[track_caller]
    pub(crate) fn succeeds(self) {
        let ended = self.proc.end().code(0);
        assert!(!ended.stderr.contains("deadlock"), "{ended:?}");
    }
}

/// Sends a line to a process.
pub(crate) fn say(proc: &mut Proc, line: &str) {
    let stdin = proc.child.stdin.as_mut().unwrap();
    stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
}

pub(crate) fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// The keys of the locks in a command line.
fn keys(text: &str) -> Vec<String> {
    let options = words(text);
    let named = options.windows(2).filter(|pair| matches!(pair[0], "-k" | "--read" | "--write"));
    named.map(|pair| pair[1].split(['=', ':']).next().unwrap().to_owned()).collect()
}

/// Whether a process holds a key.
pub(crate) fn holds(world: &World, pid: i32, key: &str) -> bool {
    world.key(key).holders.iter().any(|holder| holder.pid.cast_signed() == pid)
}

#[track_caller]
pub(crate) fn until_holds(world: &World, pid: i32, key: &str) {
    wait_until(&format!("{pid} holds {key}"), || holds(world, pid, key));
}

/// Starts `canal run LOCK -- cat` and waits until it holds; it ends with its standard input.
#[track_caller]
pub(crate) fn holder(world: &World, lock: &str) -> Proc {
    let args = [&["run"][..], &words(lock), &["--", "cat"]].concat();
    let holder = world.canal(args).stdin(Stdio::piped()).spawn();
    for key in keys(lock) {
        until_holds(world, holder.pid(), &key);
    }
    holder
}

/// Starts `canal run LOCK -- COMMAND` and waits until it waits for its first key.
#[track_caller]
pub(crate) fn waiter(world: &World, lock: &str, command: &[&str]) -> Proc {
    let key = keys(lock).remove(0);
    let before = world.key(&key).waiting;
    let args = [&["run"][..], &words(lock), &["--"], command].concat();
    let waiter = world.canal(args).stdin(Stdio::piped()).spawn();
    world.until_waiting(&key, before + 1);
    waiter
}

/// Whether a lock could be had at once, by a stranger.
#[track_caller]
pub(crate) fn is_free(world: &World, lock: &str) -> bool {
    let args = [&["run", "-n", "-q"][..], &words(lock), &["--", "true"]].concat();
    match world.canal(args).end() {
        Ended { code: Some(0), .. } => true,
        Ended { code: Some(75), .. } => false,
        other => panic!("{other:?}"),
    }
}

/// Nothing is held, in any way, and nobody waits.
#[track_caller]
pub(crate) fn until_nothing(world: &World) {
    wait_until("nothing is held, read or written, and nobody waits", || {
        let seen = world.look().or_else(|| Some(world.status()));
        let used = |key: &KeyInfo| {
            key.held > 0 || key.waiting > 0 || !key.holders.is_empty() || !key.waiters.is_empty()
        };
        seen.is_some_and(|status| !status.keys.iter().any(used))
    });
}

/// Who waits for whom, all of it.
#[track_caller]
pub(crate) fn graph(world: &World) -> Waits {
    let reply = Peer::connect(world).call("Graph", &json!({})).unwrap();
    let parameters: &Value = &reply["parameters"];
    serde_json::from_value(parameters.clone()).unwrap_or_else(|e| panic!("{e}: {reply}"))
}

/// Stops a process (SIGSTOP), and waits until it is stopped.
#[track_caller]
pub(crate) fn stop(pid: i32) {
    signal(pid, Signal::SIGSTOP);
    wait_until("it is stopped", || state(pid) == Some('T'));
}
