//! Decides when a client that waits for a message wakes up, and when silence is an error. No clock.
//!
//! A busy daemon gets more time than one that sleeps or is stopped: on an overloaded machine, it
//! may need many seconds for a task of milliseconds. Only [`Owed`] decides that, for every wait.
//!
//! Invariant: only short waits in which nothing came count against the daemon, so the client never
//! blames it for time in which the client itself did not run.

use std::time::{Duration, Instant};

use canal_sys::process::Activity;

/// The longest single wait for a daemon that owes a message. Only such waits count against the
/// daemon, so that a client that was itself stopped does not blame it.
const SLICE: Duration = Duration::from_secs(1);

/// The silence after which a stopped daemon is an error.
const STOPPED_AFTER: Duration = Duration::from_secs(30);

/// How long an answer from the history may take. The thread that searches it has the lowest
/// priority and hardly runs on a busy machine.
const SEARCH_MAX: Duration = Duration::from_secs(3_600);

/// The shortest wait, because a wait of 0 would mean no wait at all.
const PATIENCE_MIN: Duration = Duration::from_millis(1);

/// How long the daemon may take to send a message that it owes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long in a row its process may sleep, be stopped or be unknown.
    pub idle: Duration,
    /// How long it may take in total while it is found busy: while it executes, is ready to
    /// execute, or waits for the disk.
    pub busy: Duration,
    /// Whether a sleeping process counts as busy, because another thread than its first prepares
    /// the message.
    pub by_other_thread: bool,
}

impl Limits {
    /// The limits for a message that the daemon's first thread prepares.
    pub const fn of(idle: Duration, busy: Duration) -> Self {
        Self { idle, busy, by_other_thread: false }
    }

    /// The limits for a search of the daemon's history.
    pub fn of_search(self) -> Self {
        Self { busy: SEARCH_MAX, by_other_thread: true, ..self }
    }
}

/// A message that the daemon owes, and for how long it has owed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed {
    limits: Limits,
    /// How long nothing has come.
    pub(crate) silent: Duration,
    /// How long nothing has come since the daemon was last found busy.
    idle: Duration,
    /// How long nothing had come when the client last checked the daemon's activity.
    looked_at: Duration,
    is_over: bool,
}

impl Owed {
    /// Starts a debt: the daemon owes a message from now on.
    pub(crate) fn new(limits: Limits) -> Self {
        let none = Duration::ZERO;
        Self { limits, silent: none, idle: none, looked_at: none, is_over: false }
    }

    /// How long the client may wait for the message before it calls [`Self::grow`].
    pub(crate) fn patience(&self) -> Duration {
        if self.is_over {
            return Duration::ZERO;
        }
        let idle = self.limits.idle.saturating_sub(self.idle);
        let all = self.longest().saturating_sub(self.silent);
        idle.min(all).min(SLICE).max(PATIENCE_MIN)
    }

    /// Counts a wait of `waited` in which nothing came. Returns whether the silence is an error.
    ///
    /// The client checks the daemon's activity once a second, and not only when the time is over. A
    /// daemon that started late because the machine is busy may then have to wait for an engine,
    /// and sleeps.
    pub(crate) fn grow(&mut self, waited: Duration, activity: impl FnOnce() -> Activity) -> bool {
        if self.is_over {
            return true;
        }
        // An interrupted wait proves nothing.
        if waited.is_zero() {
            return false;
        }
        self.silent += waited;
        self.idle += waited;
        let looks = self.silent - self.looked_at >= SLICE || self.idle >= self.limits.idle;
        if looks {
            self.looked_at = self.silent;
            let activity = activity();
            let by_other_thread = activity == Activity::Idle && self.limits.by_other_thread;
            if activity == Activity::Busy || by_other_thread {
                self.idle = Duration::ZERO;
            }
        }
        // The client reads once more before this counts as an error: the daemon may have answered
        // after the last read, and gone to sleep before the check.
        self.is_over = self.idle >= self.limits.idle || self.silent >= self.longest();
        false
    }

    fn longest(&self) -> Duration {
        self.limits.busy.max(self.limits.idle)
    }
}

/// How long the daemon has been silent about a request.
#[derive(Debug)]
pub(crate) struct Silence {
    limits: Limits,
    /// Whether the daemon has sent a message about this request.
    pub(crate) answered: bool,
    /// The message that the daemon owes. `None` while nothing has changed and it owes none: the
    /// client then sleeps until something is due.
    owed: Option<Owed>,
    /// When the client next checks whether the daemon is stopped.
    look_at: Instant,
}

