//! The member: a state machine that takes answers, time and proposals, and returns calls and
//! events. This file has its state; requests, loses, withdraws and leaves incarnations.
//!
//! Invariant: it acts only by calls to the engine and events for its driver.

mod calls_and_renewals;
mod join;
mod read_log;
mod recover;
mod resting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::membership::failure_detector::FailureDetector;
use crate::membership::incarnation::{Incarnation, Memory, Reading, Recovering};
use crate::membership::proposal_queue::Writer;
use crate::membership::snapshot_keeper::{Differs, SnapshotKeeper};
use crate::membership::{Event, LostWhy, Now, OngoingOutage, Settings, Standing};
use canal_core::HostId;
use canal_log::engine::{Call, Ends, Evidence, Hash, Identity, Outage, Position, Registration};
use canal_sys::deadline_page::Deadline;
use resting::Attention;

/// One host's part in the log of many.
#[derive(Debug, Default)]
pub(crate) struct Member {
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    nonce: u128,
    pub(in crate::membership) now: Now,
    pub(in crate::membership) calls: VecDeque<Call>,
    pub(in crate::membership) events: VecDeque<Event>,
    pub(crate) standing: Standing,
    /// Whether the connection to the engine is cut.
    pub(in crate::membership) cut: bool,
    /// Why the engine cannot be used, until it answers again.
    pub(crate) outage: Option<OngoingOutage>,
    /// The total length of earlier outages of the engine, in milliseconds.
    pub(crate) away_ms: u64,
    /// Why this host cannot take part although the engine answers.
    pub(crate) obstacle: Option<OngoingOutage>,
    /// Why the engine stores nothing although it answers.
    pub(crate) full: Option<OngoingOutage>,
    /// How many incarnations in a row met an obstacle.
    setbacks: u32,
    /// The incarnation that is being withdrawn. Its obstacle is reported after that.
    withdrawing: Option<HostId>,
    /// The number of incarnations requested.
    attempt: u64,
    /// When the current one was first requested. This host counts its TTL from this time.
    pub(in crate::membership) registering_ms: u64,
    /// When to request it, or to repeat the request, while this host registers.
    pub(in crate::membership) register: Option<u64>,
    pub(in crate::membership) incarnation: Option<Incarnation>,
    pub(in crate::membership) writer: Writer,
    /// What the engine announces to this host.
    attention: Attention,
    pub(in crate::membership) failure_detector: FailureDetector,
    pub(in crate::membership) snapshot_keeper: SnapshotKeeper,
    /// Since when the engine has no record of incarnations that have not ended.
    unknown_since: BTreeMap<HostId, u64>,
    /// The longest TTL in the table.
    longest_ttl_ms: u64,
    /// The incarnation that has this host's label, if that is the obstacle.
    pub(crate) label_taken_by: Option<HostId>,
    /// The nonces of the incarnations that this host has given up. Their numbers may be those of
    /// other hosts after the engine has lost history.
    pub(in crate::membership) lost: BTreeSet<u128>,
    /// The boots of this machine in which daemons of this place have been members.
    pub(crate) boots: Vec<String>,
    /// How long commands of this host may run. The daemon may report a grant to a client only
    /// before `term_at`. After a loss the deadline stays that of the lost incarnation until the
    /// host is a member again. All times are 0 before the first incarnation.
    pub(crate) deadline: Deadline,
    /// Whether this host's own end is in flight, because it leaves.
    pub(in crate::membership) leaving: bool,
    /// The memory that outlives an incarnation, at first that of an earlier daemon of this place.
    pub(crate) memory: Memory,
    pub(in crate::membership) recovering: Option<Recovering>,
}

impl Member {
    /// A member that has not been started. `nonce` is random.
    pub(crate) fn new(settings: Settings, identity: Identity, nonce: u128) -> Self {
        Self { settings, identity, nonce, ..Self::default() }
    }

    /// The TTL of the incarnation, in milliseconds.
    pub(crate) fn ttl_ms(&self) -> Option<u64> {
        Some(self.incarnation.as_ref()?.timing.ttl_ms)
    }

