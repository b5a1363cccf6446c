//! What is started in a world.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::{World, canal};
use crate::process::{Cmd, Proc, wait_until};

impl World {
    /// `canal ARGS` at this world's socket.
    pub(crate) fn canal<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd<'_> {
        self.program(canal(), args)
    }

    /// A shell script (`sh -c`), for which `canal` is in PATH.
    pub(crate) fn sh(&self, script: &str) -> Cmd<'_> {
        self.program("sh", ["-c", script])
    }

    /// Any program, in the folder `work`, with the environment of this world.
    pub(crate) fn program<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
    ) -> Cmd<'_> {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        self.program_on(self.spread.host_for(&args), program, args)
    }

    pub(super) fn program_on(
        &self,
        host: usize,
        program: impl AsRef<OsStr>,
        args: Vec<OsString>,
    ) -> Cmd<'_> {
        let becomes = program.as_ref() == canal() && args.first().is_some_and(|arg| arg == "run");
        let mut command = Command::new(program.as_ref());
        if signals_are_ignored() {
            command = Command::new("env");
            command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(program.as_ref());
        }
        command.args(args);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"CANAL_") {
                command.env_remove(name);
            }
        }
        let mut path = vec![canal().parent().unwrap().to_owned()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("CANAL_SOCKET", self.spread.socket(host))
            .env("TEST_WORLD", self.folder.path())
            .envs(self.switches.iter().map(|(name, value)| (name, value)))
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        Cmd::new(self, command, host, becomes)
    }

    /// Holds a key with a process that does nothing until it is killed or [`Proc::finish`]ed.
    #[track_caller]
    pub(crate) fn holder(&self, lock: &[&str]) -> Proc {
        let mut args = vec!["run"];
        args.extend(lock);
        args.extend(["--", "cat"]);
        let held = |w: &Self| w.look().map_or(0, |s| s.keys.iter().map(|k| k.held).sum::<u64>());
        let before = held(self);
        let holder = self.canal(args).stdin(Stdio::piped()).spawn();
        wait_until("the holder holds", || held(self) > before);
        holder
    }

    /// Starts `canal run LOCK -- COMMAND` and waits until it queues for `key`.
    #[track_caller]
    pub(crate) fn waiter(&self, key: &str, lock: &[&str], command: &[&str]) -> Proc {
        let before = self.key(key).waiting;
        let mut args = vec!["run", "-k", key];
        args.extend(lock);
        args.push("--");
        args.extend(command);
        let waiter = self.canal(args).spawn();
        self.until_waiting(key, before + 1);
        waiter
    }
}

/// Whether the tests were started with signals ignored that they need, as nohup(1) and a shell's
/// `&` do.
fn signals_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    let needed = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    needed.iter().any(|which| ignored & (1 << (*which as u32 - 1)) != 0)
}
