//! When the daemon's periodic and delayed work is due.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use canal_core::RequestId;

/// Deadlines of work that covers all its subjects at once.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Gives up the waiters of the previous daemon that have not come back.
    pub come_back: Option<Instant>,
    /// Gives up those whose process is busy, too.
    pub come_back_if_busy: Option<Instant>,
    /// Looks at processes that the kernel does not report: of stopped waiters, of waiters of the
    /// previous daemon that have not come back, and of holds whose last descendant cannot be
    /// watched.
    pub processes: Option<Instant>,
    /// Closes a connection that took too long to read its last reply.
    pub closing: Option<Instant>,
    /// Sends the changes to waiters.
    pub progress: Option<Instant>,
    /// Sends the changes to clients that watch the status.
    pub watch: Option<Instant>,
    /// Reports the next leader to the clients that watch one.
    pub leaders: Option<Instant>,
    /// The earliest time to do so after a change.
    pub leaders_rest_until: Option<Instant>,
    /// Checks the daemon's files.
    pub home: Option<Instant>,
    /// Searches again for processes of which the daemon could not find out whether they live.
    pub verify: Option<Instant>,
    /// The time at which every lease over nodes that the daemon may not know has ended. The daemon
    /// is not woken for it: the next turn after it notes that.
    pub node_settled: Option<Instant>,
    /// Ends the daemon because it is unused.
    pub idle: Option<Instant>,
    /// Continues the check of waiters that are behind others. If many wait, it takes several turns.
    pub check_ahead: Option<Instant>,
    /// The last waiter that was checked.
    pub checked_ahead_of: Option<RequestId>,
    /// Whether a waiter was found behind another since the check began with the first waiter.
    pub found_behind: bool,
    /// Whether anything has changed since updates to waiters and watchers were last scheduled.
    pub changed: bool,
}

/// Whether a time has come. If so, clears it.
pub(crate) fn is_due(due: &mut Option<Instant>, now: Instant) -> bool {
    due.take_if(|at| *at <= now).is_some()
}

/// A timer on CLOCK_BOOTTIME (timerfd, Linux 3.15).
#[derive(Debug)]
pub(crate) struct BoottimeTimer {
    timer: TimerFd,
    /// The time for which the timer is set. Unless the timer expired and this was cleared since,
    /// setting it for the same time does nothing.
    pub set_for: Option<u64>,
}

impl BoottimeTimer {
    /// A timer that is not set.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Ok(Self { timer, set_for: None })
    }

    /// Sets the timer to a time in milliseconds of CLOCK_BOOTTIME. It expires immediately if that
    /// time has passed. `None` unsets it.
    pub(crate) fn set(&mut self, at: Option<u64>) -> io::Result<()> {
        if self.set_for == at {
            return Ok(());
        }
        // The simulator checks the time for which the timer is set.
        #[cfg(test)]
        if canal_sys::kernel::simulated::current().is_some() {
            self.set_for = at;
            return Ok(());
        }
        match at {
            // A time of 0 would unset the timer.
            Some(at) => {
                let at = TimeSpec::from_duration(Duration::from_millis(at.max(1)));
                self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            None => self.timer.unset()?,
        }
        self.set_for = at;
        Ok(())
    }
}

impl AsFd for BoottimeTimer {
    /// Becomes readable when the timer expires.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::all_connections::{Conns, Source};
    use canal_sys::clock;

    #[test]
    fn the_timer_fires_at_its_time_or_at_once_if_that_has_passed() {
        let mut conns = Conns::new().unwrap();
        let mut alarm = BoottimeTimer::new().unwrap();
        conns.await_source(Source::BOOTTIME_TIMER, &alarm).unwrap();
        let mut goes_off = |time| {
            conns.wait(time);
            conns.read();
            conns.reported.remove(&Source::BOOTTIME_TIMER)
        };
        let at = clock::boottime_ms() + 30;
        alarm.set(Some(at)).unwrap();
        assert!(goes_off(None));
        assert!(clock::boottime_ms() >= at);
        alarm.set_for = None;
        alarm.set(Some(1)).unwrap();
        assert!(goes_off(None));
        alarm.set_for = None;
        alarm.set(Some(at)).unwrap();
        assert!(goes_off(None), "the same time again");
        alarm.set(Some(at + 1_000_000)).unwrap();
        alarm.set(None).unwrap();
        assert!(!goes_off(Some(Duration::from_millis(10))));
    }
}
