//! Leases: their owners, renewals, releases and ends, and the failures of lost leases.

use crate::calls::call::ConnId;
use crate::calls::in_flight::Applied;
use crate::calls::parameters;
use crate::lease_deadlines::name_of;
use crate::net::call_state::{PendingCall, PendingRenewal};
use crate::processes::identify_owner::OwnerFound;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::server::find_owner_and_parent::checked;
use crate::server::requests::release::give_back;
use crate::store::table_and_log::renewal_bytes;
use crate::wording::{bad, superseded, time};
use canal_core::{
    Change, FrameId, LEASE_MS_MAX, LEASE_MS_MIN, LeaseEnd, LeaseId, Outcome, Owner, PastLease,
    Release as Giving, RequestId, WaiterState,
};
use canal_protocol::{
    Acquire, EndedLease, EndedLeases, EndedLeasesQuery, ErrorName, Failure, Handle, LeaseAsked,
    LostLease, Released, Renew, Renewed,
};
use canal_sys::clock;
use canal_sys::peer::Credentials;
use canal_text::duration::{stated, stated_ms};

/// The owner of a requested lease.
pub(super) fn lease_owner(
    caller: &Caller,
    acquire: &Acquire,
    lease: LeaseAsked,
) -> Result<OwnerFound> {
    if acquire.owner_fd.is_some() || acquire.with_children {
        return Err(bad("a lease belongs to no process: leave out `owner_fd` and `with_children`"));
    }
    check_ttl(lease.ttl_ms)?;
    let owner = Owner::Lease(name_of(lease.handle));
    checked(OwnerFound { owner, uid: caller.peer.uid, pidfd: None })
}

impl Server {
    pub(crate) fn renew(&mut self, caller: &Caller, renew: &Renew) -> Result {
        let lease = name_of(renew.handle);
        if let Err(failure) = self.live_lease(caller.peer, lease)
            && !self.may_be_behind(lease)
        {
            return Err(failure);
        }
        let note = parameters::new_note(renew.note.as_deref())?;
        // A lease has one hold.
        let table = self.decide.table();
        let frame = table.lease(lease).and_then(|frame| table.frame(frame));
        let asked = frame.and_then(|it| table.holds_in(it.id).next()).map(|hold| &hold.asked);
        let kept = asked.map(|asked| asked.note.as_deref().unwrap_or_default());
        let note = note.filter(|note| kept != Some(&**note));
        let is_over_nodes = asked.is_some_and(|asked| asked.over_nodes.is_some());
        if let Some(ttl_ms) = renew.ttl_ms {
            check_ttl(ttl_ms)?;
            if is_over_nodes {
                self.check_ttl_over_nodes(ttl_ms)?;
            }
        }
        let effective = frame.and_then(|frame| Some(frame.lease?.ttl_ms));
        // A client that was promised a longer TTL may rely on it, and may never learn of this
        // renewal.
        let counts_on_more =
            |ttl_ms: u64| is_over_nodes && effective.is_some_and(|longer| ttl_ms < longer);
        // Over an engine, another host may have changed it since.
        let is_new = |ttl_ms: &u64| {
            (self.decide.is_shared() || effective != Some(*ttl_ms)) && !counts_on_more(*ttl_ms)
        };
        let ttl_ms = renew.ttl_ms.filter(is_new);
        self.reserve(renewal_bytes(note.as_deref()))?;
        let keeps_ttl = renew.ttl_ms.is_some();
        let renewing = PendingRenewal { lease, give_back: false, keeps_ttl };
        Ok(self.renewal(renewing, note, ttl_ms))
    }

    fn renewal(
        &self,
        renewing: PendingRenewal,
        note: Option<Box<str>>,
        ttl_ms: Option<u64>,
    ) -> Step {
        let (lease, host) = (renewing.lease, self.decide.host());
        let change = Change::Renew { lease, host, note, ttl_ms };
        Step::Propose(change, PendingCall::Renew(renewing))
    }