impl Silence {
    /// Starts when the client has sent its request, at `now`. The daemon owes the first message.
    pub(crate) fn new(limits: Limits, now: Instant) -> Self {
        Self { limits, answered: false, owed: Some(Owed::new(limits)), look_at: now }
    }

    /// How long the client may wait for the next message; `left` is the rest of its `-w`.
    pub(crate) fn patience(&self, left: Option<Duration>, now: Instant) -> Duration {
        match &self.owed {
            Some(owed) => owed.patience(),
            None => self.look_at.saturating_duration_since(now).min(left.unwrap_or(Duration::MAX)),
        }
    }

    /// Records a message of the daemon.
    pub(crate) fn end_with_word(&mut self, now: Instant) {
        self.answered = true;
        self.end_with_part(now);
    }

    /// Records a part of a message of the daemon.
    pub(crate) fn end_with_part(&mut self, now: Instant) {
        self.owed = (!self.answered).then(|| Owed::new(self.limits));
        self.look_at = now + self.look_every();
    }

    /// Counts a wait of `waited` without a message. Returns whether the daemon has owed a message
    /// for too long, which is an error.
    pub(crate) fn grow(
        &mut self,
        waited: Duration,
        wait_is_over: bool,
        now: Instant,
        activity: impl Fn() -> Activity,
    ) -> bool {
        let looks = now >= self.look_at;
        if !self.answered || wait_is_over || (looks && activity() == Activity::Stopped) {
            // The daemon may have owed nothing at the start of a long wait.
            let waited = self.owed.map_or(Duration::ZERO, |_| waited);
            return self.owed.get_or_insert(Owed::new(self.limits)).grow(waited, activity);
        }
        self.owed = None;
        if looks {
            self.look_at = now + self.look_every();
        }
        false
    }

    /// How often to check for a stopped daemon. One that is found stopped gets the time of an
    /// answer to continue.
    fn look_every(&self) -> Duration {
        STOPPED_AFTER.saturating_sub(self.limits.idle)
    }
}

#[cfg(test)]
mod tests {
    use Activity::{Busy, Idle, Stopped};

    use super::*;
    use crate::client::connection::options::{Options, Start};

    const IDLE: Duration = Duration::from_secs(5);
    const LIMITS: Limits = Limits::of(IDLE, Duration::from_secs(30));

    /// A waiter whose clock advances only while it waits or is itself stopped.
    struct Waiter {
        silence: Silence,
        began: Instant,
        now: Instant,
        wakes: u32,
    }

    impl Waiter {
        fn new() -> Self {
            let now = Instant::now();
            Self { silence: Silence::new(LIMITS, now), began: now, now, wakes: 0 }
        }

        fn answered() -> Self {
            let mut waiter = Self::new();
            waiter.silence.end_with_word(waiter.now);
            waiter
        }

        fn seconds(&self) -> u64 {
            (self.now - self.began).as_secs()
        }

        /// Waits once while nothing comes, and is itself stopped for `late` after that. Returns
        /// whether that is an error.
        fn wait(&mut self, wait_s: Option<u64>, late: Duration, activity: Activity) -> bool {
            let until = wait_s.map(|wait_s| self.began + Duration::from_secs(wait_s));
            let left = until.map(|until| until.saturating_duration_since(self.now));
            let patience = self.silence.patience(left, self.now);
            self.now += patience + late;
            self.wakes += 1;
            let is_over = until.is_some_and(|until| self.now >= until);
            self.silence.grow(patience, is_over, self.now, || activity)
        }

        /// After how many seconds a wait without a message is an error.
        fn fails_after(&mut self, wait_s: Option<u64>, activity: Activity) -> u64 {
            while !self.wait(wait_s, Duration::ZERO, activity) {
                assert!(self.seconds() < 10_000, "{:?}", self.silence);
            }
            self.seconds()
        }
    }

    #[test]
    fn a_silent_daemon_is_an_error_when_it_owes_a_word() {
        assert_eq!(Waiter::new().fails_after(None, Idle), 5);
        assert_eq!(Waiter::new().fails_after(Some(0), Idle), 5);
        assert_eq!(Waiter::answered().fails_after(Some(600), Idle), 605);
        assert_eq!(Waiter::answered().fails_after(None, Stopped), 30);
        assert_eq!(Waiter::answered().fails_after(Some(10), Stopped), 15);
    }

    #[test]
    fn a_daemon_that_runs_may_be_silent_and_wakes_nobody() {
        let mut waiter = Waiter::answered();
        while waiter.seconds() < 3600 {
            assert!(!waiter.wait(Some(7200), Duration::ZERO, Idle));
        }
        assert_eq!(waiter.wakes, 3600 / 25);
        // The client notices it as soon as at the beginning.
        assert!(waiter.fails_after(None, Stopped) <= 3600 + 30);
    }

