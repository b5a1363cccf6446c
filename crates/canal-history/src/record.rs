//! A request that has ended.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use canal_core::{FrameId, Mode, SlotRange};
use canal_protocol::{HistoryClient, HistoryItem, HistoryRecord, HistoryStep};
use canal_text::time::utc;

/// A request that has ended, granted or not. The daemon writes it without copying its texts.
///
/// The time and the first key come first: most records do not fit a search, which skips them
/// without reading more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<'a> {
    /// When it ended, in milliseconds since 1970 UTC.
    pub ended_ms: u64,
    /// The items of the request.
    #[serde(borrow)]
    pub items: Vec<Item<'a>>,
    /// The user.
    pub uid: u32,
    pub ending: Ending,
    /// How many milliseconds it waited.
    pub waited_ms: u64,
    /// How many milliseconds it held its locks; `None` if it was never granted.
    pub held_ms: Option<u64>,
    /// The fencing token of its hold; 0 if it was never granted.
    pub token: u64,
    /// The outermost frame of its session; 0 if it had no frame.
    pub session: u64,
    /// The process that owned it; 0 for a lease.
    pub pid: u32,
    /// The command as the client named it.
    #[serde(borrow)]
    pub command: Cow<'a, str>,
    /// The note of the client.
    pub note: Option<Cow<'a, str>>,
    /// The name of this host, if several hosts share the table.
    pub host: Option<Cow<'a, str>>,
    /// Whether no daemon saw the end. `ended_ms` is then the last time at which the request is
    /// known to have waited or held its locks, and the length until then is a lower bound.
    pub at_least: bool,
}

/// The part of a request for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item<'a> {
    #[serde(borrow)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        /// That client, if it called this host's daemon.
        by: Option<HistoryClient>,
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
    /// It was refused: it was not allowed to wait, and too few slots were free.
    Full,
    /// It was refused: a key was paused, and it was not allowed to wait.
    Paused,
    /// It was refused: too many requests were already waiting.
    MaxWaiting,
    /// It was refused: it would have waited forever. Has the deadlock, the refused request first;
    /// nothing if it would have waited for itself.
    Deadlock(Vec<HistoryStep>),
    /// It was refused: it asked for more slots than the lock has.
    TooLarge,
    /// It was refused: the key was in use as another kind of lock.
    Mismatch,
    /// It was refused: a newer request superseded it.
    Superseded,
    /// The process ended after its supervisor had signalled it, because it had run for longer than
    /// `--max-run` allows. Both are `None` if the kernel did not report how it ended.
    MaxRun { exit: Option<u8>, signal: Option<u8> },
    /// It waited, and this client ended its process with this signal, through the daemon.
    KilledWaiting { signal: u8, by: HistoryClient },
}

impl Ending {
    /// Its name in messages and metrics.
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
            Self::MaxRun { .. } => "max-run",
            Self::KilledWaiting { .. } => "killed",
            Self::Full => "full",
            Self::Paused => "paused",
            Self::MaxWaiting => "max-waiting",
            Self::Deadlock(_) => "deadlock",
            Self::TooLarge => "too-large",
            Self::Mismatch => "mismatch",
            Self::Superseded => "superseded",
        }
    }

    /// The ending of a process that ended with this status of wait(2). An ending that is not that
    /// of a process stays as it is.
    pub fn with_status(self, status: i32) -> Self {
        let (exit, signal) = match u8::try_from(status & 0x7f) {
            Ok(0) => (Some(u8::try_from(status >> 8 & 0xff).unwrap_or(u8::MAX)), None),
            Ok(signal) => (None, Some(signal)),
            Err(_) => return self,
        };
        match (self, exit, signal) {
            (Self::MaxRun { .. }, ..) => Self::MaxRun { exit, signal },
            (Self::Ended, Some(exit), _) => Self::Exited(exit),
            (Self::Ended, _, Some(signal)) => Self::Killed(signal),
            (other, ..) => other,
        }
    }

    /// Whether the request may have failed: it was not released and did not exit with status 0. An
    /// unknown exit status may be a failure, so a search for failures must not hide it.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Released | Self::Exited(0))
    }
}

