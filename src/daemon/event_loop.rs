//! The daemon's loop: it sleeps until the kernel, the engine or the clock has something for it, and
//! does a turn.
//!
//! There is no async runtime: all that it waits for is in one epoll instance. An engine's client has
//! one, in a thread of its own, and rings a bell here.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::daemon::limits::FAREWELL_TIME;
use crate::daemon::net::events::Source;
use crate::daemon::server::Server;

/// Works until it is told to end, or cannot go on.
pub(crate) fn work(server: &mut Server, signals: &Signals) -> anyhow::Result<()> {
    server.conns.await_source(Source::Signals, signals)?;
    let bell = Arc::new(Bell::new()?);
    server.conns.wake_for(&*bell)?;
    let waker = Waker::from(bell);
    let mut context = Context::from_waker(&waker);
    while !server.stopping {
        if server.hears_engine(&mut context) || server.has_work() {
            server.conns.wait(Some(Duration::ZERO));
        } else if !server.spins() {
            server.sleep();
        }
        server.turn()?;
        if server.conns.reported.take(Source::Signals)
            && let Some(signal) = signals.ending()
        {
            tracing::info!("told to end by {signal}");
            server.stopping = true;
        }
    }
    server.engine_status.watcher.say_farewell();
    say_farewell(server, &mut context)?;
    server.forget_no_token();
    tracing::info!("the daemon ends; what is held stays held");
    Ok(())
}

/// Gives those who were answered some time to read it, and leaves the other hosts in good order.
fn say_farewell(server: &mut Server, context: &mut Context<'_>) -> anyhow::Result<()> {
    server.runtime_dir.close();
    let last_moment = Instant::now() + FAREWELL_TIME;
    loop {
        let left = last_moment.saturating_duration_since(Instant::now());
        let is_done = server.conns.is_flushed() && server.in_flight.len() == 0;
        if left.is_zero() || is_done && !server.leave_unused() {
            return Ok(());
        }
        server.ask_engine();
        let is_busy = server.hears_engine(context) || server.has_work();
        server.conns.wait(Some(if is_busy { Duration::ZERO } else { left }));
        server.turn()?;
    }
}

/// The signals that concern a daemon.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// From now on they have no effect but to be told here; nor have they on threads that are
    /// started later.
    ///
    /// # Errors
    /// What signalfd(2) says.
    pub(crate) fn take() -> io::Result<Self> {
        // A terminal that went away is no reason to end. There is nothing to read anew.
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self(SignalFd::with_flags(&set, flags)?))
    }

    /// The name of one that ends the daemon, if such a one came.
    fn ending(&self) -> Option<Signal> {
        let came = std::iter::from_fn(|| self.0.read_signal().ok().flatten());
        let numbers = came.filter_map(|info| i32::try_from(info.ssi_signo).ok());
        let signals = numbers.filter_map(|number| Signal::try_from(number).ok());
        // All are read, or the next one would not be reported.
        signals.filter(|signal| *signal != Signal::SIGHUP).last()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What the engine's thread rings when it has said something.
#[derive(Debug)]
struct Bell(EventFd);

impl Bell {
    fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Never read: each write is reported anew.
        let _ = self.0.write(1);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::net::connections::Conns;
    use crate::daemon::net::read_permit::ReadPermit;

    #[test]
    fn each_ring_is_reported() {
        let mut conns = Conns::new().unwrap();
        let bell = Arc::new(Bell::new().unwrap());
        conns.wake_for(&*bell).unwrap();
        let waker = Waker::from(bell);
        for _ in 0..3 {
            assert!(!conns.wait(Some(Duration::ZERO)));
            waker.wake_by_ref();
            assert!(conns.wait(None));
            conns.read(&ReadPermit::in_a_test());
        }
    }
}
