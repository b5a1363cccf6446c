//! Derives from an entry of the log which requests of this host began, were granted, or ended, and
//! how.

use std::sync::Arc;

use super::History;
use crate::config::sections::On;
use crate::history::cause::Cause;
use crate::history::open::Open;
use crate::history::raw::Raw;
use crate::history::slots::OwnSlots;
use crate::wording::pid_of;
use canal_core::{
    CycleStep, FrameId, HostId, Outcome, Owner, Refusal, Request, RequestId, Table, UnixMillis,
    Withdrawal,
};
use canal_history::{Ending, Reason, RingStep};
use canal_sys::clock;

impl History {
    pub(super) fn take_in_outcome(
        &mut self,
        cause: &Cause,
        asked: RequestId,
        outcome: &Outcome,
        table: &Table,
        here: HostId,
    ) {
        match outcome {
            Outcome::Queued { request, .. } => {
                if let Some(waiter) = table.waiter(*request)
                    && is_of(table, waiter.frame, here)
                {
                    self.open.insert(*request, Open::of_waiter(table, waiter));
                }
            }
            Outcome::Granted(granted) => {
                if let Some(open) = self.open.get_mut(&granted.request) {
                    let since = table.hold(granted.token).map(|hold| hold.since);
                    let since = since.unwrap_or(open.asked_at);
                    open.granted = Some((granted.token, since));
                    open.slots = OwnSlots::of(&granted.items);
                    self.counters.granted(&open.asked, since.0, open.waited_ms(since));
                } else if let Some(hold) = table.hold(granted.token)
                    && is_of(table, hold.frame, here)
                {
                    let slots = OwnSlots::of(&granted.items);
                    let open = Open { slots, ..Open::of_hold(table, hold) };
                    self.counters.granted(&open.asked, hold.since.0, open.waited_ms(hold.since));
                    self.open.insert(granted.request, open);
                }
            }
            Outcome::ConfirmedAt { request, token, .. } => {
                if let Some(open) = self.open.get_mut(request)
                    && let Some((held, _)) = &mut open.granted
                {
                    *held = *token;
                }
            }
            Outcome::Requeued { request, .. } => {
                if let Some(open) = self.open.get_mut(request) {
                    open.granted = None;
                }
            }
            Outcome::Refused { request, why } => {
                let at_once = match cause {
                    Cause::Request(of) if *request == asked && of.host == here => Some(of),
                    _ => None,
                };
                let open = self.open.remove(request);
                let open = open.or_else(|| at_once.map(|of| refused_at_once(of, table, here)));
                if let Some(open) = open
                    && let Some(ending) = refused(table, &open, why)
                {
                    self.add(open, ending);
                }
            }
            Outcome::Withdrawn { request } => {
                if let Some(open) = self.open.remove(request)
                    && let Some(ending) = self.withdrawn(cause, *request)
                {
                    self.add(open, ending);
                }
            }
            Outcome::Released { request, whole: true, .. } => {
                if let Some(open) = self.open.remove(request) {
                    let ending = self.released(cause, &open, *request);
                    self.add(open, ending);
                }
            }
            Outcome::FrameGone { frame } => {
                self.exits.forget(*frame);
                self.unseen.remove(frame);
            }
            Outcome::Renewed { frame, .. } | Outcome::LeaseMoved { frame, .. } => {
                self.follow_lease(*frame, table, here);
            }
            Outcome::Released { whole: false, .. }
            | Outcome::NotHeld
            | Outcome::LeaseGone
            | Outcome::NotConfirmed { .. }
            | Outcome::Barrier { .. }
            | Outcome::Prioritized { .. }
            | Outcome::ResizeRefused { .. }
            | Outcome::ResizeRefusedOverNodes
            | Outcome::Resized { .. }
            | Outcome::PauseStored { .. }
            | Outcome::ServiceStored { .. } => {}
        }
    }

