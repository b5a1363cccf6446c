//! The daemon's loop: it sleeps until the kernel, the engine or a timer reports an event, and then
//! does a turn.
//!
//! It has no async runtime, because a runtime does not provide the batches that a turn handles: one
//! epoll instance watches everything. The client of an engine has a runtime in its own thread, and
//! wakes this loop through an eventfd.

use std::io;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::adaptive_spin::AdaptiveSpin;
use crate::config::effective::Purpose;
use crate::net::all_connections::Source;
use crate::server::Server;
use canal_sys::clock;

/// How long the last replies may take when the daemon ends.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// The last log line of a daemon that ends in order.
pub const LAST_LINE: &str = "the daemon is exiting; all holds stay";

/// Does turns until the daemon is asked to end, or cannot continue.
pub(crate) fn work(server: &mut Server, signals: &Signals) -> anyhow::Result<()> {
    server.conns.await_source(Source::SIGNALS, &signals.0)?;
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    let bell = Arc::new(Bell(EventFd::from_value_and_flags(0, flags)?));
    server.conns.await_source(Source::WAKES, &bell.0)?;
    let waker = Waker::from(bell);
    server.observe.wake_by(&waker);
    server.effective.readings.waker = Some(waker.clone());
    let mut context = Context::from_waker(&waker);
    let mut spin = AdaptiveSpin::new();
    while !server.stopping {
        if server.decide.hears_engine(&mut context) || server.has_work() {
            server.conns.wait(Some(Duration::ZERO));
        } else if !spin.look(|| server.conns.wait(Some(Duration::ZERO))) {
            let begun = clock::now();
            let time = server.time_to_sleep();
            if server.conns.wait(time) {
                spin.slept(clock::now().saturating_duration_since(begun));
            }
        }
        server.turn()?;
        if server.conns.reported.remove(&Source::SIGNALS) {
            let (ending, hangup) = signals.received();
            if let Some(signal) = ending {
                tracing::info!("stopping on {signal}");
                server.stopping = true;
            } else if hangup {
                tracing::info!("reading the configuration again on SIGHUP");
                server.effective.readings.order(None, Purpose::Reload, clock::now());
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
        let is_flushed = server.conns.iter().all(|(_, conn)| conn.is_flushed());
        let is_done = is_flushed && server.decide.in_flight.len() == 0;
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

    /// The last signal received since the last call that ends the daemon, and whether SIGHUP
    /// arrived, which makes the daemon read its configuration again.
    fn received(&self) -> (Option<Signal>, bool) {
        let came = std::iter::from_fn(|| self.0.read_signal().ok().flatten());
        let numbers = came.filter_map(|info| i32::try_from(info.ssi_signo).ok());
        // Reads all queued signals. Otherwise the edge-triggered epoll instance would not report
        // the next signal.
        let signals = numbers.filter_map(|number| Signal::try_from(number).ok());
        let (hangups, ending): (Vec<_>, Vec<_>) = signals.partition(|it| *it == Signal::SIGHUP);
        (ending.last().copied(), !hangups.is_empty())
    }
}

/// An eventfd that other threads write to when they have an answer.
#[derive(Debug)]
struct Bell(EventFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // It is never read, because the edge-triggered epoll instance reports each write.
        let _ = self.0.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::all_connections::Conns;

    #[test]
    fn each_ring_is_reported() {
        let mut conns = Conns::new().unwrap();
        let bell = Arc::new(Bell(EventFd::new().unwrap()));
        conns.await_source(Source::WAKES, &bell.0).unwrap();
        let waker = Waker::from(bell);
        for _ in 0..3 {
            assert!(!conns.wait(Some(Duration::ZERO)));
            waker.wake_by_ref();
            assert!(conns.wait(None));
            conns.read();
        }
    }
}