impl Record<'_> {
    /// When it was requested, in milliseconds since 1970 UTC.
    pub fn asked_ms(&self) -> u64 {
        let before = self.waited_ms.saturating_add(self.held_ms.unwrap_or(0));
        self.ended_ms.saturating_sub(before)
    }

    /// The record as reports show it. `number` is its number at this host.
    pub fn shown(&self, number: u64) -> HistoryRecord {
        let items = self.items.iter().map(|item| HistoryItem {
            key: item.key.to_string(),
            mode: item.mode,
            count: item.count,
            slots: (!item.slots.is_empty())
                .then(|| canal_text::ranges(item.slots.iter().map(|slots| (slots.0, slots.1)))),
        });
        let (mut exit, mut signal, mut by, mut cycle) = Default::default();
        match &self.ending {
            Ending::Exited(status) => exit = Some(*status),
            Ending::Killed(number) => signal = Some(*number),
            Ending::Forced { by: client } => by = *client,
            Ending::MaxRun { exit: status, signal: number } => (exit, signal) = (*status, *number),
            Ending::KilledWaiting { signal: number, by: client } => {
                (signal, by) = (Some(*number), Some(*client));
            }
            Ending::Deadlock(steps) => cycle = steps.clone(),
            _ => {}
        }
        HistoryRecord {
            number,
            asked: utc(self.asked_ms()),
            ended: utc(self.ended_ms),
            ended_ms: self.ended_ms,
            how: self.ending.word().to_owned(),
            exit,
            signal,
            by,
            cycle,
            waited_ms: self.waited_ms,
            held_ms: self.held_ms,
            items: items.collect(),
            token: self.held_ms.map(|_| self.token),
            session: (self.session != 0).then(|| format!("s{}", FrameId(self.session))),
            job: None,
            uid: self.uid,
            pid: self.pid,
            command: Some(self.command.to_string()),
            note: self.note.as_deref().map(str::to_owned),
            host: self.host.as_deref().map(str::to_owned),
            at_least: self.at_least,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record of a hold that ended at this time.
    pub(crate) fn record(ended_ms: u64, key: &str, uid: u32) -> Record<'static> {
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

    fn endings() -> Vec<Ending> {
        let step = |session: &str| HistoryStep {
            session: session.to_owned(),
            uid: 1000,
            pid: 7,
            key: "a/b".to_owned(),
        };
        let by = HistoryClient { uid: u32::MAX, pid: 1 };
        vec![
            Ending::Released,
            Ending::Ended,
            Ending::Exited(255),
            Ending::Killed(9),
            Ending::Expired,
            Ending::Forced { by: None },
            Ending::Forced { by: Some(by) },
            Ending::Lost,
            Ending::Reboot,
            Ending::Withdrawn,
            Ending::Abandoned,
            Ending::Timeout,
            Ending::Mismatch,
            Ending::Deadlock(vec![step("s1"), step("s2")]),
            Ending::MaxRun { exit: None, signal: Some(15) },
            Ending::KilledWaiting { signal: 15, by },
        ]
    }

    /// A record with every field, with each ending.
    pub(crate) fn every_kind() -> impl Iterator<Item = Record<'static>> {
        endings().into_iter().map(|ending| {
            let item = |key: &str, mode, count| {
                let ranges = [(0, 0), (3, 900), (u64::MAX - 1, u64::MAX)];
                let ranges = ranges.into_iter().take(if count == 0 { 0 } else { 3 });
                let slots = ranges.map(|(first, last)| SlotRange(first, last)).collect();
                Item { key: key.to_owned().into(), mode, count, size: count, slots }
            };
            Record {
                items: vec![
                    item("ä", Mode::Read, 0),
                    item("b", Mode::Write, 0),
                    item("c", Mode::Counted, u64::MAX),
                ],
                note: Some("run 7".into()),
                host: Some("alpha".into()),
                at_least: ending == Ending::Reboot,
                ending,
                ..record(u64::MAX, "x", u32::MAX)
            }
        })
    }

    #[test]
    fn what_was_asked_for_is_found_from_the_end() {
        assert_eq!(record(10_000, "x", 0).asked_ms(), 8_200);
        let never = Record { held_ms: None, ..record(10_000, "x", 0) };
        assert_eq!(never.asked_ms(), 8_500);
        assert_eq!(record(7, "x", 0).asked_ms(), 0, "the clock was set back");
    }

    #[test]
    fn a_status_is_read_as_wait_gives_it() {
        let of = |status: i32| Ending::Ended.with_status(status);
        assert_eq!(of(0), Ending::Exited(0));
        assert_eq!(of(9 << 8), Ending::Exited(9));
        assert_eq!(of(255 << 8), Ending::Exited(255));
        assert_eq!(of(9), Ending::Killed(9));
        assert_eq!(of(11 | 0x80), Ending::Killed(11), "with a core dump");
        let limited = |status: i32| Ending::MaxRun { exit: None, signal: None }.with_status(status);
        assert_eq!(limited(0), Ending::MaxRun { exit: Some(0), signal: None });
        assert_eq!(limited(15), Ending::MaxRun { exit: None, signal: Some(15) });
        assert_eq!(Ending::Released.with_status(15), Ending::Released);
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
            Ending::Full,
            Ending::MaxRun { exit: Some(0), signal: None },
            Ending::KilledWaiting { signal: 15, by: HistoryClient { uid: 0, pid: 1 } },
        ];
        for ending in failures {
            assert!(of(ending.clone()), "{ending:?}");
        }
    }
}