    /// How a waiting request ended; `None` if it is requested again.
    fn withdrawn(&mut self, cause: &Cause, request: RequestId) -> Option<Ending> {
        let timed_out = self.timed_out.remove(&request);
        // The process of its client may have ended in the meantime.
        if self.abandoned.remove(&request) {
            return Some(Ending::Abandoned);
        }
        match cause {
            Cause::End(_) => Some(Ending::Ended),
            Cause::Withdraw(Withdrawal::Timeout) => Some(Ending::Timeout),
            _ if timed_out => Some(Ending::Timeout),
            // The next incarnation of the host requests it again.
            Cause::HostGone => None,
            _ => Some(Ending::Withdrawn),
        }
    }

    /// How a hold ended.
    fn released(&mut self, cause: &Cause, open: &Open, request: RequestId) -> Ending {
        let timed_out = self.timed_out.remove(&request);
        let abandoned = self.abandoned.remove(&request);
        match cause {
            // Its client never received the grant.
            Cause::End(_) | Cause::Withdraw(_) if abandoned => Ending::Abandoned,
            Cause::Forced(by) => Ending::Forced { by: *by },
            // The daemon releases a hold that descendants kept when the last of them has ended.
            Cause::Release if open.owner_ended => Ending::Ended,
            Cause::Release => Ending::Released,
            Cause::End(_) => Ending::Ended,
            Cause::Expire => Ending::Expired,
            Cause::HostGone => Ending::Lost,
            Cause::Withdraw(_) if timed_out => Ending::Timeout,
            Cause::Withdraw(Withdrawal::Timeout) => Ending::Timeout,
            // The grant was revoked before its client received it.
            Cause::Withdraw(_) | Cause::Request(_) | Cause::Other => Ending::Withdrawn,
        }
    }

    /// Adds the request, which has just ended.
    fn add(&mut self, open: Open, ending: Ending) {
        let is_untold = matches!(ending, Ending::Withdrawn | Ending::Abandoned | Ending::Timeout);
        let mut open = open;
        open.granted.take_if(|_| is_untold);
        let seen_until = match ending {
            Ending::Ended => self.unseen.get(&open.frame).copied(),
            _ => None,
        };
        let begun_ms = open.granted.map_or(open.asked_at, |(_, since)| since).0;
        let ended_ms = seen_until.map_or_else(clock::unix_ms, |known_ms| known_ms.max(begun_ms));
        let exit = match ending {
            Ending::Ended => self.exits.get(open.frame),
            _ => None,
        };
        let raw = open.ended_at(ended_ms, ending);
        let (host, at_least) = (self.host.clone(), seen_until.is_some());
        let raw = Raw { host, exit, at_least, ..raw };
        if let Some(notable) = &mut self.notable
            && On::of(&raw.ending).is_some()
        {
            notable.push(raw.clone());
        }
        self.ended.push(raw);
    }

    /// Marks the holds of a frame that are kept for descendants as those of an owner that has
    /// ended.
    pub(super) fn note_end(&mut self, frame: FrameId, table: &Table) {
        for hold in table.holds_in(frame) {
            if let Some(open) = self.open.get_mut(&hold.request) {
                open.owner_ended = true;
            }
        }
    }

    /// Follows a lease to this host, or from this host to another one.
    fn follow_lease(&mut self, frame: FrameId, table: &Table, here: HostId) {
        let is_ours = is_of(table, frame, here);
        for hold in table.holds_in(frame) {
            if !is_ours {
                self.open.remove(&hold.request);
            } else {
                self.open.entry(hold.request).or_insert_with(|| Open::of_hold(table, hold));
            }
        }
    }

    /// Records that all holds of processes of this host are lost. Waiting requests are made again,
    /// and leases move to another host.
    pub(crate) fn lose(&mut self) {
        let is_lost =
            |open: &Open| open.granted.is_some() && matches!(open.asked.owner, Owner::Process(_));
        let lost: Vec<RequestId> =
            self.open.iter().filter(|(_, open)| is_lost(open)).map(|(id, _)| *id).collect();
        for request in lost {
            if let Some(open) = self.open.remove(&request) {
                self.add(open, Ending::Lost);
            }
        }
        self.is_changed = true;
    }

