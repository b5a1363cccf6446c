//! Queries of the history and its statistics.
//!
//! Invariant: only the user of a command and root see it, as in a status.

use crate::calls::call::ConnId;
use crate::calls::items;
use crate::history::requests::{cycle, forced_by, session};
use crate::history::writer::Search;
use crate::net::call_state::CallState;
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::step::{Caller, Result, Step};
use crate::wording::time;
use canal_core::{HeldItem, HoldState, Key, Mode, SlotRange, UnixMillis, View};
use canal_history::{
    Bins, CommandGroup, Counted, Counts, Ending, Found, KeyUse, Present, Quantiles, Query, Record,
    Running, SlotsTable, Tally,
};
use canal_protocol::{
    ErrorName, Failure, HistoryBin, HistoryCount, HistoryItem, HistoryKeyUse, HistoryLengths,
    HistoryPage, HistoryQuery, HistoryRecord, HistorySlots, HistorySlotsRow, HistoryStats,
    HistoryStatsQuery,
};
use canal_sys::clock;

/// The most records of a page.
const PAGE_MAX: u64 = 500;

impl Server {
    /// Starts a search. The client gets the answer once the search has finished.
    pub(crate) fn history(&mut self, caller: &Caller, query: &HistoryQuery) -> Result {
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
        self.look_up(caller.id, query, |query| Search::Records(canal_history::Search::new(query)))
    }

    fn look_up(&mut self, id: ConnId, query: Query, begin: impl FnOnce(Query) -> Search) -> Result {
        if !self.observe.history.is_on() {
            let message = "this daemon keeps no history";
            return Err(Failure::new(ErrorName::Unsupported, message)
                .hint("set `max` in `[history]` of canal.toml, and restart the daemon"));
        }
        if !self.observe.history.search(id, query, begin) {
            let message = "the daemon could not start its history thread";
            return Err(Failure::new(ErrorName::Fault, message));
        }
        Ok(Step::Wait(CallState::History))
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
            dropped: self.observe.history.queue.dropped(),
        })
    }

    /// Answers the clients whose searches of the history have finished.
    pub(crate) fn end_searches(&mut self) {
        for (id, found) in self.observe.history.queue.take_found() {
            let waits = |conn: &&Connection| matches!(conn.state(), CallState::History);
            let Some(conn) = self.conns.peek(id).filter(waits) else { continue };
            let uid = conn.peer.uid;
            let step = match &found {
                Search::Records(search) => self.history_page(uid, &search.found),
                Search::Counts(tally) => Step::reply(&self.stats(&tally.counts)),
            };
            self.carry_out(id, Ok(step));
            self.reports.sent(&self.conns, id);
        }
    }
}

/// The fields of a record that every user may see.
fn told(record: &Record) -> HistoryRecord {
    let items = record.items.iter().map(|item| HistoryItem {
        key: item.key.to_string(),
        mode: item.mode,
        count: item.count,
        slots: ranges(&item.slots),
    });
    let (exit, signal) = match record.ending {
        Ending::Exited(status) => (Some(status), None),
        Ending::Killed(signal) => (None, Some(signal)),
        _ => (None, None),
    };
    HistoryRecord {
        asked: time(UnixMillis(record.asked_ms())),
        ended: time(UnixMillis(record.ended_ms)),
        ended_ms: record.ended_ms,
        how: record.ending.word().to_owned(),
        waited_ms: record.waited_ms,
        held_ms: record.held_ms,
        token: record.held_ms.map(|_| record.token),
        session: session(record.session),
        uid: record.uid,
        pid: record.pid,
        note: record.note.as_deref().map(str::to_owned),
        host: record.host.as_deref().map(str::to_owned),
        at_least: record.at_least,
        items: items.collect(),
        exit,
        signal,
        by: forced_by(&record.ending),
        cycle: cycle(&record.ending),
        ..HistoryRecord::default()
    }
}

/// The slots as ranges, such as `0-3,7`. `None` if there are none.
fn ranges(slots: &[SlotRange]) -> Option<String> {
    let range = |SlotRange(first, last): &SlotRange| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranges: Vec<String> = slots.iter().map(range).collect();
    (!ranges.is_empty()).then(|| ranges.join(","))
}

/// The most users, and the most commands, of a reply.
const GROUPS_SHOWN_MAX: usize = 100;

/// The most keys of a reply, each with its use over time.
const KEYS_SHOWN_MAX: usize = 20;

/// The most current holds that are counted together with the ended ones.
const RUNNING_MAX: usize = 1_000;

/// Statistics of the history: how long requests waited and held, how much of each key was in use,
/// and how many slots a key should have.
impl Server {
    /// Counts waits and holds. The client gets the answer once all are counted.
    pub(crate) fn history_stats(&mut self, caller: &Caller, query: &HistoryStatsQuery) -> Result {
        let key = query.key.as_deref().map(items::key).transpose()?;
        let now_ms = clock::unix_ms();
        let present = Present {
            now_ms,
            stored: key.as_ref().and_then(|key| self.stored_size(key)),
            running: self.running(key.as_ref(), query.uid),
        };
        let query = Query {
            key: key.map(|key| key.as_str().to_owned()),
            since_ms: query.since_ms.map_or(0, |ms| now_ms.saturating_sub(ms)),
            uid: query.uid,
            ..Query::default()
        };
        // As in other replies, only root sees the commands of all users.
        let uid = caller.peer.uid;
        let viewer = (uid != 0).then_some(uid);
        self.look_up(caller.id, query, |query| {
            Search::Counts(Box::new(Tally::new(query, viewer, present)))
        })
    }

