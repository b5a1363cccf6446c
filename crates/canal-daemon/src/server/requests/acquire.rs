//! Requests for a lock, and questions whether one would be granted.

use std::sync::Arc;

use crate::calls::call::ConnId;
use crate::calls::in_flight::Applied;
use crate::calls::parameters;
use crate::jobserver::pipes::Form;
use crate::net::call_state::PendingAcquire;
use crate::net::connection::AskedFor;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step, lost_track};
use crate::server::process_ends_and_stops::AHEAD_LOOKED_AT_MAX;
use crate::server::requests::leases::lease_owner;
use crate::store::table_and_log::disk_full;
use crate::view::holder::granted_key;
use crate::waiters::Open;
use canal_core::{
    Above, Change, Granted, Outcome, OverNodes, Owner, Refusal, Request, RequestId, Tag, Wait,
    differs_in_nodes,
};
use canal_protocol::{Acquire, WouldAcquire, WouldGrant, Wrapper};
use canal_sys::clock;

/// The fields that only a part of a request over nodes has.
#[derive(Debug)]
pub(crate) struct Part {
    pub over_nodes: Box<OverNodes>,
    /// The frame under which the request is made. It may belong to another daemon.
    pub under_frame: Option<Above>,
}

impl Server {
    /// Handles a request to this daemon alone, or one part of a request over nodes.
    pub(crate) fn acquire(
        &mut self,
        caller: &mut Caller,
        acquire: Box<Acquire>,
        part: Option<Part>,
    ) -> Result {
        let id = caller.id;
        let mut items = parameters::items(&acquire.items)?;
        let note = parameters::note(acquire.note.as_deref())?;
        let supersede = parameters::supersede(acquire.supersede, acquire.group.as_deref())?;
        self.decide.table().share_keys(&mut items);
        self.effective.config.spread(&mut items);
        self.check_wrapper(acquire.wrapper)?;
        if acquire.jobserver {
            self.check_jobserver(&acquire, &items, part.is_some())?;
        }
        let provisional = acquire.owner_fd.is_some() || acquire.lease.is_some();
        if let Some(conn) = self.conns.get(id) {
            let form = if acquire.jobserver_fifo { Form::Name } else { Form::Descriptors };
            conn.asked = AskedFor {
                closes_on_grant: acquire.wrapper == Some(Wrapper::Exec) && !provisional,
                jobserver: acquire.jobserver.then_some(form),
                key_notes: self.told_sizes.of_texts(conn.peer.uid, &acquire.items),
            };
        }
        let owner = match acquire.lease {
            Some(lease) => lease_owner(caller, &acquire, lease)?,
            None => self.owner(caller, acquire.owner_fd)?,
        };
        let known = self.decide.table().tagged(acquire.tag);
        let goes_on = |request: &RequestId| {
            !self.decide.in_flight.has(&Change::Withdraw { request: *request })
                && !self.is_of_lost_incarnation(*request, (owner.uid, &owner.owner))
        };
        if let Some(request) = known.filter(goes_on) {
            return self.attach_again(id, request, owner);
        }
        if let Some(step) = self.attach_in_flight(id, &acquire, &owner)? {
            return Ok(step);
        }
        self.may_hold(id, &items, acquire.priority)?;
        self.check_quota(owner.uid, &items, acquire.lease.is_some())?;
        self.withdraw_offers_for(&items);
        let wait = match acquire.wait_ms {
            Some(0) => Wait::No,
            wait_ms => Wait::Yes { until: wait_ms.map(clock::boottime_ms_after) },
        };
        let most = self.effective.config.limits.waiters_per_user;
        let waiting = || self.waiters.of_user(owner.uid) + self.decide.in_flight.of_user(owner.uid);
        // The limit on a user's waiting requests, if this one would exceed it.
        let crowd = (wait != Wait::No && waiting() >= most).then_some(most);
        let wait = if crowd.is_some() { Wait::No } else { wait };
        let may_come_back = provisional && wait != Wait::No;
        let asker = if may_come_back { self.asker(id) } else { None };
        let (parent, over_nodes, under_frame) = match part {
            Some(Part { over_nodes, under_frame }) => {
                let lease = acquire.under.and_then(|under| self.lease_above(under, owner.uid));
                (lease, Some(over_nodes), under_frame)
            }
            None => {
                let frame = acquire.frame.as_deref();
                (self.enclosing(frame, acquire.under, &owner), None, None)
            }
        };
        let above = under_frame.or(acquire.under_run.map(Above::Run));
        let mut request = Request {
            tag: acquire.tag,
            host: self.decide.host(),
            parent,
            owner: owner.owner,
            uid: owner.uid,
            command: parameters::command(acquire.command),
            note,
            items,
            wait,
            priority: acquire.priority,
            max_waiting: acquire.max_waiting,
            supersede,
            max_run_ms: acquire.max_run_ms,
            provisional,
            children: acquire.with_children,
            ttl_ms: acquire.lease.map(|lease| lease.ttl_ms),
            on_lost: acquire.on_lost,
            asker,
            over_nodes,
            above: above.map(Box::new),
        };
        if known.is_some() {
            // The log knows it from a lost incarnation.
            request.has_waited();
        }
        self.decide.ledger_mut().admit(&request).map_err(|error| disk_full(&error))?;
        let newcomer =
            PendingAcquire { crowd, ..PendingAcquire::new(Arc::new(request), owner.pidfd) };
        if let Some(why) = self.announce(id, &newcomer.request) {
            return self.refuse(id, newcomer, &why);
        }
        Ok(self.ask(newcomer))
    }

