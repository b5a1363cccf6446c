//! Monitors the deadline page of a hold that can be lost, and decides what follows.
//!
//! Invariant: the page is read again before each action, and an action that has begun is never
//! undone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::calls::Client;
use super::connection::options::Options;
use super::error::ClientError;
use canal_protocol::paths::Place;
use canal_protocol::{DeadlinePageQuery, ErrorName, OnLost, Tag};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline_page::{self, Reader, State, Why};

/// What happened to a hold whose deadline page has lost its writer.
#[derive(Debug)]
pub enum Fate {
    /// The present daemon has taken it over, and writes this page.
    Held(Reader),
    /// It is lost.
    Lost(Why),
}

impl Fate {
    /// Asks the present daemon of a place what happened to a request that was granted with this
    /// token. `None` if no daemon knows yet.
    pub fn ask(place: &Place, options: Options, tag: Tag, token: u64) -> Option<Self> {
        let query = DeadlinePageQuery { tag, token: Some(token) };
        match Client::connect(place, options).ok()?.page(&query) {
            Ok(page) => Some(Self::Held(page)),
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
                Some(Self::Lost(Why::of_word(failure.reason.as_deref().unwrap_or_default())))
            }
            Err(_) => None,
        }
    }

    /// How long to wait before asking: a daemon restarts quickly, but many supervisors may ask.
    /// `sure` is how long the hold is safe by the present page.
    pub fn pause(sure: Duration) -> Duration {
        (sure / 16).clamp(PAUSE_MIN, PAUSE_MAX)
    }
}

/// The bounds of the pause before each question to the daemon that may have taken over the hold.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// What was lost, when and why. Times are milliseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostHold {
    /// The fencing token of the hold.
    pub token: u64,
    /// Why.
    pub why: Why,
    /// From this time on the hold protects nothing.
    pub at: u64,
    /// When the engine was last known to be reachable.
    pub reached_at: u64,
    /// The name of the engine in messages.
    pub engine: String,
    /// The name of this host in messages.
    pub host: String,
    /// What happens to the command; `None` if it had not begun.
    pub then: Option<OnLost>,
    /// Whether the kernel refuses to signal the command.
    pub is_refused: bool,
}

impl LostHold {
    /// The loss of the hold with this token, if at `now` the page reports it as lost or possibly
    /// lost.
    pub fn found(page: &Reader, token: u64, now: u64) -> Option<Self> {
        let state = page.state();
        state.is_over(now).then(|| Self::of(page, &state, token, now))
    }

    /// The loss of the hold with this token, from the state of the page at `now`.
    fn of(page: &Reader, state: &State, token: u64, now: u64) -> Self {
        let (why, at) = state.lost.map_or((Why::Away, now), |lost| (lost.why, lost.at));
        let (engine, host, reached_at) = (page.engine(), page.label(), state.deadline.reached_at);
        Self { token, why, at, reached_at, engine, host, then: None, is_refused: false }
    }
}

/// The action taken so far about a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is held.
    Held,
    /// It may be lost, and the user was warned.
    Warned,
    /// The command received the signal to end.
    Ending,
    /// The command and everything that it started are being killed.
    Killing,
}

/// A hold that can be lost, while its command runs.
#[derive(Debug)]
pub struct HoldMonitor {
    /// The fencing token of the hold.
    pub token: u64,
    page: Reader,
    /// Whether the daemon that wrote the page has gone.
    writer_gone: bool,
    on_lost: OnLost,
    phase: Phase,
    lost: Option<LostHold>,
    /// The loss that a daemon reported without a page for this hold.
    reported: Option<deadline_page::Lost>,
    /// Runs on CLOCK_BOOTTIME, unlike the timeout of poll(2): after a suspend it has expired.
    timer: TimerFd,
    /// The time for which the timer is set.
    set_for: Option<u64>,
}