    /// Takes over a table that replaces the previous one, or another part of the same table.
    /// Requests that are no longer in it ended unseen.
    pub(crate) fn follow(&mut self, table: &Table, here: HostId) {
        let lives = |id: &RequestId| table.waiter(*id).is_some() || table.hold_of(*id).is_some();
        let gone: Vec<RequestId> = self.open.keys().filter(|id| !lives(id)).copied().collect();
        for request in gone {
            // A request that waited is made again.
            if let Some(open) = self.open.remove(&request).filter(|open| open.granted.is_some()) {
                self.add(open, Ending::Lost);
            }
        }
        self.timed_out.retain(|request| self.open.contains_key(request));
        self.abandoned.retain(|request| self.open.contains_key(request));
        self.exits.forget_all();
        self.is_changed = true;
        for waiter in table.waiters().filter(|waiter| is_of(table, waiter.frame, here)) {
            self.open.entry(waiter.id).or_insert_with(|| Open::of_waiter(table, waiter));
        }
        for hold in table.holds().filter(|hold| is_of(table, hold.frame, here)) {
            self.open.insert(hold.request, Open::of_hold(table, hold));
        }
    }
}

/// Whether this host is responsible for a frame.
pub(crate) fn is_of(table: &Table, frame: FrameId, here: HostId) -> bool {
    // The job tokens of a build are not requests of a client. The build has its own record.
    let is_token = |owner: &Owner| matches!(owner, Owner::Jobserver(_));
    table.frame(frame).is_some_and(|frame| frame.host == here && !is_token(&frame.owner))
}

/// A request that was refused immediately. It may have a frame from an earlier request.
fn refused_at_once(asked: &Arc<Request>, table: &Table, here: HostId) -> Open {
    let frame = table.frame_of(here, &asked.owner).or(asked.parent);
    Open {
        asked: Arc::clone(asked),
        frame: frame.unwrap_or_default(),
        session: frame.map(|frame| table.session(frame)).unwrap_or_default(),
        asked_at: UnixMillis(clock::unix_ms()),
        granted: None,
        slots: OwnSlots::None,
        owner_ended: false,
    }
}

/// The record of a refusal; `None` if the request was invalid, or is made again.
fn refused(table: &Table, open: &Open, why: &Refusal) -> Option<Ending> {
    let mut ring = Vec::new();
    let reason = match why {
        Refusal::Full { .. } => Reason::Full,
        Refusal::Paused { .. } => Reason::Paused,
        Refusal::MaxWaiting { .. } => Reason::MaxWaiting,
        Refusal::Superseded { .. } => Reason::Superseded,
        Refusal::OwnDeadlock { .. } => Reason::Deadlock,
        Refusal::Deadlock { cycle } => {
            ring.extend(cycle.iter().map(|step| ring_step(table, step)));
            // Its frame may have ended with it.
            if let Some(first) = ring.first_mut() {
                first.session = open.session.0;
                (first.uid, first.pid) = (open.asked.uid, pid_of(&open.asked.owner));
            }
            Reason::Deadlock
        }
        Refusal::TooLarge { .. } | Refusal::RequireTooLarge { .. } => Reason::TooLarge,
        Refusal::Kind { .. } | Refusal::OtherNodes { .. } => Reason::Mismatch,
        Refusal::Unsupported { .. }
        | Refusal::Invalid { .. }
        | Refusal::Duplicate
        | Refusal::CannotEnd { .. }
        | Refusal::Recovering => return None,
    };
    Some(Ending::Refused { reason, ring })
}

fn ring_step(table: &Table, step: &CycleStep) -> RingStep {
    let frame = table.frame(step.frame);
    RingStep {
        session: table.session(step.frame).0,
        uid: frame.map_or(0, |frame| frame.uid),
        pid: frame.map_or(0, |frame| pid_of(&frame.owner)),
        key: step.key.as_str().to_owned(),
    }
}
