//! The daemons of a world: their processes, started and killed.

use std::fs;

use nix::sys::signal::Signal;

use super::{World, canal};
use crate::over;
use crate::process::{Cmd, Proc, alive, signal, state, wait_until};

impl World {
    /// Over an engine, where each host has a daemon that nobody asks once it is dead: somebody comes to
    /// each of them, as a service manager does.
    #[track_caller]
    pub(crate) fn daemons_return(&self) {
        if over::ENGINE {
            self.status();
        }
    }

    /// The process of the daemon that answers; of two hosts, of the first one's.
    #[track_caller]
    pub(crate) fn daemon_pid(&self) -> i32 {
        i32::try_from(self.status().daemon.pid).unwrap()
    }

    /// The processes of the daemons that answer, of each host one.
    pub(crate) fn daemon_pids(&self) -> Vec<i32> {
        self.spread.ask_all().iter().flatten().map(|it| it.daemon.pid.cast_signed()).collect()
    }

    /// Kills the daemon that answers, of each host, and waits until it is gone.
    #[track_caller]
    pub(crate) fn kill_daemon(&self) -> i32 {
        self.status();
        self.kill_daemon_quietly()
    }

    /// The same, but starts none, neither before nor after; nor does its watcher, which is killed, too.
    #[track_caller]
    pub(crate) fn kill_daemon_quietly(&self) -> i32 {
        let pids = self.daemon_pids();
        let first = *pids.first().expect("a daemon runs");
        if over::ENGINE || !self.watchers().is_empty() {
            // It would start another watcher.
            pids.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
            wait_until("the daemon is stopped", || pids.iter().all(|pid| !runs(*pid)));
            self.watchers().iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
            wait_until("its watcher is dead", || self.watchers().is_empty());
        }
        pids.iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
        wait_until("the daemon is dead", || !pids.iter().any(|pid| alive(*pid)));
        first
    }

    /// The processes that watch over the daemons of this world.
    pub(crate) fn watchers(&self) -> Vec<i32> {
        let is_watcher = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"--watcher")
        };
        self.processes().into_iter().filter(is_watcher).collect()
    }

    /// Starts a daemon in the foreground and waits until it answers.
    #[track_caller]
    pub(crate) fn daemon<'a>(&'a self, prepare: impl FnOnce(Cmd<'a>) -> Cmd<'a>) -> Proc {
        let daemon = prepare(self.program_on(0, canal(), vec!["daemon".into()])).spawn();
        let pid = daemon.pid();
        wait_until("the daemon answers", || {
            let up = self.look().is_some_and(|s| i32::try_from(s.daemon.pid) == Ok(pid));
            up || !alive(pid)
        });
        daemon
    }
}

/// Whether a process is neither stopped nor dead.
fn runs(pid: i32) -> bool {
    !matches!(state(pid), None | Some('T' | 't' | 'Z' | 'X'))
}
