//! Queries of the history.
//!
//! Invariant: only the user of a command and root see it, as in a status.

use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::history::queue::Question;
use crate::net::call_state::CallState;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::wording::text::time;
use canal_core::{FrameId, SlotRange, Slots, UnixMillis};
use canal_history::{Ending, Found, Query, Reason, Record};
use canal_protocol::{
    ErrorName, Failure, HistoryClient, HistoryItem, HistoryPage, HistoryQuery, HistoryRecord,
    HistoryStep,
};
use canal_sys::clock;

/// The most records of a page.
const PAGE_MAX: u64 = 500;

impl Server {
    /// Starts a search. The client gets the answer once the search has finished.
    pub(crate) fn history(&mut self, id: ConnId, query: &HistoryQuery) -> Result<Step, Failure> {
        let key = query.key.as_deref().map(items::key).transpose()?;
        let since_ms = query.since_ms.map_or(0, |ms| clock::unix_ms().saturating_sub(ms));
        let limit = query.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let query = Query {
            key: key.map(|key| key.as_str().to_owned()),
            since_ms,
            uid: query.uid,
            session: query.session.as_deref().map(items::session).transpose()?.map(|it| it.0),
            failed: query.failed,
            before: query.before,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        };
        self.look_up(id, Question::Records(query))
    }

    pub(crate) fn look_up(&mut self, id: ConnId, question: Question) -> Result<Step, Failure> {
        if !self.history.is_on() {
            let message = "this daemon keeps no history";
            return Err(Failure::new(ErrorName::Unsupported, message)
                .hint("`max` of `[history]` in canal.toml turns it on, after a restart"));
        }
        if !self.history.search(id, question) {
            let message = "the daemon could not start the thread of its history";
            return Err(Failure::new(ErrorName::Fault, message));
        }
        Ok(Step::Wait(CallState::History))
    }

    pub(crate) fn history_page(&self, viewer: u32, found: &Found) -> Step {
        let shown = self.shown(viewer);
        let records = found.records.iter().map(|(number, record)| HistoryRecord {
            number: *number,
            command: shown.command(record.uid, &record.command),
            ..told(record)
        });
        Step::reply(&HistoryPage {
            records: records.collect(),
            before: found.before,
            dropped: self.history.dropped(),
        })
    }
}

/// The fields of a record that every user may see.
fn told(record: &Record) -> HistoryRecord {
    let session = |frame: u64| format!("s{}", FrameId(frame));
    let mut told = HistoryRecord {
        asked: time(UnixMillis(record.asked_ms())),
        ended: time(UnixMillis(record.ended_ms)),
        ended_ms: record.ended_ms,
        how: how(&record.ending).to_owned(),
        waited_ms: record.waited_ms,
        held_ms: record.held_ms,
        token: record.held_ms.map(|_| record.token),
        session: (record.session != 0).then(|| session(record.session)),
        uid: record.uid,
        pid: record.pid,
        note: record.note.clone(),
        host: record.host.clone(),
        at_least: record.at_least,
        ..HistoryRecord::default()
    };
    let items = record.items.iter().map(|item| HistoryItem {
        key: item.key.clone(),
        mode: item.mode,
        count: item.count,
        slots: ranges(&item.slots),
    });
    told.items.extend(items);
    match &record.ending {
        Ending::Exited(status) => told.exit = Some(*status),
        Ending::Killed(signal) => told.signal = Some(*signal),
        Ending::Forced { by: Some((uid, pid)) } => {
            told.by = Some(HistoryClient { uid: *uid, pid: *pid });
        }
        Ending::Refused { ring, .. } => {
            let steps = ring.iter().map(|step| HistoryStep {
                session: session(step.session),
                uid: step.uid,
                pid: step.pid,
                key: step.key.clone(),
            });
            told.cycle.extend(steps);
        }
        _ => {}
    }
    told
}

/// The slots as ranges, such as `0-3,7`. `None` if there are none.
fn ranges(slots: &Slots) -> Option<String> {
    let range = |SlotRange(first, last): &SlotRange| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranges: Vec<String> = slots.0.iter().map(range).collect();
    (!ranges.is_empty()).then(|| ranges.join(","))
}

fn how(ending: &Ending) -> &'static str {
    match ending {
        Ending::Released => "released",
        Ending::Ended | Ending::Exited(_) | Ending::Killed(_) => "ended",
        Ending::Expired => "expired",
        Ending::Forced { .. } => "forced",
        Ending::Lost => "lost",
        Ending::Reboot => "reboot",
        Ending::Withdrawn => "withdrawn",
        Ending::Abandoned => "abandoned",
        Ending::Timeout => "timeout",
        Ending::Refused { reason, .. } => match reason {
            Reason::Full => "full",
            Reason::Paused => "paused",
            Reason::MaxWaiting => "max-waiting",
            Reason::Deadlock => "deadlock",
            Reason::TooLarge => "too-large",
            Reason::Mismatch => "mismatch",
            Reason::Superseded => "superseded",
        },
    }
}
