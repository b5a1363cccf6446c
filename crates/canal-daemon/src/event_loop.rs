//! The daemon's loop: it sleeps until the kernel, the engine or a timer reports an event, and then
//! does a turn. Before it sleeps, it waits actively for a moment.
//!
//! It has no async runtime, because a runtime does not provide the batches that a turn handles: one
//! epoll instance watches everything. The client of an engine has a runtime in its own thread, and
//! wakes this loop through an eventfd.

use std::io;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

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

/// The longest spin. A sleep and a wake-up take about as long on a virtual machine.
const MOMENT: Duration = Duration::from_micros(50);

/// The most opportunities that are skipped between two spins.
const PASSED_MAX: u32 = 1024;

/// A sleep shorter than `MOMENT` counts as this many skipped opportunities: a spin would have paid.
const MISSED_WEIGHT: u32 = 16;

/// Spins briefly before the daemon sleeps, because a wake-up takes longer than most clients need to
/// send their next call. The kernel does the same for virtual processors
/// (Documentation/virt/kvm/halt-polling.rst). Unlike the kernel, this loop yields the processor
/// between two checks, because the client may be waiting for that processor.
///
/// Invariant: the daemon does not spin for clients that stay silent. Each fruitless spin doubles
/// how many opportunities to spin are skipped, up to 1,024.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    /// The number of opportunities skipped before the next spin; `None` means all of them.
    left: Option<u32>,
    /// The number of opportunities skipped after the last spin in total.
    passed: u32,
}

impl AdaptiveSpin {
    pub(crate) fn new() -> Self {
        // With a single processor, the client runs only while the daemon sleeps.
        let several = available_parallelism().is_ok_and(|count| count.get() > 1);
        Self { left: several.then_some(0), passed: 0 }
    }

    /// Calls `look` until it finds something, for `MOMENT` at most, or not at all if recent spins
    /// found nothing. Returns whether it found something.
    pub(crate) fn look(&mut self, mut look: impl FnMut() -> bool) -> bool {
        if self.left != Some(0) {
            self.pass_over(1);
            return false;
        }
        let begun = Instant::now();
        loop {
            let found = look();
            let elapsed = begun.elapsed();
            if found || elapsed > MOMENT {
                // If other threads had the processor for longer than this, a wake-up would have
                // been faster.
                self.learn(found && elapsed <= 2 * MOMENT);
                return found;
            }
            yield_now();
        }
    }

    /// Notes that the daemon slept for `time` until something happened, after a skipped or
    /// fruitless spin.
    pub(crate) fn slept(&mut self, time: Duration) {
        if time < MOMENT {
            self.pass_over(MISSED_WEIGHT);
        }
    }

    fn pass_over(&mut self, chances: u32) {
        self.left = self.left.map(|left| left.saturating_sub(chances));
    }

    fn learn(&mut self, paid: bool) {
        self.passed = if paid { 0 } else { (2 * self.passed).clamp(1, PASSED_MAX) };
        self.left = Some(self.passed);
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

    const LONG: Duration = Duration::from_millis(1);

    fn spin() -> AdaptiveSpin {
        AdaptiveSpin { left: Some(0), passed: 0 }
    }

    /// How many of `chances` opportunities are used for a spin if no spin finds anything.
    fn taken(spin: &mut AdaptiveSpin, chances: u32, slept: Duration) -> usize {
        let takes_one = |_: &u32| {
            let mut looked = false;
            spin.look(|| {
                looked = true;
                false
            });
            spin.slept(slept);
            looked
        };
        (0..chances).filter(takes_one).count()
    }

    #[test]
    fn spins_that_find_nothing_become_ever_rarer() {
        let mut spin = spin();
        assert_eq!(taken(&mut spin, 1023 + 10, LONG), 10, "1 + 2 + 4 + ... passed over");
        assert_eq!(taken(&mut spin, 10 * 1025, LONG), 10, "and never more rarely");
    }

    #[test]
    fn after_a_spin_that_found_work_the_next_spin_is_taken() {
        let mut spin = spin();
        taken(&mut spin, 1033, LONG);
        spin.learn(true);
        assert_eq!(taken(&mut spin, 1, LONG), 1);
    }

    #[test]
    fn work_soon_after_a_skipped_spin_brings_the_next_spin_forward() {
        let mut spin = spin();
        taken(&mut spin, 1033, LONG);
        assert_eq!(taken(&mut spin, 1024, LONG), 1);
        assert!(taken(&mut spin, 1024, Duration::ZERO) > 10);
    }

    #[test]
    fn with_one_processor_the_daemon_never_spins() {
        let mut spin = AdaptiveSpin { left: None, passed: 0 };
        assert_eq!(taken(&mut spin, 5000, Duration::ZERO), 0);
    }
}
