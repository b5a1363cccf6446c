//! When a client that waits for a grant wakes up, and when the daemon's silence is an error.
//!
//! Invariant: only short waits in which nothing came count against the daemon, so that time in
//! which the client itself did not run is never taken for silence of the daemon. A client makes
//! short waits only while the daemon owes it a message; otherwise it sleeps until something is due.
//!
//! There is no clock here: the caller passes the time.

use std::time::{Duration, Instant};

use super::stream::SLICE;

/// A daemon that is stopped is an error after this silence.
const STOPPED_AFTER: Duration = Duration::from_secs(30);

/// How long the daemon has been silent about a request.
#[derive(Debug)]
pub(crate) struct Silence {
    /// How long the daemon may take for a message that it owes.
    answer: Duration,
    /// Whether the daemon has sent a message about this request.
    answered: bool,
    /// How long the daemon has owed a message. `None` while it owes none because nothing has
    /// changed.
    owed: Option<Duration>,
    /// When the client next checks whether the daemon is stopped.
    look_at: Instant,
}

impl Silence {
    /// The client has sent its request at `now`, so the daemon owes the first message.
    pub(crate) fn new(answer: Duration, now: Instant) -> Self {
        let owed = Some(Duration::ZERO);
        Self { answer, answered: false, owed, look_at: now }
    }

    /// How long the client may wait for the next message; `left` is the rest of its `-w`.
    pub(crate) fn patience(&self, left: Option<Duration>, now: Instant) -> Duration {
        match self.owed {
            Some(owed) => self.answer.saturating_sub(owed).min(SLICE),
            None => self.look_at.saturating_duration_since(now).min(left.unwrap_or(Duration::MAX)),
        }
    }

    /// Whether the daemon has sent a message about this request.
    pub(crate) fn answered(&self) -> bool {
        self.answered
    }

    /// The daemon sent a message.
    pub(crate) fn end_with_word(&mut self, now: Instant) {
        self.answered = true;
        self.end_with_part(now);
    }

    /// The daemon sent a part of a message.
    pub(crate) fn end_with_part(&mut self, now: Instant) {
        self.owed = (!self.answered).then_some(Duration::ZERO);
        self.look_at = now + self.look_every();
    }

    /// Counts a wait of `waited` without a message. Returns whether the silence is an error: the
    /// daemon has owed a message for too long.
    pub(crate) fn grow(
        &mut self,
        waited: Duration,
        wait_is_over: bool,
        now: Instant,
        is_stopped: impl FnOnce() -> bool,
    ) -> bool {
        let looks = now >= self.look_at;
        if !self.answered || wait_is_over || (looks && is_stopped()) {
            // The wait may have been a long one in which the daemon owed nothing at first.
            let owed = self.owed.map_or(Duration::ZERO, |owed| owed + waited);
            self.owed = Some(owed);
            return owed >= self.answer;
        }
        self.owed = None;
        if looks {
            self.look_at = now + self.look_every();
        }
        false
    }

    /// A daemon that is found stopped gets the time of an answer to go on.
    fn look_every(&self) -> Duration {
        STOPPED_AFTER.saturating_sub(self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Duration = Duration::from_secs(5);

    /// A waiter whose time passes only as it waits, or is itself stopped.
    struct Waiter {
        silence: Silence,
        began: Instant,
        now: Instant,
        wakes: u32,
    }

    impl Waiter {
        fn new() -> Self {
            let now = Instant::now();
            Self { silence: Silence::new(ANSWER, now), began: now, now, wakes: 0 }
        }

        fn answered() -> Self {
            let mut waiter = Self::new();
            waiter.silence.end_with_word(waiter.now);
            waiter
        }

        fn seconds(&self) -> u64 {
            (self.now - self.began).as_secs()
        }

        /// Waits once for nothing, with `late` in which the client was stopped; whether that is an
        /// error.
        fn wait(&mut self, wait_s: Option<u64>, late: Duration, is_stopped: bool) -> bool {
            let until = wait_s.map(|wait_s| self.began + Duration::from_secs(wait_s));
            let left = until.map(|until| until.saturating_duration_since(self.now));
            let patience = self.silence.patience(left, self.now);
            self.now += patience + late;
            self.wakes += 1;
            let is_over = until.is_some_and(|until| self.now >= until);
            self.silence.grow(patience, is_over, self.now, || is_stopped)
        }

        /// When waiting without a message is an error, in seconds.
        fn fails_after(&mut self, wait_s: Option<u64>, is_stopped: bool) -> u64 {
            while !self.wait(wait_s, Duration::ZERO, is_stopped) {
                assert!(self.seconds() < 10_000, "{:?}", self.silence);
            }
            self.seconds()
        }
    }

    #[test]
    fn a_silent_daemon_is_an_error_when_it_owes_a_word() {
        assert_eq!(Waiter::new().fails_after(None, false), 5);
        assert_eq!(Waiter::new().fails_after(Some(0), false), 5);
        assert_eq!(Waiter::answered().fails_after(Some(600), false), 605);
        assert_eq!(Waiter::answered().fails_after(None, true), 30);
        assert_eq!(Waiter::answered().fails_after(Some(10), true), 15);
    }

    #[test]
    fn a_daemon_that_runs_may_be_silent_and_wakes_nobody() {
        let mut waiter = Waiter::answered();
        while waiter.seconds() < 3600 {
            assert!(!waiter.wait(Some(7200), Duration::ZERO, false));
        }
        assert_eq!(waiter.wakes, 3600 / 25);
        // It is noticed as soon as at the beginning.
        assert!(waiter.fails_after(None, true) <= 3600 + 30);
    }

    #[test]
    fn time_in_which_the_client_is_stopped_is_not_the_daemons() {
        let hour = Duration::from_secs(3600);
        for (mut waiter, wait_s, is_stopped) in [
            (Waiter::new(), None, false),
            (Waiter::answered(), Some(10), false),
            (Waiter::answered(), None, true),
        ] {
            // Both were stopped meanwhile, and the daemon goes on a moment later.
            for _ in 0..4 {
                assert!(!waiter.wait(wait_s, hour, is_stopped), "{:?}", waiter.silence);
            }
            waiter.silence.end_with_word(waiter.now);
            assert!(!waiter.wait(None, Duration::ZERO, false));
            assert_eq!(waiter.silence.owed, None);
        }
    }

    #[test]
    fn a_daemon_that_is_continued_owes_nothing() {
        let mut waiter = Waiter::answered();
        for _ in 0..10 {
            for _ in 0..5 {
                assert!(!waiter.wait(None, Duration::ZERO, true), "{:?}", waiter.silence);
            }
            assert!(!waiter.wait(None, Duration::ZERO, false));
        }
    }

    #[test]
    fn a_part_of_a_word_is_no_silence_and_no_word() {
        let mut waiter = Waiter::new();
        for _ in 0..100 {
            assert!(!waiter.wait(None, Duration::ZERO, false));
            waiter.silence.end_with_part(waiter.now);
        }
        let begun = waiter.seconds();
        assert_eq!(waiter.fails_after(None, false), begun + 5);
    }
}
