//! The supervisor's reactions to its deadline page and to a lost lock.

use std::io;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::super::Fate;
use super::Parent;
use super::signals::probe;
use crate::run::LostHold;
use crate::run::supervise::hold_monitor::{HoldMonitor, Phase};
use crate::run::supervise::kill_tree;
use crate::sys::process::child::End;
use crate::sys::signals::SignalRefused;

impl Parent<'_> {
    /// Reads the deadline page, and asks for another one if the page has lost its writer. Until the
    /// command has started, the child itself checks the page.
    pub(super) fn check_lock(&mut self) -> io::Result<()> {
        let Some(monitor) = self.monitor.as_mut().filter(|_| self.channel.is_none()) else {
            return Ok(());
        };
        let mut fate = self.fate_query.receive();
        // The present daemon or another process has killed the command.
        let killed = self.end == Some(End::Killed(libc::SIGKILL));
        if fate.is_none() && killed && !self.asked_fate && monitor.command_may_be_ended() {
            self.asked_fate = true;
            fate = self.hooks.ask(monitor.token());
        }
        match fate {
            Some(Fate::Held(page)) => monitor.replace_page(page),
            Some(Fate::Lost(why)) => monitor.report_lost(why),
            None => {}
        }
        let before = monitor.phase();
        if let Some(phase) = monitor.check()? {
            // A command that is killed was already reported when it was signalled to end.
            if let Some(lost) = monitor.lost().filter(|_| before == Phase::Held) {
                let is_refused = self.end.is_none()
                    && SignalRefused::by(&probe(self.command), self.command).is_some();
                self.hooks.lost(&LostHold { is_refused, ..lost.clone() });
            }
            match phase {
                Phase::Ending => {
                    self.signalled.clear();
                    self.send(Signal::SIGTERM);
                    self.send(Signal::SIGCONT);
                }
                Phase::Killing => {
                    self.send(Signal::SIGKILL);
                }
                Phase::Held | Phase::Warned => {}
            }
        }
        if self.end.is_none()
            && let Some(monitor) = self.monitor.as_ref()
            && let Some(sure) = monitor.orphaned_but_safe_for()
        {
            let token = monitor.token();
            self.fate_query.ask(sure, &|| self.hooks.ask(token));
        }
        Ok(())
    }

    /// Ends the descendants that the command left behind, and once it is time to kill, everything.
    pub(super) fn end_lost(&mut self, left: &[Pid]) {
        match self.monitor.as_ref().map(HoldMonitor::phase) {
            Some(Phase::Killing) => {
                self.send(Signal::SIGKILL);
                let tops: Vec<Pid> =
                    std::iter::once(self.command).chain(left.iter().copied()).collect();
                let refused = kill_tree::kill(&tops, |pid| self.hooks.is_daemon(pid));
                refused.into_iter().for_each(|refused| self.report(refused));
            }
            Some(Phase::Ending) => {
                self.signal_descendants(left, Signal::SIGTERM);
            }
            _ => {}
        }
    }
}