    /// When the last successful renewal was sent, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn renewed_ms(&self) -> Option<u64> {
        self.incarnation.as_ref()?.renewed_ms
    }

    /// When an incarnation that has not ended was last known to live, in milliseconds of
    /// CLOCK_BOOTTIME; also while this host is not a member.
    pub(crate) fn heard_ms(&self, host: HostId) -> Option<u64> {
        self.failure_detector.heard.get(&host).copied()
    }

    // Its incarnations.

    /// The host's incarnation, while it is a member.
    pub(crate) fn host(&self) -> Option<HostId> {
        let is_member = self.standing == Standing::Member;
        self.incarnation.as_ref().filter(|_| is_member).map(|incarnation| incarnation.host)
    }

    /// Whether an incarnation is this host's own.
    pub(in crate::membership) fn is_us(&self, host: HostId) -> bool {
        self.incarnation.as_ref().is_some_and(|incarnation| incarnation.host == host)
    }

    /// The position of the last batch that was read.
    pub(in crate::membership) fn read_to(&self) -> Position {
        self.incarnation.as_ref().map_or(Position(0), |it| it.chain.link.position)
    }

    /// Whether commands may run under this incarnation.
    pub(in crate::membership) fn takes_part(&self) -> bool {
        matches!(self.standing, Standing::Member | Standing::Joining)
    }

    /// Requests another incarnation, at `at_ms`.
    pub(in crate::membership) fn register_at(&mut self, at_ms: u64) {
        self.standing = Standing::Registering;
        self.attempt += 1;
        self.registering_ms = u64::MAX;
        self.register = Some(at_ms);
    }

    pub(in crate::membership) fn send_register(&mut self) {
        let asked_at = self.now.boot_ms;
        self.registering_ms = self.registering_ms.min(asked_at);
        self.register = Some(asked_at + self.usual_renewal_ms());
        self.calls.push_back(Call::Register(Registration {
            identity: self.identity.clone(),
            nonce: nonce(self.nonce, self.attempt),
            ttl_ms: self.settings.ttl_ms,
            asked_at,
        }));
    }

    pub(in crate::membership) fn usual_renewal_ms(&self) -> u64 {
        self.settings.check(self.settings.ttl_ms).map_or(1, |timing| timing.renewal_ms)
    }

    /// Handles the certain or possible end of the incarnation, whose holds are lost. Requests
    /// another one.
    pub(in crate::membership) fn lose(&mut self, why: LostWhy) {
        self.tell_lost(why);
        self.give_up();
    }

    pub(in crate::membership) fn tell_lost(&mut self, why: LostWhy) {
        let incarnation = self.incarnation.as_ref().filter(|_| self.takes_part());
        self.events.extend(incarnation.map(|it| Event::Lost { host: it.host, why }));
    }

    /// Gives up the incarnation, if there is one, and requests another one.
    pub(in crate::membership) fn give_up(&mut self) {
        if self.incarnation.is_none() {
            return;
        }
        self.leaving = false;
        self.lost.insert(nonce(self.nonce, self.attempt));
        self.begin_anew();
        // Requests incarnations at most as often as renewals, if one after another is lost.
        let earliest = self.registering_ms.saturating_add(self.usual_renewal_ms());
        self.register_at(self.now.boot_ms.max(earliest));
    }

    /// Handles an obstacle that keeps the incarnation from becoming or staying a member. Requests
    /// another one, waiting longer each time.
    pub(in crate::membership) fn hinder(&mut self, obstacle: Outage) {
        self.label_taken_by = None;
        self.tell_withdrawn();
        let unused = self.incarnation.as_ref().filter(|_| !self.takes_part()).map(|it| it.host);
        self.lose(LostWhy::Differs);
        let wait_ms = self.usual_renewal_ms().saturating_mul(1 << self.setbacks.min(8));
        self.setbacks = self.setbacks.saturating_add(1);
        self.register_at(self.now.boot_ms + wait_ms.min(self.settings.ttl_ms));
        let withdrawn = unused.filter(|_| !self.cut);
        self.calls.extend(withdrawn.map(|host| Call::Withdraw { host }));
        let is_new = OngoingOutage::note(&mut self.obstacle, &obstacle, self.now);
        // Withdraw first: the daemon may exit when it gets the event, and other hosts would wait
        // for this incarnation's end.
        self.withdrawing = withdrawn.filter(|_| is_new);
        if is_new && withdrawn.is_none() {
            self.tell_obstacle();
        }
    }

    /// Stops a member that cannot read the log at present. It neither renews nor appends until it
    /// can, so its holds last until their deadline.
    pub(in crate::membership) fn stall(&mut self, obstacle: Outage) {
        let takes_part = self.takes_part();
        let Some(incarnation) = self.incarnation.as_mut().filter(|_| takes_part) else {
            return self.hinder(obstacle);
        };
        incarnation.renew = None;
        let again_ms = self.now.boot_ms + incarnation.timing.renewal_ms;
        incarnation.reading = Some((Reading::Loading, again_ms));
        if OngoingOutage::note(&mut self.obstacle, &obstacle, self.now) {
            self.tell_obstacle();
        }
        self.end_read();
    }

    /// Resumes when reading works again.
    pub(in crate::membership) fn unstall(&mut self) {
        if !self.takes_part() {
            return;
        }
        if self.obstacle.take().is_some() {
            self.events.push_back(Event::Unhindered);
        }
        if let Some(incarnation) = &mut self.incarnation {
            incarnation.renew.get_or_insert(self.now.boot_ms);
        }
    }

    pub(in crate::membership) fn tell_obstacle(&mut self) {
        let obstacle = self.obstacle.as_ref().map(|it| it.outage.clone());
        self.events.extend(obstacle.map(Event::Hindered));
    }

    /// Reports the obstacle of a withdrawn incarnation, whether or not the withdrawal succeeded.
    pub(in crate::membership) fn tell_withdrawn(&mut self) {
        if self.withdrawing.take().is_some() {
            self.tell_obstacle();
        }
    }

    /// Records that the engine answered.
    pub(in crate::membership) fn hear(&mut self) {
        if !self.cut
            && let Some(OngoingOutage { since, .. }) = self.outage.take()
        {
            self.away_ms += self.now.boot_ms.saturating_sub(since.boot_ms);
            self.events.push_back(Event::Back);
        }
    }

    /// Leaves in good order. This host must hold nothing and wait for nothing. Returns whether its
    /// end is in flight: call it until it is not.
    pub(crate) fn leave(&mut self, now: Now) -> bool {
        self.now = now;
        let Some(us) = self.host().filter(|_| !self.cut) else { return false };
        // A batch in flight could still move leases to this host.
        if !self.leaving && self.writer.is_idle() {
            self.leaving = true;
            self.writer.push_end(Ends { host: us, evidence: Evidence::Own });
        }
        true
    }

    pub(in crate::membership) fn begin_anew(&mut self) {
        self.memory.mark = self.mark().or(self.memory.mark);
        let given_up = std::mem::take(&mut self.writer).give_up();
        self.events.extend(given_up.map(|ticket| Event::Dropped { ticket }));
        self.incarnation = None;
        self.recovering = None;
        self.failure_detector.seen.clear();
        self.unknown_since.clear();
        // A new history begins.
        self.snapshot_keeper = SnapshotKeeper::default();
        self.events.retain(|event| !matches!(event, Event::SnapshotWanted(_)));
        self.calls.clear();
    }

    pub(in crate::membership) fn differs(&mut self, Differs(revision): Differs) {
        let why = format!("{} at revision {revision}", LostWhy::Differs);
        let hint = "report this bug, with the versions of canal on all hosts";
        self.hinder(Outage::refused(why, Some(hint)));
    }
}

/// The nonce of the `attempt`th registration, as random as the first.
fn nonce(first: u128, attempt: u64) -> u128 {
    let Hash(digest) = Hash::of(&[&first.to_be_bytes()[..], &attempt.to_be_bytes()].concat());
    digest.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proposal_has_a_name_of_its_own() {
        assert_ne!(nonce(1, 0), nonce(1, 1));
        assert_ne!(nonce(1, 0), nonce(2, 0));
    }
}