    /// Releases all holds of a lease.
    pub(crate) fn release_lease(&mut self, caller: &Caller, handle: Handle) -> Result {
        let lease = name_of(handle);
        let (table, frame) = (self.decide.table(), self.decide.table().lease(lease));
        // The part of a request over nodes that waits for this lease, and a part under it that
        // depends on a connection.
        let over_nodes = |waiter: &&WaiterState| waiter.request.over_nodes.is_some();
        let waiting = frame.and_then(|it| table.waiters_in(it).find(over_nodes)).map(|it| it.id);
        let hold = frame.and_then(|frame| table.holds_in(frame).find(|hold| hold.is_collecting()));
        let unconfirmed = hold.map(|hold| hold.request);
        // The client may have sent it long ago, before it opened the newer connection.
        if unconfirmed.or(waiting).is_some_and(|it| self.belongs_to_newer(it, caller.id)) {
            return Err(superseded(ErrorName::Gone));
        }
        if let Some(request) = waiting {
            self.propose(Change::Withdraw { request });
            return Ok(Step::reply(&Released::default()));
        }
        match self.live_lease(caller.peer, lease) {
            Ok(frame) => Ok(give_back(Giving::All { frame })),
            Err(_) if self.may_be_behind(lease) => {
                let renewing = PendingRenewal { lease, give_back: true, keeps_ttl: false };
                Ok(self.renewal(renewing, None, None))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether an unconfirmed part depends on a newer connection than this one.
    pub(crate) fn belongs_to_newer(&self, request: RequestId, id: ConnId) -> bool {
        let owner = self.conns.waiter(request).or_else(|| self.conns.with_provisional(request));
        let accepted = |id| self.conns.peek(id).map(|conn| conn.accepted_ticks);
        owner.is_some_and(|owner| accepted(owner) > accepted(id))
    }

    /// Whether a lease may have been granted although the table does not have it, or has it without
    /// a lock: another host may have granted it in an entry that this host has not read yet. The
    /// log then decides. A lease that has ended never comes back.
    fn may_be_behind(&self, lease: LeaseId) -> bool {
        self.decide.is_shared() && self.decide.table().past_lease(lease).is_none()
    }

    /// Answers a renewal that was applied to the table, or had no effect.
    pub(crate) fn renewed(
        &mut self,
        peer: Credentials,
        renewing: &PendingRenewal,
        applied: &Applied,
    ) -> Result {
        let PendingRenewal { lease, give_back: gives_back, keeps_ttl } = *renewing;
        match applied.outcomes.first() {
            Some(Outcome::Renewed { frame, .. }) if gives_back => {
                Ok(give_back(Giving::All { frame: *frame }))
            }
            Some(Outcome::Renewed { frame, .. }) => {
                if keeps_ttl {
                    self.decide.ledger_mut().keep_leases().map_err(|error| {
                        let message = format!(
                            "the lease is renewed, but the daemon cannot store its TTL to survive a \
                             reboot: {error}"
                        );
                        Failure::new(ErrorName::DiskFull, message)
                    })?;
                }
                let hold = self.decide.table().holds_in(*frame).next();
                let shown = self.shown(peer.uid);
                let Some((hold, info)) = hold.and_then(|hold| Some((hold, shown.lease(hold)?)))
                else {
                    return Err(self.lease_lost(peer, lease));
                };
                Ok(Step::reply(&Renewed {
                    keys: hold.items.iter().map(|item| item.key.to_string()).collect(),
                    token: hold.token.0,
                    session: shown.session(*frame),
                    lease: info,
                }))
            }
            _ => Err(match self.live_lease(peer, lease) {
                Ok(_) => self.lease_lost(peer, lease),
                Err(failure) => failure,
            }),
        }
    }

    /// The frame of a lease, if it holds something.
    pub(crate) fn live_lease(&self, peer: Credentials, lease: LeaseId) -> Result<FrameId> {
        let table = self.decide.table();
        let Some(frame) = table.lease(lease) else { return Err(self.lease_lost(peer, lease)) };
        if table.holds_in(frame).next().is_some() {
            return Ok(frame);
        }
        if table.waiters_in(frame).next().is_some() {
            return Err(bad("the lease with this handle is still waiting for its lock"));
        }
        // Only the leases under it still keep its frame.
        Err(self.lease_lost(peer, lease))
    }

    /// The error for a lease that has ended.
    ///
    /// A lost lease stays lost even if its lock is free: another client may have had the lock in
    /// the meantime, and the owner has to know. A renewal of an unknown lease adds no entry to the
    /// log, so that false handles cannot fill it.
    fn lease_lost(&self, peer: Credentials, lease: LeaseId) -> Failure {
        let Some(past) = self.decide.table().past_lease(lease) else {
            let message = "no lease has this handle: it ended long ago, or never existed";
            return Failure::new(ErrorName::LeaseLost, message).because("unknown");
        };
        // They were granted the first key of the lease after its loss.
        let holders = self.shown(peer.uid).holders_since(&past.key, past.token);
        let (lost, reason) = (lost_lease(past), reason(past.why));
        // Another field has the time of the loss.
        let message = lost.sentence(reason, "").unwrap_or_default();
        let failure = Failure::new(ErrorName::LeaseLost, message).because(reason);
        Failure { holders: holders.into(), lost: Some(Box::new(lost)), ..failure }
    }

    /// Ends the leases that had expired at `now`, in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn end_leases(&mut self, now: u64) {
        while let Some(frame) = self.leases.over(now) {
            let lease = self.decide.table().frame(frame).and_then(|state| state.lease);
            self.leases.forget(frame);
            if self.is_kept_by_its_client(frame) {
                continue;
            }
            if let Some(lease) = lease {
                tracing::info!(session = %format_args!("s{frame}"), "a lease was not renewed; ending it");
                self.propose(Change::Expire { frame, renewal: lease.renewals });
            }
        }
    }

    /// Whether an unconfirmed part outlives its TTL because its client has sent something since. If
    /// the client was silent, closes its connection, which ends the part and informs the client.
    fn is_kept_by_its_client(&mut self, frame: FrameId) -> bool {
        let part = self.decide.table().holds_in(frame).find(|hold| hold.is_collecting());
        let Some((request, Some(ttl_ms))) = part.map(|hold| (hold.request, hold.asked.ttl_ms))
        else {
            return false;
        };
        let Some(id) = self.conns.with_provisional(request) else { return false };
        let Some(conn) = self.conns.get(id) else { return false };
        let silent = clock::now().saturating_duration_since(conn.heard_at).as_millis();
        let left_ms = u128::from(ttl_ms).saturating_sub(silent);
        match u64::try_from(left_ms) {
            Ok(left_ms) if left_ms > 0 => self.leases.begin_for(frame, left_ms),
            _ => {
                let request = request.0;
                tracing::info!(request, "the client of a part has gone silent; ending the part");
                conn.is_closing = true;
            }
        }
        true
    }

    /// Lists the leases that ended recently.
    pub(crate) fn ended_leases(&self, caller: &Caller, query: &EndedLeasesQuery) -> Result {
        let key = query.key.as_deref().map(parameters::key).transpose()?;
        let uid = if query.mine { Some(caller.peer.uid) } else { query.uid };
        let shown = self.shown(caller.peer.uid);
        let ended = self.decide.table().globals().past_leases.iter().rev();
        let ended = ended.filter(|past| {
            uid.is_none_or(|uid| past.uid == uid)
                && key.as_ref().is_none_or(|key| key.covers(&past.key))
        });
        let told = |past: &PastLease| EndedLease {
            lost: lost_lease(past),
            reason: reason(past.why).to_owned(),
            uid: past.uid,
            command: shown.command(past.uid, &past.command.0),
        };
        Ok(Step::reply(&EndedLeases { ended: ended.map(told).collect() }))
    }

    /// Checks whether this node accepts a lease over nodes with this TTL. After a loss of its
    /// state, the node waits only for the longest TTL that it accepts.
    pub(crate) fn check_ttl_over_nodes(&self, ttl_ms: u64) -> Result<()> {
        let longest = self.effective.config.limits.nodes_longest_ttl;
        if u128::from(ttl_ms) <= longest.as_millis() {
            return Ok(());
        }
        let (most, ttl) = (stated(longest), stated_ms(ttl_ms));
        let message = format!("the TTL of a node lease can be at most {most} here, not {ttl}");
        let hint = "see `longest_ttl` under `[nodes]` in the configuration of that node";
        Err(bad(message).hint(hint))
    }
}

/// Checks whether a lease can have this TTL, in milliseconds.
fn check_ttl(ttl_ms: u64) -> Result<()> {
    if ttl_ms < LEASE_MS_MIN {
        let (least, ttl) = (stated_ms(LEASE_MS_MIN), stated_ms(ttl_ms));
        return Err(bad(format!("the TTL of a lease must be at least {least}, not {ttl}")));
    }
    if ttl_ms > LEASE_MS_MAX {
        let days = LEASE_MS_MAX / 86_400_000;
        return Err(bad(format!(
            "the TTL of a lease can be at most {LEASE_MS_MAX} ms ({days} days), not {ttl_ms}"
        )));
    }
    Ok(())
}

/// The locks that were lost with a lease.
fn lost_lease(past: &PastLease) -> LostLease {
    LostLease {
        at: time(past.at),
        token: past.token.0,
        key: past.key.to_string(),
        more_keys: past.more_keys as u64,
        ttl_ms: past.ttl_ms,
    }
}

/// The word for the end of a lease in messages.
fn reason(why: LeaseEnd) -> &'static str {
    match why {
        LeaseEnd::Expired => "expired",
        LeaseEnd::Released => "released",
        LeaseEnd::Forced => "forced",
        LeaseEnd::Withdrawn => "withdrawn",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::plain_request;
    use canal_core::{
        Ask, Command, ENTRY_VERSION, Entry, HostId, Item, Key, Release, Request, Revision, Table,
        Tag, Token, UnixMillis, Wait,
    };

    #[test]
    fn a_lost_lease_is_named_with_the_reason() {
        let past = |why, more_keys| PastLease {
            lease: LeaseId(1),
            at: UnixMillis(0),
            why,
            token: Token(7),
            key: Key::new("db").unwrap(),
            more_keys,
            ttl_ms: 1_500,
            uid: 0,
            command: Command::default(),
        };
        for (past, words) in [
            (past(LeaseEnd::Expired, 0), "`db` (token 7) expired: it was not renewed for 1.5s"),
            (past(LeaseEnd::Released, 1), "`db` and 1 other key (token 7) was released"),
            (past(LeaseEnd::Forced, 2), "`db` and 2 other keys (token 7) was broken by force"),
        ] {
            let said = lost_lease(&past).sentence(reason(past.why), "").unwrap();
            assert_eq!(said, format!("the lease on {words}"));
        }
    }

    #[test]
    fn a_live_lease_is_renewed_and_an_ended_one_is_gone() {
        let mut table = Table::default();
        let mut apply = |change| {
            let revision = Revision(table.revision().0 + 1);
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
            table.apply(revision, &entry, &mut Vec::new());
            let renewing = PendingRenewal { lease: LeaseId(1), give_back: false, keeps_ttl: false };
            renewing.unseen(&table)
        };
        let wish = |lease| {
            let items = vec![Item { key: Key::new("db").unwrap(), ask: Ask::Write }];
            let owner = (Owner::Lease(LeaseId(lease)), 0);
            Change::Request(Arc::new(Request {
                wait: Wait::Yes { until: None },
                ttl_ms: Some(60_000),
                ..plain_request(Tag(lease), HostId(1), owner, items)
            }))
        };
        apply(wish(2));
        assert_eq!(apply(wish(1)), [Outcome::LeaseGone], "it waits");
        let frame = FrameId(2);
        let released = apply(Change::Release(Release::All { frame: FrameId(1) }));
        assert_eq!(released, [Outcome::Renewed { frame, renewal: 0 }]);
        let renewed =
            apply(Change::Renew { lease: LeaseId(1), host: HostId(1), note: None, ttl_ms: None });
        assert_eq!(renewed, [Outcome::Renewed { frame, renewal: 1 }]);
        let over = apply(Change::Expire { frame, renewal: 1 });
        assert_eq!(over, [Outcome::LeaseGone]);
    }
}