    fn stored_size(&self, key: &Key) -> Option<u64> {
        self.decide.table().stored(key).map(View::capacity)
    }

    /// The current holds of a key and the keys below it, or of all keys.
    fn running(&self, key: Option<&Key>, uid: Option<u32>) -> Vec<Running> {
        let table = self.decide.table();
        let holds = table.keys(key).flat_map(|key| table.holders(key).map(move |it| (key, it)));
        let holds = holds.filter_map(|(key, token)| Some((key, table.hold(token)?)));
        let holds = holds.filter(|(_, hold)| uid.is_none_or(|uid| hold.asked.uid == uid));
        holds.take(RUNNING_MAX).filter_map(|(key, hold)| running(key, hold)).collect()
    }

    /// The counted statistics. Users and commands with the most records come first.
    fn stats(&self, counts: &Counts) -> HistoryStats {
        let users = counts.users.iter().map(|(uid, of)| (Some(*uid), None, of));
        let groups = counts.command_groups();
        let commands = groups.iter().map(|it| (Some(it.uid), Some(it), &it.counted));
        let (users, more_users) = most(users.collect());
        let (commands, more_commands) = most(commands.collect());
        let (keys, more_keys) = self.most_used(counts);
        HistoryStats {
            all: count(None, None, &counts.all),
            users,
            commands,
            wait_bins: bins(&counts.wait_bins),
            hold_bins: bins(&counts.hold_bins),
            keys,
            slots: counts.key.as_deref().zip(counts.slots.as_ref()).map(slots),
            left_out: counts.left_out || more_users || more_commands || more_keys,
            dropped: self.observe.history.queue.dropped(),
        }
    }

    /// The key of the query, then the most used keys. Also returns whether there are more.
    fn most_used(&self, counts: &Counts) -> (Vec<HistoryKeyUse>, bool) {
        let mut keys: Vec<(&String, &KeyUse)> = counts.keys.iter().collect();
        keys.sort_by_key(|(key, of)| {
            (counts.key.as_ref() != Some(*key), std::cmp::Reverse(of.used.sum()))
        });
        let shown = keys.iter().take(KEYS_SHOWN_MAX).map(|(key, of)| {
            let stored = items::key(key.as_str()).ok().and_then(|key| self.stored_size(&key));
            HistoryKeyUse {
                key: (*key).clone(),
                granted: of.granted,
                size: stored.or(Some(of.size).filter(|size| *size > 0)),
                used_ms: of.used.sum(),
                from: time(UnixMillis(of.used.begin_ms().max(of.since_ms))),
                until: time(UnixMillis(counts.now_ms)),
                bucket_ms: of.used.width_ms(),
                used: of.used.buckets(),
                sizes: sizes(of, stored),
                waited: of.used.waits(),
            }
        });
        (shown.collect(), keys.len() > KEYS_SHOWN_MAX)
    }
}

/// The number of slots of a key in each bucket of time. The last one has the size that is stored
/// now, even if nothing was granted since.
fn sizes(of: &KeyUse, stored: Option<u64>) -> Vec<u64> {
    let mut sizes = of.used.sizes();
    if let (Some(last), Some(stored)) = (sizes.last_mut(), stored.filter(|stored| *stored > 0)) {
        *last = stored;
    }
    sizes
}

/// The slots that a hold has of a key. `None` if it shares the slots of another hold.
fn running(key: &Key, hold: &HoldState) -> Option<Running> {
    let is_of_key = |item: &&HeldItem| item.key == *key && !item.shared;
    let item = hold.items.iter().find(is_of_key)?;
    let slots = if item.mode == Mode::Counted { item.slots.count() } else { 1 };
    Some(Running { key: key.to_string(), since_ms: hold.since.0, slots })
}

/// A group: its user, its commands, and its counts.
type Group<'a> = (Option<u32>, Option<&'a CommandGroup>, &'a Counted);

/// The groups with the most records. Also returns whether there are more.
fn most(mut groups: Vec<Group<'_>>) -> (Vec<HistoryCount>, bool) {
    groups.sort_by_key(|(.., of)| std::cmp::Reverse(of.count()));
    let shown = groups.iter().take(GROUPS_SHOWN_MAX);
    let shown = shown.map(|(uid, command, of)| count(*uid, *command, of)).collect();
    (shown, groups.len() > GROUPS_SHOWN_MAX)
}

fn count(uid: Option<u32>, group: Option<&CommandGroup>, of: &Counted) -> HistoryCount {
    HistoryCount {
        uid,
        command: group.map(|group| group.command.clone()),
        commands: group.map(|group| group.commands).filter(|commands| *commands > 1),
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

fn bins(of: &Bins) -> Vec<HistoryBin> {
    of.filled().map(|(up_to_ms, count)| HistoryBin { up_to_ms, count }).collect()
}

fn slots((key, of): (&str, &SlotsTable)) -> HistorySlots {
    let rows = of.rows.iter().map(|(slots, waits, unfit)| HistorySlotsRow {
        slots: *slots,
        waits: lengths(waits),
        unfit: *unfit,
    });
    HistorySlots {
        key: key.to_owned(),
        present: of.present,
        requests: of.requests,
        more: of.more,
        rows: rows.collect(),
    }
}
