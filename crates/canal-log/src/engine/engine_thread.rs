//! Runs an engine on a separate thread, so that a call never blocks the daemon.
//!
//! Invariants: between `Away` and `Back` the thread answers nothing. A call that the daemon makes
//! before it takes `Back` is not carried out over the next connection, which may lead to another
//! history: the daemon repeats it once it knows. While commands of this host depend on the engine,
//! each pause between two attempts to reach it leaves most of the remaining time, so an engine that
//! is back in time is found in time.

use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::{Answer, Call, Engine, OpenError, Outage};
use canal_sys::clock::boottime_ms;
use canal_sys::kernel;

/// The daemon's side of the thread.
///
/// Dropping it ends the thread and its connection at once, and undoes nothing.
#[derive(Debug)]
pub struct EngineThread {
    lets_rest: bool,
    /// Each call, and how many times the engine had come back before it.
    calls: mpsc::UnboundedSender<(u64, Call)>,
    answers: mpsc::UnboundedReceiver<Answer>,
    renew_by: watch::Sender<[u64; 2]>,
    /// How many returns of the engine the daemon has taken.
    backs: u64,
}

impl EngineThread {
    /// Starts a thread that does this work until the daemon drops its side. If the engine lets
    /// hosts rest, it announces batches only to hosts that need them.
    pub(super) fn start<F: Future<Output = Infallible>>(
        name: &str,
        lets_rest: bool,
        work: impl FnOnce(Caller) -> F + Send + 'static,
    ) -> Result<Self, OpenError> {
        let runtime = runtime()?;
        let (engine, caller) = Self::sides(lets_rest);
        let dropped = caller.answers.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    never = work(caller) => match never {},
                    () = dropped.closed() => {}
                }
            });
        })?;
        Ok(engine)
    }

    /// The two sides of a thread.
    fn sides(lets_rest: bool) -> (Self, Caller) {
        let (call, calls) = mpsc::unbounded_channel();
        let (answers, answer) = mpsc::unbounded_channel();
        let (renew_by, times) = watch::channel([0, 0]);
        let caller = Caller { renew_by: RenewBy(times), answers, calls, away: None, backs: 0 };
        (Self { lets_rest, calls: call, answers: answer, renew_by, backs: 0 }, caller)
    }
}

impl Engine for EngineThread {
    fn call(&mut self, call: Call) {
        // Fails only after a panic in the thread.
        let _ = self.calls.send((self.backs, call));
    }

    fn renew_by(&mut self, times: [u64; 2]) {
        self.renew_by.send_replace(times);
    }

