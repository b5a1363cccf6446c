//! Statistics of the history: how long requests waited and held, how much of each key was in use,
//! and how many slots a key should have.

use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::history::queue::Question;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::wording::text::time;
use canal_core::{HeldItem, HoldState, Key, Mode, UnixMillis, View};
use canal_history::{
    Bins, CommandGroup, Counted, Counts, KeyUse, Present, Quantiles, Query, Running, SlotsTable,
};
use canal_protocol::{
    Failure, HistoryBin, HistoryCount, HistoryKeyUse, HistoryLengths, HistorySlots,
    HistorySlotsRow, HistoryStats, HistoryStatsQuery,
};
use canal_sys::clock;
use canal_sys::peer::Credentials;

/// The most users, and the most commands, of a reply.
const GROUPS_SHOWN_MAX: usize = 100;

/// The most keys of a reply. Each has its use over time.
const KEYS_SHOWN_MAX: usize = 20;

/// The most current holds that are counted together with the ended ones.
const RUNNING_MAX: usize = 1_000;

impl Server {
    /// Counts waits and holds. The client gets the answer once all are counted.
    pub(crate) fn history_stats(
        &mut self,
        id: ConnId,
        peer: Credentials,
        query: &HistoryStatsQuery,
    ) -> Result<Step, Failure> {
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
        let viewer = (peer.uid != 0).then_some(peer.uid);
        self.look_up(id, Question::Counts { query, viewer, present })
    }

    fn stored_size(&self, key: &Key) -> Option<u64> {
        self.ledger.table.report(key).stored.map(View::capacity)
    }

    /// The current holds of a key and the keys below it, or of all keys.
    fn running(&self, key: Option<&Key>, uid: Option<u32>) -> Vec<Running> {
        let table = &self.ledger.table;
        let holds = table.keys(key).flat_map(|key| table.holders(key).map(move |it| (key, it)));
        let holds = holds.filter_map(|(key, token)| Some((key, table.hold(token)?)));
        let holds = holds.filter(|(_, hold)| uid.is_none_or(|uid| hold.asked.uid == uid));
        holds.take(RUNNING_MAX).filter_map(|(key, hold)| running(key, hold)).collect()
    }

    /// The counted statistics. Users and commands with the most records come first.
    pub(crate) fn stats(&self, counts: &Counts) -> HistoryStats {
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
            dropped: self.history.dropped(),
        }
    }

    /// The key of the query, then the most used keys. Also returns whether there are more.
    fn most_used(&self, counts: &Counts) -> (Vec<HistoryKeyUse>, bool) {
        let mut keys: Vec<(&String, &KeyUse)> = counts.keys.iter().collect();
        keys.sort_by_key(|(key, of)| {
            (counts.key.as_ref() != Some(*key), std::cmp::Reverse(of.used.sum()))
        });
        let shown = keys.iter().take(KEYS_SHOWN_MAX).map(|(key, of)| {
            let stored = items::key(key).ok().and_then(|key| self.stored_size(&key));
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