    /// Announces the nodes of a request to other requests while its connection is open. The table
    /// knows them only while the request waits or holds something here.
    fn announce(&mut self, id: ConnId, request: &Arc<Request>) -> Option<Refusal> {
        request.over_nodes.as_ref()?;
        let table = self.decide.table();
        // The table itself refuses a conflict with a request that it knows, so that the history
        // records it.
        let is_news = |theirs: &&Request| table.tagged(theirs.tag).is_none();
        let others = self.conns.iter().filter(|(other, _)| *other != id);
        let others = others.filter_map(|(_, conn)| conn.over_nodes.as_deref());
        let differs = others.filter(is_news).find_map(|theirs| differs_in_nodes(request, theirs));
        if differs.is_none()
            && let Some(conn) = self.conns.get(id)
        {
            conn.over_nodes = Some(Arc::clone(request));
        }
        differs
    }

    /// Whether a request belongs to this owner and to a lost incarnation of this host, and is still
    /// in the log.
    fn is_of_lost_incarnation(&self, request: RequestId, by: (u32, &Owner)) -> bool {
        self.own_frame(request, by).is_some_and(|frame| frame.host != self.decide.host())
    }

    /// Continues a request after the table has decided about it.
    pub(crate) fn asked(
        &mut self,
        id: ConnId,
        newcomer: PendingAcquire,
        applied: Applied,
    ) -> Result {
        let Applied { revision, outcomes } = applied;
        let request = RequestId(revision.0);
        // The entry that queues a request may also grant it, because the waiters ahead wait for it
        // or because another request was refused. The entry may also refuse it, because the request
        // completes a deadlock.
        let last_word = outcomes.into_iter().rfind(|outcome| outcome.is_word_on(request));
        match last_word {
            Some(Outcome::Granted(granted)) if !self.decide.may_grant() => {
                self.waiters.to_tell.push_back(granted.clone());
                self.keep_untold(id, &granted)
            }
            Some(Outcome::Granted(granted)) => {
                match self.watch_owner(id, granted.frame, newcomer.pidfd) {
                    Ok(()) => self.tell_grant(id, granted),
                    Err(failure) => Ok(Step::GiveBack(request, failure)),
                }
            }
            Some(Outcome::Queued { frame, .. }) => {
                let step = self.wait_for_grant(id, request);
                if newcomer.request.provisional
                    && let Err(failure) = self.watch_owner(id, frame, newcomer.pidfd)
                {
                    // This call waited for it.
                    let _ = self.waiters.remove(request);
                    return Ok(Step::GiveBack(request, failure));
                }
                self.check_ahead_of(request, AHEAD_LOOKED_AT_MAX);
                Ok(step)
            }
            Some(Outcome::Refused { why, .. }) => {
                let Request { tag, uid, owner, .. } = &*newcomer.request;
                let known = self.decide.table().tagged(*tag);
                // The daemon proposes the request again once the recovery is over, or once that
                // incarnation is gone.
                let is_premature = why == Refusal::Recovering
                    || why == Refusal::Duplicate
                        && known.is_some_and(|it| self.is_of_lost_incarnation(it, (*uid, owner)));
                if is_premature {
                    Ok(self.wait_for_membership(id, newcomer))
                } else {
                    self.refuse(id, newcomer, &why)
                }
            }
            _ => {
                tracing::error!(request = request.0, "the table did not decide a request");
                Err(lost_track())
            }
        }
    }