    fn lets_rest(&self) -> bool {
        self.lets_rest
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match self.answers.poll_recv(context) {
            Poll::Ready(Some(answer)) => {
                self.backs += u64::from(matches!(answer, Answer::Back));
                Poll::Ready(answer)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// The thread's side: the daemon that calls.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) renew_by: RenewBy,
    /// The channel for answers. Its receiver exists while the thread runs.
    pub(super) answers: mpsc::UnboundedSender<Answer>,
    calls: mpsc::UnboundedReceiver<(u64, Call)>,
    /// The outage that was reported, while it lasts.
    away: Option<Outage>,
    /// How many times the engine has come back.
    backs: u64,
}

impl Caller {
    /// The next call. Skips those that the daemon made before it knew that the engine is back.
    pub(super) async fn call(&mut self) -> Call {
        loop {
            match self.calls.recv().await {
                Some((backs, call)) if backs == self.backs => return call,
                Some(_) => {}
                // The thread is about to end.
                None => std::future::pending().await,
            }
        }
    }

    pub(super) fn answer(&self, answer: Answer) {
        let _ = self.answers.send(answer);
    }

    /// Reports an outage, unless it was already reported. A server that was silent at first may be
    /// read-only next, so people get the reason that now applies.
    fn away(&mut self, outage: Outage) {
        tracing::debug!("the engine is unreachable: {}", outage.why);
        if self.away.as_ref() != Some(&outage) {
            self.away = Some(outage.clone());
            self.answer(Answer::Away(outage));
        }
    }

    /// Reports that the engine can be reached again, if it was away.
    fn back(&mut self) {
        if self.away.take().is_some() {
            self.backs += 1;
            self.answer(Answer::Back);
        }
    }

    /// Serves the daemon over one connection after another. The pauses between two attempts grow up
    /// to `pause_max`, or to [`PAUSE_REFUSED_MAX`] while the engine refuses this host.
    pub(super) async fn serve_on<C>(
        &mut self,
        pause_max: Duration,
        mut connect: impl AsyncFnMut(&Self) -> Result<C, Outage>,
        serve: impl AsyncFn(C, &mut Self) -> Outage,
    ) -> Infallible {
        let mut failures = 0;
        loop {
            let outage = match connect(self).await {
                Ok(connection) => {
                    self.back();
                    let since = Instant::now();
                    let outage = serve(connection, self).await;
                    if since.elapsed() >= STEADY {
                        failures = 0;
                    }
                    outage
                }
                Err(outage) => outage,
            };
            let max = if outage.refused { PAUSE_REFUSED_MAX } else { pause_max };
            self.away(outage);
            self.pause(pause_after(failures).min(max)).await;
            failures += 1;
        }
    }

    /// Waits for slightly less than `usual`, so that hosts that lost the engine together do not all
    /// return at once; for even less if commands depend on it.
    async fn pause(&self, usual: Duration) {
        // Without random numbers, the pause is merely not spread.
        let random = kernel::random::u64().unwrap_or(0) as f64 / u64::MAX as f64;
        let share = 1.0 - random / 2.0;
        tokio::time::sleep(self.renew_by.pause(usual).mul_f64(share)).await;
    }
}

/// A runtime on the present thread.
pub(super) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// A random number.
pub(super) fn random() -> Result<u128, Outage> {
    kernel::random::u128()
        .map_err(|error| Outage::refused(format!("no random bytes: {error}"), None))
}

/// The pause before the next attempt, after the first one and this many more have failed.
fn pause_after(failures: u32) -> Duration {
    PAUSE_FIRST * 2u32.pow(failures.min(8))
}

/// The pause after the first attempt to reach the engine.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// The longest pause while the engine refuses this host.
const PAUSE_REFUSED_MAX: Duration = Duration::from_secs(5);

/// A connection that lasted this long makes the next pause short again.
const STEADY: Duration = Duration::from_secs(5);

/// The shortest pause, however little time remains.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The shortest bound on one attempt: a server that is up answers within it.
#[cfg(feature = "postgres")]
const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// When commands of this host end unless it renews first, in milliseconds of CLOCK_BOOTTIME.
#[derive(Debug)]
pub(super) struct RenewBy(watch::Receiver<[u64; 2]>);

impl RenewBy {
    /// The pause to make instead of `usual`.
    pub(super) fn pause(&self, usual: Duration) -> Duration {
        self.left().map_or(usual, |left| usual.min((left / 4).max(PAUSE_MIN)))
    }

    /// The bound on one attempt instead of `usual`, so that there is time for another.
    #[cfg(feature = "postgres")]
    pub(super) fn attempt(&self, usual: Duration) -> Duration {
        self.left().map_or(usual, |left| usual.min((left / 2).max(ATTEMPT_MIN)))
    }

    /// The time until the next of the two times.
    fn left(&self) -> Option<Duration> {
        left(*self.0.borrow(), boottime_ms())
    }
}

fn left(times: [u64; 2], now_ms: u64) -> Option<Duration> {
    let ahead = times.into_iter().filter(|time| *time > now_ms).min();
    ahead.map(|time| Duration::from_millis(time - now_ms))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_again_if_its_reason_changes() {
        let (mut engine, mut caller) = EngineThread::sides(false);
        let (silent, refused) = (Outage::unreachable("x"), Outage::refused("x", None));
        for outage in [&silent, &silent, &Outage::unreachable("y"), &silent, &refused, &refused] {
            caller.away(outage.clone());
        }
        caller.back();
        caller.back();
        let mut reasons = Vec::new();
        while let Ok(answer) = engine.answers.try_recv() {
            match answer {
                Answer::Away(outage) => reasons.push((outage.why, outage.refused)),
                Answer::Back => reasons.push(("back".into(), false)),
                other => panic!("{other:?}"),
            }
        }
        let expected = [("x", false), ("y", false), ("x", false), ("x", true), ("back", false)];
        assert_eq!(reasons, expected.map(|(why, refused)| (why.to_owned(), refused)));
    }

    #[test]
    fn a_call_from_before_the_return_is_not_carried_out_after_it() {
        let mut context = Context::from_waker(Waker::noop());
        let (mut engine, mut caller) = EngineThread::sides(false);
        engine.call(Call::Load);
        caller.away(Outage::unreachable("x"));
        caller.back();
        engine.call(Call::Load);
        for name in ["away", "back"] {
            assert!(engine.poll(&mut context).is_ready(), "{name}");
        }
        engine.call(Call::Attend { listens: true });
        let next = pin!(caller.call()).poll(&mut context);
        assert!(matches!(next, Poll::Ready(Call::Attend { .. })), "{next:?}");
    }

    const USUAL: Duration = Duration::from_secs(5);

    #[test]
    fn the_next_of_the_two_times_counts() {
        let times = [4_500, 5_500];
        assert_eq!(left(times, 500), Some(Duration::from_secs(4)));
        assert_eq!(left(times, 4_500), Some(Duration::from_secs(1)));
        assert_eq!(left(times, 5_500), None);
        assert_eq!(left([0, 0], 0), None, "this host is no member");
    }

    #[test]
    fn pauses_grow_up_to_their_bound() {
        assert_eq!(pause_after(0), Duration::from_millis(100));
        assert_eq!(pause_after(1), Duration::from_millis(200));
        assert!(pause_after(1000) > PAUSE_REFUSED_MAX);
    }

    #[test]
    fn a_pause_leaves_most_of_the_time_that_is_left() {
        let (times, seen) = watch::channel([0, 0]);
        let renew_by = RenewBy(seen);
        assert_eq!((renew_by.pause(USUAL), renew_by.attempt(USUAL)), (USUAL, USUAL));
        let in_two_seconds = boottime_ms() + 2_000;
        times.send_replace([in_two_seconds, in_two_seconds]);
        assert!(renew_by.pause(USUAL) <= Duration::from_millis(500));
        assert!(renew_by.attempt(USUAL) <= ATTEMPT_MIN);
        assert_eq!(renew_by.pause(PAUSE_MIN), PAUSE_MIN, "it is not made longer");
        times.send_replace([boottime_ms() + 1, 0]);
        assert!(renew_by.pause(USUAL) >= PAUSE_MIN, "it never becomes a busy loop");
    }
}
