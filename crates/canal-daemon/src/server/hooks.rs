//! Finds the events that hooks have to learn of.
//!
//! Invariant: this happens only after the answers of a turn are written.

use std::sync::Arc;
use std::time::Instant;

use crate::config::hooks_section::On;
use crate::due::is_due;
use crate::hooks::configured::{Lasting, lasting};
use crate::hooks::event::Event;
use crate::hooks::facts::HolderFacts;
use crate::server::Server;
use crate::view::Shown;
use crate::wording::text::{pid_of, time};
use canal_core::{OwnSlots, Token};
use canal_sys::clock;

/// The most holders in the event of a long wait.
const HOLDERS_MAX: usize = 8;

impl Server {
    /// Takes over the hooks of the configuration in force. `is_start`: the daemon has just started.
    pub(crate) fn follow_hooks(&mut self, is_start: bool) {
        self.hooks.follow(&self.in_force.config.hooks, is_start);
        let (table, here) = (&self.ledger.table, self.ledger.host);
        let are_told = self.hooks.are_told_of_ends();
        self.history.tell_hooks(are_told, self.hooks.host(), table, here);
    }

    /// Passes the events of a turn to the hooks. Call it after the answers of the turn are written.
    pub(crate) fn tell_hooks(&mut self) {
        if self.hooks.is_empty() {
            return;
        }
        for raw in self.history.take_notable() {
            self.hooks.tell_end(&raw);
        }
        let now = clock::now();
        if is_due(&mut self.hooks.due, now) {
            self.look_for_long_ones(now);
        }
        let lasts = self.ledger.table.waiting() > 0 || self.ledger.table.held() > 0;
        self.hooks.look_ahead(lasts, now);
    }

    fn look_for_long_ones(&mut self, now: Instant) {
        let mut hooks = std::mem::take(&mut self.hooks);
        let now_ms = clock::unix_ms();
        let (table, here) = (&self.ledger.table, self.ledger.host);
        // The hook's own user may see less: the hook's guard removes the rest.
        let shown = self.shown(0);
        let next = hooks.tell_lasting(table, &lasting(table, here), now_ms, |one| match one.on {
            On::LongWait => shown.long_wait(one, now_ms),
            _ => shown.long_hold(one, now_ms),
        });
        if let Some(next) = next {
            hooks.look_at(next, now_ms, now);
        }
        self.hooks = hooks;
    }
}

impl Shown<'_> {
    /// The event for a request that waits for long.
    fn long_wait(&self, one: Lasting<'_>, now_ms: u64) -> Option<Event> {
        let waiter = self.table.waiter(self.table.tagged(one.asked.tag)?)?;
        let asked = Arc::clone(&waiter.request);
        let items = 0..asked.items.len();
        let tokens = items.flat_map(|item| {
            self.table.blocking_holds(&asked, item, OwnSlots::LeftOut, HOLDERS_MAX)
        });
        Some(Event {
            on: one.on,
            at_ms: now_ms,
            session: self.table.session(waiter.frame).0,
            asked_ms: waiter.since.0,
            waited_ms: now_ms.saturating_sub(waiter.since.0),
            held_ms: None,
            token: 0,
            ending: None,
            reason: self.why(waiter.id).map(|why| why.clause),
            holders: self.holders_of(tokens),
            asked,
        })
    }

    /// The first of the holders that have these holds.
    fn holders_of(&self, tokens: impl Iterator<Item = Token>) -> Vec<HolderFacts> {
        let mut holders: Vec<HolderFacts> = Vec::new();
        for hold in tokens.filter_map(|token| self.table.hold(token)) {
            if holders.iter().all(|known| known.token != hold.token.0) {
                holders.push(HolderFacts {
                    uid: hold.asked.uid,
                    pid: pid_of(&hold.asked.owner),
                    command: Some(hold.asked.command.0.clone()),
                    since: time(hold.since),
                    token: hold.token.0,
                });
            }
            if holders.len() >= HOLDERS_MAX {
                break;
            }
        }
        holders
    }

    /// The event for a hold that lasts for long.
    fn long_hold(&self, one: Lasting<'_>, now_ms: u64) -> Option<Event> {
        let hold = self.table.hold_of(self.table.tagged(one.asked.tag)?)?;
        Some(Event {
            on: one.on,
            at_ms: now_ms,
            asked: Arc::clone(&hold.asked),
            session: self.table.session(hold.frame).0,
            asked_ms: hold.asked_at.0,
            waited_ms: hold.since.0.saturating_sub(hold.asked_at.0),
            held_ms: Some(now_ms.saturating_sub(hold.since.0)),
            token: hold.token.0,
            ending: None,
            reason: None,
            holders: Vec::new(),
        })
    }
}
