//! A timer that goes on while the machine is suspended.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::sys::readable::Readable;

/// A timer on CLOCK_BOOTTIME (timerfd, Linux 3.15).
#[derive(Debug)]
pub(super) struct Alarm {
    timer: TimerFd,
    readable: Readable,
    set_for: Option<u64>,
}

impl Alarm {
    /// One that is not set. Called within the runtime.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        let readable = Readable::new(timer.as_fd().try_clone_to_owned()?)?;
        Ok(Self { timer, readable, set_for: None })
    }

    /// Sets it for a time, in milliseconds of CLOCK_BOOTTIME; a time that is over is due at once.
    pub(super) fn set(&mut self, at: Option<u64>) -> io::Result<()> {
        if self.set_for == at {
            return Ok(());
        }
        match at {
            // A time of 0 would unset it.
            Some(at) => {
                let at = TimeSpec::from_duration(Duration::from_millis(at.max(1)));
                self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            None => self.timer.unset()?,
        }
        self.set_for = at;
        Ok(())
    }

    /// Ready when its time has come, once.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.readable.poll(context).is_ready() {
            let mut count = [0; 8];
            let read = self.readable.attempt(|| Ok(nix::unistd::read(&self.timer, &mut count)?));
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => {
                    self.set_for = None;
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::sys::clock;

    #[test]
    fn it_goes_off_at_its_time_and_at_once_if_that_is_over() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut alarm = Alarm::new().unwrap();
            let at = clock::boottime_ms() + 30;
            alarm.set(Some(at)).unwrap();
            poll_fn(|context| alarm.poll(context)).await;
            assert!(clock::boottime_ms() >= at);
            alarm.set(Some(1)).unwrap();
            poll_fn(|context| alarm.poll(context)).await;
            alarm.set(Some(at + 1_000_000)).unwrap();
            alarm.set(None).unwrap();
            assert!(poll_fn(|context| Poll::Ready(alarm.poll(context))).await.is_pending());
        });
    }
}
