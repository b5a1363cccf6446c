//! A request that has ended.

use std::borrow::Cow;

use canal_core::{Mode, SlotRange};

/// A request that has ended, granted or not. The daemon writes it without copying its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// When it ended, in milliseconds since 1970 UTC.
    pub ended_ms: u64,
    /// How many milliseconds it waited.
    pub waited_ms: u64,
    /// How many milliseconds it held its locks; `None` if it was never granted.
    pub held_ms: Option<u64>,
    /// The fencing token of its hold; 0 if it was never granted.
    pub token: u64,
    /// The items of the request.
    pub items: Vec<Item<'a>>,
    /// The outermost frame of its session; 0 if it had no frame.
    pub session: u64,
    /// The user.
    pub uid: u32,
    /// The process that owned it; 0 for a lease.
    pub pid: u32,
    /// The command as the client named it.
    pub command: Cow<'a, str>,
    /// The note of the client.
    pub note: Option<Cow<'a, str>>,
    /// The name of this host, if several hosts share the table.
    pub host: Option<Cow<'a, str>>,
    /// Whether no daemon saw the end. `ended_ms` is then the last time at which the request is
    /// known to have waited or held its locks, and the length until then is a lower bound.
    pub at_least: bool,
    pub ending: Ending,
}

/// A record that was read.
pub type Record = Fields<'static>;

/// The part of a request for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub key: Cow<'a, str>,
    pub mode: Mode,
    /// The number of slots; 0 for a read or a write.
    pub count: u64,
    /// The size under which it was granted; if it was not granted, the size that it passed or was
    /// given. 0 for a read or a write.
    pub size: u64,
    /// The slots that it had; none if it was never granted, or if it shared the slots of another
    /// hold.
    pub slots: Cow<'a, [SlotRange]>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The owner released it.
    Released,
    /// The process ended; the kernel did not report how.
    Ended,
    /// The process ended with this exit status.
    Exited(u8),
    /// This signal killed the process.
    Killed(u8),
    /// A lease that was not renewed in time.
    Expired,
    /// Another client released it by force.
    Forced {
        /// User and process of that client, if it called this host's daemon.
        by: Option<(u32, u32)>,
    },
    /// The host lost it, over an engine.
    Lost,
    /// The machine went down.
    Reboot,
    /// The client went away, or withdrew the request.
    Withdrawn,
    /// The client gave up because its output had lost its reader.
    Abandoned,
    /// The wait took longer than the client allowed.
    Timeout,
    /// The table refused it.
    Refused {
        reason: Reason,
        /// The deadlock, the refused request first; empty for other reasons.
        ring: Vec<RingStep>,
    },
}

/// Why the table refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was not allowed to wait, and too few slots were free.
    Full,
    /// A key was paused, and it was not allowed to wait.
    Paused,
    /// Too many requests were already waiting.
    MaxWaiting,
    /// It would have waited forever.
    Deadlock,
    /// It asked for more slots than the lock has.
    TooLarge,
    /// The key was in use as another kind of lock.
    Mismatch,
    /// A newer request superseded it.
    Superseded,
}

/// One step of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingStep {
    /// The session that waited.
    pub session: u64,
    pub uid: u32,
    pub pid: u32,
    /// The key that it waited for.
    pub key: String,
}

impl Reason {
    /// Each reason and its name, in the order of their numbers.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Full, "full"),
        (Self::Paused, "paused"),
        (Self::MaxWaiting, "max-waiting"),
        (Self::Deadlock, "deadlock"),
        (Self::TooLarge, "too-large"),
        (Self::Mismatch, "mismatch"),
        (Self::Superseded, "superseded"),
    ];

    /// Its name in messages and metrics.
    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl Ending {
    /// Its name in messages.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Ended | Self::Exited(_) | Self::Killed(_) => "ended",
            Self::Expired => "expired",
            Self::Forced { .. } => "forced",
            Self::Lost => "lost",
            Self::Reboot => "reboot",
            Self::Withdrawn => "withdrawn",
            Self::Abandoned => "abandoned",
            Self::Timeout => "timeout",
            Self::Refused { reason, .. } => reason.word(),
        }
    }

    /// Whether the request may have failed: it was not released and did not exit with status 0. An
    /// unknown exit status may be a failure, so a search for failures must not hide it.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Released | Self::Exited(0))
    }
}

impl Fields<'_> {
    /// When it was requested, in milliseconds since 1970 UTC.
    pub fn asked_ms(&self) -> u64 {
        let before = self.waited_ms.saturating_add(self.held_ms.unwrap_or(0));
        self.ended_ms.saturating_sub(before)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record of a hold that ended at this time.
    pub(crate) fn record(ended_ms: u64, key: &str, uid: u32) -> Record {
        Record {
            ended_ms,
            waited_ms: 1_500,
            held_ms: Some(300),
            token: 77,
            items: vec![Item {
                key: key.to_owned().into(),
                mode: Mode::Counted,
                count: 1,
                size: 2,
                slots: Cow::default(),
            }],
            session: 12,
            uid,
            pid: 812,
            command: "make -j4 ".repeat(8).into(),
            note: None,
            host: None,
            at_least: false,
            ending: Ending::Exited(0),
        }
    }

    #[test]
    fn what_was_asked_for_is_found_from_the_end() {
        assert_eq!(record(10_000, "x", 0).asked_ms(), 8_200);
        let never = Record { held_ms: None, ..record(10_000, "x", 0) };
        assert_eq!(never.asked_ms(), 8_500);
        assert_eq!(record(7, "x", 0).asked_ms(), 0, "the clock was set back");
    }

    #[test]
    fn each_reason_is_listed_at_its_number() {
        for (number, (reason, _)) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }

    #[test]
    fn an_end_that_nobody_wanted_or_knows_is_a_failure() {
        let of = |ending: Ending| ending.is_failure();
        assert!(!of(Ending::Released) && !of(Ending::Exited(0)));
        let failures = [
            Ending::Ended,
            Ending::Exited(1),
            Ending::Killed(15),
            Ending::Expired,
            Ending::Forced { by: None },
            Ending::Lost,
            Ending::Reboot,
            Ending::Withdrawn,
            Ending::Abandoned,
            Ending::Timeout,
            Ending::Refused { reason: Reason::Full, ring: Vec::new() },
        ];
        for ending in failures {
            assert!(of(ending.clone()), "{ending:?}");
        }
    }
}
