//! The daemons of a world: their processes, started and killed.

use nix::sys::signal::Signal;

use super::{World, canal};
use crate::over;
use crate::process::{Cmd, Proc, alive, signal, wait_until};

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

    /// The same, but starts none, neither before nor after.
    #[track_caller]
    pub(crate) fn kill_daemon_quietly(&self) -> i32 {
        let pids = self.daemon_pids();
        let first = *pids.first().expect("a daemon runs");
        pids.iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
        wait_until("the daemon is dead", || !pids.iter().any(|pid| alive(*pid)));
        first
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
