//! What clients ask of the history.
//!
//! Invariant: a command is shown only to its user and to root, as in a status.

use crate::core::{FrameId, UnixMillis};
use crate::daemon::calls::items;
use crate::daemon::calls::step::Step;
use crate::daemon::history::queue::{Answer, Question};
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::server::Server;
use crate::daemon::view::text::time;
use crate::history::{Counted, Counts, Ending, Found, Quantiles, Query, Reason, Record};
use crate::protocol::{
    ErrorName, Failure, HistoryClient, HistoryCount, HistoryItem, HistoryLengths, HistoryPage,
    HistoryQuery, HistoryRecord, HistoryStats, HistoryStatsQuery, HistoryStep,
};
use crate::sys::clock;
use crate::sys::peer::Credentials;

/// The most users, and the most commands, of a reply.
const GROUPS_SHOWN_MAX: usize = 100;

/// The most records of a page.
const PAGE_MAX: u64 = 500;

impl Server {
    /// Looks something up. The answer comes when it is found.
    pub(crate) fn history(&mut self, id: ConnId, query: &HistoryQuery) -> Result<Step, Failure> {
        let key = query.key.as_deref().map(items::key).transpose()?;
        let since_ms = query.since_ms.map_or(0, |ms| clock::unix_ms().saturating_sub(ms));
        let limit = query.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let query = Query {
            key: key.map(|key| key.as_str().to_owned()),
            since_ms,
            uid: query.uid,
            failed: query.failed,
            before: query.before,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        };
        self.look_up(id, Question::Records(query))
    }

    /// Counts waits and holds. The answer comes when all are counted.
    pub(crate) fn history_stats(
        &mut self,
        id: ConnId,
        peer: Credentials,
        query: &HistoryStatsQuery,
    ) -> Result<Step, Failure> {
        let key = query.key.as_deref().map(items::key).transpose()?;
        let since_ms = query.since_ms.map_or(0, |ms| clock::unix_ms().saturating_sub(ms));
        let query = Query {
            key: key.map(|key| key.as_str().to_owned()),
            since_ms,
            uid: query.uid,
            ..Query::default()
        };
        // As commands are shown elsewhere: root sees all of them.
        let viewer = (peer.uid != 0).then_some(peer.uid);
        self.look_up(id, Question::Counts { query, viewer })
    }

    fn look_up(&mut self, id: ConnId, question: Question) -> Result<Step, Failure> {
        if !self.history.is_on() {
            let message = "this daemon keeps no history";
            return Err(Failure::new(ErrorName::Unsupported, message)
                .hint("`max` of `[history]` in canal.toml turns it on, after a restart"));
        }
        if !self.history.search(id, question) {
            let message = "the daemon has no thread for its history";
            return Err(Failure::new(ErrorName::Fault, message));
        }
        Ok(Step::Wait(self.wait_for_history(id)))
    }

    /// What was found, as a user may see it.
    pub(crate) fn history_answer(&self, viewer: u32, answer: &Answer) -> Step {
        match answer {
            Answer::Records(found) => self.history_page(viewer, found),
            Answer::Counts(counts) => Step::reply(&stats(counts, self.history.dropped())),
        }
    }

    fn history_page(&self, viewer: u32, found: &Found) -> Step {
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

/// What was counted; users and commands with the most records first.
fn stats(counts: &Counts, dropped: u64) -> HistoryStats {
    let users = counts.users.iter().map(|(uid, of)| (Some(*uid), None, of));
    let commands = counts.commands.iter();
    let commands = commands.map(|((uid, command), of)| (Some(*uid), Some(command), of));
    let (users, more_users) = most(users.collect());
    let (commands, more_commands) = most(commands.collect());
    HistoryStats {
        all: count(None, None, &counts.all),
        users,
        commands,
        left_out: counts.left_out || more_users || more_commands,
        dropped,
    }
}

/// A group: its user, its command, what was counted.
type Group<'a> = (Option<u32>, Option<&'a String>, &'a Counted);

/// The groups with the most records, and whether there are more.
fn most(mut groups: Vec<Group<'_>>) -> (Vec<HistoryCount>, bool) {
    groups.sort_by_key(|(.., of)| std::cmp::Reverse(of.count()));
    let shown = groups.iter().take(GROUPS_SHOWN_MAX);
    let shown = shown.map(|(uid, command, of)| count(*uid, *command, of)).collect();
    (shown, groups.len() > GROUPS_SHOWN_MAX)
}

fn count(uid: Option<u32>, command: Option<&String>, of: &Counted) -> HistoryCount {
    HistoryCount {
        uid,
        command: command.cloned(),
        count: of.count(),
        refused: of.refused,
        waits: lengths(&of.waits.quantiles()),
        holds: lengths(&of.holds.quantiles()),
    }
}

fn lengths(of: &Quantiles) -> HistoryLengths {
    let Quantiles { median, p90, p99, max } = *of;
    HistoryLengths { median_ms: median, p90_ms: p90, p99_ms: p99, max_ms: max }
}

/// What everybody may see of a record.
fn told(record: &Record) -> HistoryRecord {
    let session = |frame: u64| format!("s{}", FrameId(frame));
    let mut told = HistoryRecord {
        asked: time(UnixMillis(record.asked_ms())),
        ended: time(UnixMillis(record.ended_ms)),
        how: how(&record.ending).to_owned(),
        waited_ms: record.waited_ms,
        held_ms: record.held_ms,
        token: record.held_ms.map(|_| record.token),
        session: (record.session != 0).then(|| session(record.session)),
        uid: record.uid,
        pid: record.pid,
        note: record.note.clone(),
        host: record.host.clone(),
        ..HistoryRecord::default()
    };
    let items = record.items.iter().map(|item| HistoryItem {
        key: item.key.clone(),
        mode: item.mode,
        count: item.count,
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

fn how(ending: &Ending) -> &'static str {
    match ending {
        Ending::Released => "released",
        Ending::Ended | Ending::Exited(_) | Ending::Killed(_) => "ended",
        Ending::Expired => "expired",
        Ending::Forced { .. } => "forced",
        Ending::Lost => "lost",
        Ending::Withdrawn => "withdrawn",
        Ending::Timeout => "timeout",
        Ending::Refused { reason, .. } => match reason {
            Reason::Full => "full",
            Reason::Paused => "paused",
            Reason::MaxWaiting => "max-waiting",
            Reason::Deadlock => "deadlock",
            Reason::TooLarge => "too-large",
            Reason::Mismatch => "mismatch",
        },
    }
}
