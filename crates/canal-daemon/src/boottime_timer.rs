//! A timer that also counts the time while the machine is suspended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// A timer on CLOCK_BOOTTIME (timerfd, Linux 3.15).
#[derive(Debug)]
pub(crate) struct BoottimeTimer {
    timer: TimerFd,
    set_for: Option<u64>,
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

    /// The time for which the timer is set.
    #[cfg(test)]
    pub(crate) fn set_for(&self) -> Option<u64> {
        self.set_for
    }

    /// Whether the time for which the timer is set has come.
    #[cfg(test)]
    pub(crate) fn is_due(&self) -> bool {
        self.set_for.is_some_and(|at| at <= canal_sys::clock::boottime_ms())
    }

    /// Notes that the timer expired: the next [`Self::set`] arms it again, even for the same time.
    pub(crate) fn went_off(&mut self) {
        self.set_for = None;
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
    use crate::net::connections::Conns;
    use crate::net::events::Source;
    use canal_sys::clock;

    #[test]
    fn the_timer_fires_at_its_time_or_at_once_if_that_has_passed() {
        let mut conns = Conns::new().unwrap();
        let mut alarm = BoottimeTimer::new().unwrap();
        conns.await_source(Source::BoottimeTimer, &alarm).unwrap();
        let mut goes_off = |time| {
            conns.wait(time);
            conns.read();
            conns.reported.take(Source::BoottimeTimer)
        };
        let at = clock::boottime_ms() + 30;
        alarm.set(Some(at)).unwrap();
        assert!(goes_off(None));
        assert!(clock::boottime_ms() >= at);
        alarm.went_off();
        alarm.set(Some(1)).unwrap();
        assert!(goes_off(None));
        alarm.went_off();
        alarm.set(Some(at)).unwrap();
        assert!(goes_off(None), "the same time again");
        alarm.set(Some(at + 1_000_000)).unwrap();
        alarm.set(None).unwrap();
        assert!(!goes_off(Some(Duration::from_millis(10))));
    }
}