    /// Defers a grant until this host is sure of it, usually after the next renewal: the rest of
    /// the TTL may be too short to start a command safely. Refuses a request that may not wait.
    pub(crate) fn keep_untold(&mut self, id: ConnId, granted: &Granted) -> Result {
        let (table, request) = (self.decide.table(), granted.request);
        let hold = table.hold(granted.token);
        let Some(hold) = hold.filter(|hold| hold.asked.wait != Wait::No) else {
            let failure = self.decide.not_a_member();
            self.waiters.drop_grant(request);
            return Ok(Step::GiveBack(request, failure));
        };
        self.waiters.add(request, Open::of_hold(table, hold));
        Ok(self.wait_for_grant(id, request))
    }

    /// Answers whether a request that may not wait would be granted, and changes nothing.
    ///
    /// Invariant: the table decides about a question as about a request. Stopped waiters, and
    /// holders whose process is exiting, are also handled as for a request.
    pub(crate) fn would_acquire(&mut self, caller: &mut Caller, asked: &WouldAcquire) -> Result {
        let items = parameters::items(&asked.items)?;
        let owner = self.owner(caller, None)?;
        self.may_hold(caller.id, &items, asked.priority)?;
        self.withdraw_offers_for(&items);
        let table = self.decide.table();
        let mut tags = (0..=u128::MAX).rev().map(Tag);
        let tag = tags.find(|tag| table.tagged(*tag).is_none()).unwrap_or(Tag(0));
        let parent = self.enclosing(asked.frame.as_deref(), asked.under, &owner);
        let request = Request {
            tag,
            host: self.decide.host(),
            parent,
            owner: owner.owner,
            uid: owner.uid,
            items,
            priority: asked.priority,
            ..Request::default()
        };
        let question = PendingAcquire::new(Arc::new(request), owner.pidfd);
        Ok(self.ask(PendingAcquire { is_question: true, ..question }))
    }

    /// Answers a question, or defers it while the process of a holder is exiting.
    pub(crate) fn question(&mut self, id: ConnId, newcomer: PendingAcquire) -> Result {
        let asked = Arc::clone(&newcomer.request);
        match self.decide.table().verdict_on(&asked) {
            Outcome::Granted(granted) => {
                let keys = asked.items.iter().zip(&granted.items);
                let keys = keys.map(|(it, granted)| granted_key(&it.key, it.ask.mode(), granted));
                Ok(Step::reply(&WouldGrant { keys: keys.collect() }))
            }
            Outcome::Refused { why: Refusal::Recovering, .. } => Err(self.decide.not_a_member()),
            Outcome::Refused { why, .. } => self.refuse(id, newcomer, &why),
            _ => Err(lost_track()),
        }
    }
}
