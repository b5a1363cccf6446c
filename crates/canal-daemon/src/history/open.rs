//! Requests that wait or hold something, and those that ended while no daemon ran.

use std::sync::Arc;

use crate::history::raw::Raw;
use crate::history::slots::OwnSlots;
use crate::waiters::leases::is_collecting;
use canal_core::{
    FrameId, HoldState, Owner, Request, RequestId, Table, Token, UnixMillis, WaiterState,
};
use canal_history::{Batch, Ending};

/// A request that waits or holds something.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub asked: Arc<Request>,
    pub frame: FrameId,
    /// The outermost frame.
    pub session: FrameId,
    pub asked_at: UnixMillis,
    pub granted: Option<(Token, UnixMillis)>,
    /// The slots that it holds.
    pub slots: OwnSlots,
    /// Whether the owner has ended, so that only its descendants keep the hold.
    pub owner_ended: bool,
}

impl Open {
    pub(crate) fn of_waiter(table: &Table, waiter: &WaiterState) -> Self {
        Self {
            asked: Arc::clone(&waiter.request),
            frame: waiter.frame,
            session: table.session(waiter.frame),
            asked_at: waiter.since,
            granted: None,
            slots: OwnSlots::None,
            owner_ended: false,
        }
    }

    pub(crate) fn of_hold(table: &Table, hold: &HoldState) -> Self {
        Self {
            asked: Arc::clone(&hold.asked),
            frame: hold.frame,
            session: table.session(hold.frame),
            asked_at: hold.asked_at,
            granted: Some((hold.token, hold.since)),
            slots: OwnSlots::of_hold(&hold.asked, hold),
            owner_ended: hold.orphaned,
        }
    }

    /// How long the request had waited at this time.
    pub(crate) fn waited_ms(&self, until: UnixMillis) -> u64 {
        until.0.saturating_sub(self.asked_at.0)
    }

    /// The ended request, if it ended at this time.
    pub(crate) fn ended_at(&self, now_ms: u64, ending: Ending) -> Raw {
        let waited_until = self.granted.map_or(now_ms, |(_, since)| since.0);
        Raw {
            session: self.session.0,
            ended_ms: now_ms,
            waited_ms: self.waited_ms(UnixMillis(waited_until)),
            held_ms: self.granted.map(|(_, since)| now_ms.saturating_sub(since.0)),
            token: self.granted.map_or(0, |(token, _)| token.0),
            slots: if self.granted.is_some() { self.slots.clone() } else { OwnSlots::None },
            host: None,
            ending,
            exit: None,
            at_least: false,
            asked: Arc::clone(&self.asked),
        }
    }

    /// The ended request, if no daemon saw it end and it is known to have been open until this
    /// time.
    fn unseen(&self, known_ms: u64, ending: Ending, host: Option<&Arc<str>>) -> Raw {
        // It was open when the client made the request, and when it was granted.
        let begun_ms = self.granted.map_or(self.asked_at, |(_, since)| since).0;
        let raw = self.ended_at(begun_ms.max(known_ms), ending);
        Raw { host: host.cloned(), at_least: true, ..raw }
    }
}

/// The requests that ended while no daemon ran.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    ended: Vec<(RequestId, Open, Ending)>,
    /// The last time at which the previous daemon is known to have run; 0 if that is unknown.
    pub known_ms: u64,
}

impl Unseen {
    /// Everything in this table except leases, which outlive processes and machines.
    pub(crate) fn void(table: &Table, ending: &Ending, known_ms: u64) -> Self {
        let mut void = Self::of_table(table, known_ms);
        void.ended.retain(|(_, open, _)| {
            open.granted.is_none() || matches!(open.asked.owner, Owner::Process(_))
        });
        void.ended.iter_mut().for_each(|(.., how)| how.clone_from(ending));
        void
    }

    /// Everything in this table, all of which may have ended.
    pub(crate) fn of_table(table: &Table, known_ms: u64) -> Self {
        let holds = table.holds().map(|hold| {
            let open = Open::of_hold(table, hold);
            match is_collecting(hold) {
                // Its client never received the grant.
                true => (hold.request, Open { granted: None, ..open }, Ending::Withdrawn),
                false => (hold.request, open, Ending::Ended),
            }
        });
        let waiters = table.waiters();
        let waiters = waiters.map(|it| (it.id, Open::of_waiter(table, it), Ending::Ended));
        Self { ended: holds.chain(waiters).collect(), known_ms }
    }

    /// Removes the requests that are still in this table.
    pub(crate) fn leave_out(&mut self, table: &Table) {
        let is_open = |id| table.hold_of(id).is_some() || table.waiter(id).is_some();
        self.ended.retain(|(request, ..)| !is_open(*request));
    }

    /// The records of the requests that ended.
    pub(crate) fn records(&self, known_ms: u64, host: Option<&Arc<str>>) -> Batch {
        let mut records = Batch::default();
        for (_, open, how) in &self.ended {
            records.push(&open.unseen(known_ms, how.clone(), host).fields());
        }
        records
    }
}
