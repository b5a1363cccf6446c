//! Queries of the history and its statistics.
//!
//! Invariant: only the user of a command and root see it, as in a status.

use crate::calls::call::ConnId;
use crate::calls::parameters;
use crate::history::writer::Search;
use crate::net::call_state::CallState;
use crate::net::connection::Connection;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use canal_core::{HeldItem, Key, Mode, View};
use canal_history::{Present, Query, Running, Tally};
use canal_protocol::{
    ErrorName, Failure, HistoryPage, HistoryQuery, HistoryStats, HistoryStatsQuery,
};
use canal_sys::clock;

/// The most records of a page.
const PAGE_MAX: u64 = 500;

/// The most current holds that are counted together with the ended ones.
const RUNNING_MAX: usize = 1_000;

impl Server {
    /// Starts a search. The client gets the answer once the search has finished.
    pub(crate) fn history(&mut self, caller: &Caller, query: &HistoryQuery) -> Result {
        let key = query.key.as_deref().map(parameters::key).transpose()?;
        let limit = query.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let query = Query {
            uid: query.uid,
            session: query.session.as_deref().map(parameters::session).transpose()?.map(|it| it.0),
            failed: query.failed,
            before: query.before,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            ..self.of_key(key.as_ref(), query.since_ms)
        };
        self.look_up(caller.id, Search::Records(canal_history::Search::new(query)))
    }

    /// A query for the records of a key that ended within this time and are not too old.
    fn of_key(&self, key: Option<&Key>, since_ms: Option<u64>) -> Query {
        let kept_ms = self.observe.history.kept_ms().unwrap_or(0);
        let since_ms =
            clock::unix_ms().saturating_sub(since_ms.map_or(kept_ms, |ms| ms.min(kept_ms)));
        Query { key: key.map(|key| key.as_str().to_owned()), since_ms, ..Query::default() }
    }

    fn look_up(&mut self, id: ConnId, search: Search) -> Result {
        if self.observe.history.kept_ms().is_none() {
            return Err(Failure::new(ErrorName::Unsupported, "this daemon keeps no history")
                .hint("set `max` in `[history]` of canal.toml, and restart the daemon"));
        }
        if !self.observe.history.search(id, search) {
            let message = "the daemon could not start its history thread";
            return Err(Failure::new(ErrorName::Fault, message));
        }
        Ok(Step::Wait(CallState::History))
    }

    /// Counts waits and holds: how long requests waited and held, how much of each key was in use,
    /// and how many slots a key should have. The client gets the answer once all are counted.
    pub(crate) fn history_stats(&mut self, caller: &Caller, query: &HistoryStatsQuery) -> Result {
        let key = query.key.as_deref().map(parameters::key).transpose()?;
        let present = Present {
            now_ms: clock::unix_ms(),
            stored: key.as_ref().and_then(|key| self.stored_size(key)),
            running: self.running(key.as_ref(), query.uid),
        };
        let query = Query { uid: query.uid, ..self.of_key(key.as_ref(), query.since_ms) };
        // As in other replies, only root sees the commands of all users.
        let viewer = Some(caller.peer.uid).filter(|uid| *uid != 0);
        self.look_up(caller.id, Search::Counts(Box::new(Tally::new(query, viewer, present))))
    }

    fn stored_size(&self, key: &Key) -> Option<u64> {
        self.decide.table().settings(key).view.map(View::capacity)
    }

    /// The current holds of a key and the keys below it, or of all keys.
    fn running(&self, key: Option<&Key>, uid: Option<u32>) -> Vec<Running> {
        let table = self.decide.table();
        let holds = table.keys(key).flat_map(|key| table.holders(key).map(move |it| (key, it)));
        let holds = holds.filter_map(|(key, token)| Some((key, table.hold(token)?)));
        let holds = holds.filter(|(_, hold)| uid.is_none_or(|uid| hold.asked.uid == uid));
        let running = holds.take(RUNNING_MAX).filter_map(|(key, hold)| {
            // A hold may share the slots of another one.
            let is_of_key = |item: &&HeldItem| item.key == *key && !item.shared;
            let item = hold.items.iter().find(is_of_key)?;
            let slots = if item.mode == Mode::Counted { item.slots.count() } else { 1 };
            Some(Running { key: key.to_string(), since_ms: hold.since.0, slots })
        });
        running.collect()
    }

    /// Answers the clients whose searches of the history have finished.
    pub(crate) fn end_searches(&mut self) {
        for (id, found) in self.observe.history.queue.take_found() {
            let waits = |conn: &&Connection| matches!(conn.state(), CallState::History);
            let Some(conn) = self.conns.peek(id).filter(waits) else { continue };
            let dropped = self.observe.history.queue.dropped();
            let step = match found {
                Search::Records(search) => {
                    let mut page = HistoryPage { dropped, ..search.found };
                    let shown = self.shown(conn.peer.uid);
                    for record in &mut page.records {
                        record.command.take_if(|_| !shown.sees(record.uid));
                    }
                    Step::reply(&page)
                }
                Search::Counts(tally) => {
                    let stored = |key: &str| self.stored_size(&parameters::key(key).ok()?);
                    Step::reply(&HistoryStats { dropped, ..tally.report(stored) })
                }
            };
            self.carry_out(id, Ok(step));
            self.reports.sent(&self.conns, id);
        }
    }
}