impl Phase {
    /// The next phase.
    fn next(self, on_lost: OnLost, state: &State, now: u64) -> Self {
        let kill = state.lost.is_some() || now >= state.deadline.kill_at;
        let over = state.is_over(now);
        match (on_lost, self) {
            (OnLost::Warn, Self::Held | Self::Warned) if over => Self::Warned,
            // The engine was reached again before another host could have got the lock.
            (OnLost::Warn, Self::Warned) => Self::Held,
            (OnLost::Kill, Self::Held | Self::Ending) if kill => Self::Killing,
            (OnLost::Kill | OnLost::Term, Self::Held) if over || kill => Self::Ending,
            (_, same) => same,
        }
    }

    /// When to check again.
    fn due(self, on_lost: OnLost, state: &State) -> Option<u64> {
        match self {
            Self::Held => Some(state.deadline.term_at.min(state.deadline.kill_at)),
            Self::Ending if on_lost == OnLost::Kill => Some(state.deadline.kill_at),
            Self::Warned | Self::Ending | Self::Killing => None,
        }
    }
}

impl HoldMonitor {
    /// Monitors a hold. `on_lost` decides what happens to the command if the hold is lost.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(page: Reader, token: u64, on_lost: OnLost) -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        let (phase, writer_gone) = (Phase::Held, false);
        let (lost, reported, set_for) = (None, None, None);
        Ok(Self { token, page, writer_gone, on_lost, phase, lost, reported, timer, set_for })
    }

    /// Reads the page. `Some` if a new phase begins.
    ///
    /// # Errors
    /// The timer cannot be set.
    pub fn check(&mut self) -> io::Result<Option<Phase>> {
        self.writer_gone = self.writer_gone || self.page.is_left();
        let (state, now) = (self.state(), boottime_ms());
        let before = self.phase;
        self.phase = before.next(self.on_lost, &state, now);
        if self.phase == Phase::Held {
            self.lost = None;
        } else if self.lost.is_none() {
            let lost = LostHold::of(&self.page, &state, self.token, now);
            self.lost = Some(LostHold { then: Some(self.on_lost), ..lost });
        }
        self.set(self.phase.due(self.on_lost, &state))?;
        Ok(Some(self.phase).filter(|phase| *phase != before))
    }

    fn state(&self) -> State {
        let state = self.page.state();
        State { lost: state.lost.or(self.reported), ..state }
    }

    /// Continues with the page of the daemon that has taken over the hold, or records that the
    /// present daemon reports the hold as lost.
    pub fn learn(&mut self, fate: Fate) {
        match fate {
            Fate::Held(page) => {
                if self.phase == Phase::Held && !page.state().is_over(boottime_ms()) {
                    (self.page, self.writer_gone) = (page, false);
                }
            }
            Fate::Lost(why) => {
                let lost = deadline_page::Lost { why, at: boottime_ms() };
                self.reported.get_or_insert(lost);
            }
        }
    }

    /// Whether the writer of the page has gone while the page still reports the hold as held. In
    /// that case another daemon may have ended the command.
    pub fn command_may_be_ended(&mut self) -> bool {
        self.writer_gone = self.writer_gone || self.page.is_left();
        self.orphaned_but_safe_for().is_some()
    }

    /// The action taken so far.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The loss that was found.
    pub fn lost(&self) -> Option<&LostHold> {
        self.lost.as_ref()
    }

    /// Whether the supervisor is ending the command.
    pub fn ends_command(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Killing)
    }

    /// Whether the command's descendants must end too before the supervisor ends.
    pub fn ends_descendants(&self) -> bool {
        self.ends_command() && self.on_lost == OnLost::Kill
    }

    /// How much longer the hold is safe, if the page has lost its writer and another page is
    /// needed.
    pub fn orphaned_but_safe_for(&self) -> Option<Duration> {
        let state = self.state();
        let held = self.writer_gone && self.phase == Phase::Held && state.lost.is_none();
        held.then(|| Duration::from_millis(state.deadline.term_at.saturating_sub(boottime_ms())))
    }

    /// The descriptors to poll: the timer, and the liveness pipe until its end.
    pub fn polled(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let line = (!self.writer_gone).then(|| self.page.line());
        std::iter::once(self.timer.as_fd()).chain(line)
    }

    fn set(&mut self, due: Option<u64>) -> io::Result<()> {
        if due == self.set_for {
            return Ok(());
        }
        match due {
            None => self.timer.unset()?,
            Some(due) => {
                // 0 would disarm it.
                let at = TimeSpec::from(Duration::from_millis(due.max(1)));
                self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
        }
        self.set_for = due;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_sys::deadline_page::Deadline;

    const PAGE: State =
        State { deadline: Deadline { reached_at: 0, term_at: 100, kill_at: 150 }, lost: None };
    const LOST: State =
        State { lost: Some(deadline_page::Lost { why: Why::Gone, at: 20 }), ..PAGE };

    /// The phases at these times, from the first on.
    fn phases(on_lost: OnLost, times: &[u64]) -> Vec<Phase> {
        let mut phase = Phase::Held;
        let step = |now: &u64| {
            phase = phase.next(on_lost, &PAGE, *now);
            phase
        };
        times.iter().map(step).collect()
    }

    #[test]
    fn it_ends_at_the_term_and_is_killed_at_the_kill() {
        use Phase::{Ending, Held, Killing};
        assert_eq!(
            phases(OnLost::Kill, &[99, 100, 149, 150, 151]),
            [Held, Ending, Ending, Killing, Killing]
        );
        assert_eq!(phases(OnLost::Term, &[99, 100, 150, 1000]), [Held, Ending, Ending, Ending]);
    }

    #[test]
    fn one_that_was_stopped_past_both_is_killed_without_being_asked_first() {
        assert_eq!(phases(OnLost::Kill, &[10, 1000]), [Phase::Held, Phase::Killing]);
        assert_eq!(phases(OnLost::Term, &[10, 1000]), [Phase::Held, Phase::Ending]);
    }

    #[test]
    fn what_is_lost_is_acted_upon_at_once() {
        for (on_lost, phase) in [
            (OnLost::Kill, Phase::Killing),
            (OnLost::Term, Phase::Ending),
            (OnLost::Warn, Phase::Warned),
        ] {
            assert_eq!(Phase::Held.next(on_lost, &LOST, 20), phase);
            assert_eq!(phase.due(on_lost, &LOST), None);
        }
        assert_eq!(Phase::Ending.next(OnLost::Kill, &LOST, 120), Phase::Killing);
    }

    #[test]
    fn a_warning_is_repeated_only_if_it_was_held_meanwhile() {
        use Phase::{Held, Warned};
        assert_eq!(phases(OnLost::Warn, &[99, 100, 200]), [Held, Warned, Warned]);
        assert_eq!(Warned.next(OnLost::Warn, &PAGE, 50), Held, "the page has moved on");
        assert_eq!(Warned.next(OnLost::Warn, &LOST, 50), Warned);
    }

    #[test]
    fn a_page_that_moves_on_takes_no_end_back() {
        assert_eq!(Phase::Ending.next(OnLost::Kill, &PAGE, 50), Phase::Ending);
        assert_eq!(Phase::Killing.next(OnLost::Kill, &PAGE, 50), Phase::Killing);
    }

    #[test]
    fn it_is_looked_at_again_when_the_next_thing_is_due() {
        assert_eq!(Phase::Held.due(OnLost::Term, &PAGE), Some(100));
        assert_eq!(Phase::Ending.due(OnLost::Kill, &PAGE), Some(150));
        assert_eq!(Phase::Ending.due(OnLost::Term, &PAGE), None);
        assert_eq!(Phase::Killing.due(OnLost::Kill, &PAGE), None);
    }
}
