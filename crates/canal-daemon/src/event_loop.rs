//! The daemon's loop: it sleeps until the kernel, the engine or a timer reports an event, and then
//! does a turn.
//!
//! It has no async runtime, because a runtime does not provide the batches that a turn handles: one
//! epoll instance watches everything. The client of an engine has a runtime in its own thread, and
//! wakes this loop through an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::limits::FAREWELL_TIME;
use crate::net::adaptive_spin::AdaptiveSpin;
use crate::net::events::Source;
use crate::server::Server;
use canal_sys::clock;

/// The last log line of a daemon that ends in order.
pub const LAST_LINE: &str = "the daemon is exiting; all holds stay";

/// Does turns until the daemon is asked to end, or cannot continue.
pub(crate) fn work(server: &mut Server, signals: &Signals) -> anyhow::Result<()> {
    server.conns.await_source(Source::Signals, signals)?;
    let bell = Arc::new(Bell::new()?);
    server.conns.wake_for(&*bell)?;
    let waker = Waker::from(bell);
    server.observe.wake_by(&waker);
    let mut context = Context::from_waker(&waker);
    let mut spin = AdaptiveSpin::new();
    while !server.stopping {
        if server.decide.hears_engine(&mut context) || server.has_work() {
            server.conns.wait(Some(Duration::ZERO));
        } else if !spin.look(|| server.conns.wait(Some(Duration::ZERO))) {
            let begun = clock::now();
            if server.sleep() {
                spin.slept(clock::now().saturating_duration_since(begun));
            }
        }
        server.turn()?;
        if server.conns.reported.take(Source::Signals) {
            let received = signals.received();
            if let Some(signal) = received.ending {
                tracing::info!("stopping on {signal}");
                server.stopping = true;
            } else if received.hangup {
                server.effective.reload_asked = true;
                server.turn()?;
            }
        }
    }
    server.decide.say_farewell();
    say_farewell(server, &mut context)?;
    server.decide.close_tokens();
    server.observe.close();
    tracing::info!("{LAST_LINE}");
    Ok(())
}

/// Gives clients some time to read their last replies. Leaves the engine if nothing here depends on
/// the membership, so that the other hosts need not wait for its TTL.
fn say_farewell(server: &mut Server, context: &mut Context<'_>) -> anyhow::Result<()> {
    server.runtime_dir.close();
    let last_moment = clock::now() + FAREWELL_TIME;
    loop {
        let left = last_moment.saturating_duration_since(clock::now());
        let is_done = server.conns.is_flushed() && server.decide.in_flight.len() == 0;
        if left.is_zero() || is_done && !server.decide.leave_unused() {
            return Ok(());
        }
        server.ask_engine();
        let is_busy = server.decide.hears_engine(context) || server.has_work();
        server.conns.wait(Some(if is_busy { Duration::ZERO } else { left }));
        server.turn()?;
    }
}

/// The signals that the daemon handles.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in this thread and in threads started later. From now on they are only
    /// reported here.
    ///
    /// # Errors
    /// As for signalfd(2).
    pub(crate) fn take() -> io::Result<Self> {
        // SIGHUP does not end the daemon, which outlives its terminal, but makes it read its
        // configuration again.
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self(SignalFd::with_flags(&set, flags)?))
    }

    /// The requests in the signals received since the last call.
    fn received(&self) -> Received {
        let came = std::iter::from_fn(|| self.0.read_signal().ok().flatten());
        let numbers = came.filter_map(|info| i32::try_from(info.ssi_signo).ok());
        let signals = numbers.filter_map(|number| Signal::try_from(number).ok());
        let mut received = Received { ending: None, hangup: false };
        // Reads all queued signals. Otherwise the edge-triggered epoll instance would not report
        // the next signal.
        for signal in signals {
            match signal {
                Signal::SIGHUP => received.hangup = true,
                other => received.ending = Some(other),
            }
        }
        received
    }
}

/// The requests in received signals.
#[derive(Clone, Copy, Debug)]
struct Received {
    /// The last signal that ends the daemon.
    ending: Option<Signal>,
    /// Whether SIGHUP arrived, which makes the daemon read its configuration again.
    hangup: bool,
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An eventfd that the engine's thread writes to when it has an answer.
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
        // It is never read, because the edge-triggered epoll instance reports each write.
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
    use crate::net::connections::Conns;

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
            conns.read();
        }
    }
}