    #[test]
    fn time_in_which_the_client_is_stopped_is_not_the_daemons() {
        let hour = Duration::from_secs(3600);
        for (mut waiter, wait_s, activity) in [
            (Waiter::new(), None, Idle),
            (Waiter::answered(), Some(10), Idle),
            (Waiter::answered(), None, Stopped),
        ] {
            // Both were stopped in the meantime, and the daemon continues a moment later.
            for _ in 0..4 {
                assert!(!waiter.wait(wait_s, hour, activity), "{:?}", waiter.silence);
            }
            waiter.silence.end_with_word(waiter.now);
            assert!(!waiter.wait(None, Duration::ZERO, Idle));
            assert!(waiter.silence.owed.is_none());
        }
    }

    #[test]
    fn a_daemon_that_is_continued_owes_nothing() {
        let mut waiter = Waiter::answered();
        for _ in 0..10 {
            for _ in 0..5 {
                assert!(!waiter.wait(None, Duration::ZERO, Stopped), "{:?}", waiter.silence);
            }
            assert!(!waiter.wait(None, Duration::ZERO, Idle));
        }
    }

    #[test]
    fn a_part_of_a_word_is_no_silence_and_no_word() {
        let mut waiter = Waiter::new();
        for _ in 0..100 {
            assert!(!waiter.wait(None, Duration::ZERO, Idle));
            waiter.silence.end_with_part(waiter.now);
        }
        let begun = waiter.seconds();
        assert_eq!(waiter.fails_after(None, Idle), begun + 5);
    }

    #[test]
    fn a_busy_daemon_gets_longer_for_the_same_words() {
        assert_eq!(Waiter::new().fails_after(None, Busy), 30);
        assert_eq!(Waiter::new().fails_after(Some(0), Busy), 30);
        assert_eq!(Waiter::answered().fails_after(Some(600), Busy), 630);
    }

    #[test]
    fn a_daemon_may_sleep_while_another_thread_searches_but_not_be_stopped() {
        let limits = Options::from(Start::Never).limits.of_search();
        let fails_after = |activity| {
            let mut owed = Owed::new(limits);
            let mut waited = Duration::ZERO;
            loop {
                let patience = owed.patience();
                waited += patience;
                if owed.grow(patience, || activity) {
                    return waited;
                }
            }
        };
        assert_eq!(fails_after(Idle), SEARCH_MAX);
        assert_eq!(fails_after(Busy), SEARCH_MAX);
        assert_eq!(fails_after(Stopped), limits.idle);
    }

    #[test]
    fn a_daemon_that_was_busy_gets_the_usual_time_once_it_is_not() {
        for then in [Idle, Stopped] {
            let mut waiter = Waiter::new();
            while waiter.seconds() < 12 {
                assert!(!waiter.wait(None, Duration::ZERO, Busy));
            }
            assert_eq!(waiter.fails_after(None, then), 17, "{then:?}");
        }
        // The daemon sleeps briefly, and works in between.
        let mut waiter = Waiter::new();
        let mut states = [Busy, Idle, Idle, Idle, Idle].into_iter().cycle();
        while waiter.seconds() < 5 {
            assert!(!waiter.wait(None, Duration::ZERO, Busy));
        }
        while !waiter.wait(None, Duration::ZERO, states.next().unwrap()) {}
        assert_eq!(waiter.seconds(), 30);
    }

    #[test]
    fn what_the_daemon_does_is_looked_up_once_a_second() {
        let mut owed = Owed::new(LIMITS);
        let (mut waited, mut looks) = (Duration::ZERO, Vec::new());
        loop {
            let patience = owed.patience();
            waited += patience;
            let look = || {
                looks.push(waited.as_secs());
                Busy
            };
            if owed.grow(patience, look) {
                break;
            }
        }
        assert_eq!(looks, (1..=30).collect::<Vec<u64>>());
    }

    #[test]
    fn a_daemon_that_begins_late_and_then_waits_for_others_has_its_whole_time() {
        let mut waiter = Waiter::new();
        for _ in 0..3 {
            assert!(!waiter.wait(None, Duration::ZERO, Busy));
        }
        assert_eq!(waiter.fails_after(None, Idle), 3 + 5);
    }

    #[test]
    fn the_client_reads_once_more_before_silence_is_an_error() {
        let mut owed = Owed::new(LIMITS);
        assert!(!owed.grow(IDLE, || Idle));
        assert_eq!(owed.patience(), Duration::ZERO);
        assert!(owed.grow(Duration::ZERO, || Busy));
    }
}
