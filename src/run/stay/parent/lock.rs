//! The lock of a parent: what its page says, and the end of everything if it is lost.

use std::io;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::super::Fate;
use super::super::tree;
use super::super::watch::{Phase, Watch};
use super::Parent;
use crate::sys::child::End;

impl Parent<'_> {
    /// Takes in what the deadline page says, and asks for another one if nobody writes it any more.
    /// As long as the command has not begun, the child itself looks at it.
    pub(super) fn look_at_lock(&mut self) -> io::Result<()> {
        let Some(watch) = self.watch.as_mut().filter(|_| self.channel.is_none()) else {
            return Ok(());
        };
        let mut fate = self.asker.hear();
        // The daemon that there is now has ended the command, or somebody else did.
        let killed = self.end == Some(End::Killed(libc::SIGKILL));
        if fate.is_none() && killed && !self.asked_why && watch.may_be_ended() {
            self.asked_why = true;
            fate = self.beside.ask(watch.token());
        }
        match fate {
            Some(Fate::Held(page)) => watch.go_on_with(page),
            Some(Fate::Lost(why)) => watch.lose(why),
            None => {}
        }
        let before = watch.phase();
        if let Some(phase) = watch.look()? {
            // Of what ends all it was told before, when it was asked to end.
            if let Some(lost) = watch.lost().filter(|_| before == Phase::Held) {
                self.beside.lost(lost);
            }
            match phase {
                Phase::Ending => {
                    self.told.clear();
                    self.send(Signal::SIGTERM);
                    self.send(Signal::SIGCONT);
                }
                Phase::Killing => self.send(Signal::SIGKILL),
                Phase::Held | Phase::Warned => {}
            }
        }
        if self.end.is_none()
            && let Some(watch) = self.watch.as_ref()
            && let Some(sure) = watch.is_left_for()
        {
            let token = watch.token();
            self.asker.ask(sure, &|| self.beside.ask(token));
        }
        Ok(())
    }

    /// Ends what the command left behind, and all that there is once it is time to kill.
    pub(super) fn end_what_is_lost(&mut self, left: &[Pid]) {
        match self.watch.as_ref().map(Watch::phase) {
            Some(Phase::Killing) => {
                self.send(Signal::SIGKILL);
                let tops: Vec<Pid> =
                    std::iter::once(self.command).chain(left.iter().copied()).collect();
                tree::kill(&tops, |pid| self.beside.is_daemon(pid));
            }
            Some(Phase::Ending) => self.tell(left, Signal::SIGTERM),
            _ => {}
        }
    }
}
