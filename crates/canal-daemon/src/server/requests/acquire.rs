//! Requests for a lock, for the first time or again, and questions whether one would be granted.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::call::{ConnId, Follows};
use crate::calls::in_flight::{Applied, Completion};
use crate::calls::items;
use crate::jobserver::pipes::Form;
use crate::net::call_state::{Awaiting, CallState, PendingAcquire, PendingCall};
use crate::net::connection::AskedFor;
use crate::processes::identity::{NOBODY, OwnerFound, PROCESSES_LOOKED_AT_MAX, cannot_watch};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step, lost_track};
use crate::server::liveness::AHEAD_LOOKED_AT_MAX;
use crate::server::requests::leases::lease_owner;
use crate::store::ledger::disk_full;
use crate::view::holder::granted_keys;
use crate::view::visible_table::Held;
use crate::waiters::waiting::Asked;
use crate::wording::{self, Use, bad, pid_of, refused, superseded, too_many_wait};
use canal_core::{
    Above, Change, FrameId, Granted, Outcome, OverNodes, OwnSlots, Owner, Reason, Refusal, Request,
    RequestId, Tag, UnixMillis, Wait, differs_in_nodes,
};
use canal_protocol::{Acquire, ErrorName, Failure, WouldAcquire, WouldGrant, Wrapper};
use canal_sys::clock;
use canal_sys::process::{RunState, run_state};

/// How long a request with `-n` waits for a holder whose process is exiting.
const EXITING_TIME: Duration = Duration::from_millis(100);

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
        let (id, more) = (caller.id, caller.follows == Follows::More);
        let mut items = items::items(&acquire.items)?;
        let note = items::note(acquire.note.as_deref())?;
        let supersede = items::supersede(acquire.supersede, acquire.group.as_deref())?;
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
            !self.decide.in_flight.is_leaving(*request)
                && !self.is_of_lost_incarnation(*request, owner.uid, &owner.owner)
        };
        if let Some(request) = known.filter(goes_on) {
            return self.attach_again(id, request, owner, more);
        }
        if let Some(step) =
            self.attach_in_flight(caller, acquire.tag, &owner, acquire.wait_ms != Some(0))?
        {
            return Ok(step);
        }
        self.may_hold(id, &items, acquire.priority)?;
        if acquire.lease.is_some() {
            self.check_leases(owner.uid)?;
        }
        self.check_quota(owner.uid, &items)?;
        self.withdraw_offers_for(&items);
        let wait = match acquire.wait_ms {
            Some(0) => Wait::No,
            wait_ms => Wait::Yes { until: wait_ms.map(clock::boottime_ms_after) },
        };
        let crowd = self.crowd(wait, owner.uid);
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
            command: items::command(acquire.command),
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
        let (request, pidfd) = (Arc::new(request), owner.pidfd);
        let newcomer = PendingAcquire { request, pidfd, more, crowd, ..PendingAcquire::default() };
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
        let differs = self
            .conns
            .over_nodes(id)
            .filter(is_news)
            .find_map(|theirs| differs_in_nodes(request, theirs));
        if differs.is_none()
            && let Some(conn) = self.conns.get(id)
        {
            conn.over_nodes = Some(Arc::clone(request));
        }
        differs
    }

    /// Whether a request belongs to this owner and to a lost incarnation of this host, and is still
    /// in the log.
    fn is_of_lost_incarnation(&self, request: RequestId, uid: u32, owner: &Owner) -> bool {
        let table = self.decide.table();
        table.frame_of_request(request).and_then(|id| table.frame(id)).is_some_and(|frame| {
            frame.host != self.decide.host() && frame.uid == uid && frame.owner == *owner
        })
    }

    /// The limit on a user's waiting requests, if a request that would wait exceeds it.
    fn crowd(&self, wait: Wait, uid: u32) -> Option<usize> {
        let most = self.effective.config.limits.waiters_per_user;
        let waiting = || self.waiters.of_user(uid) + self.decide.in_flight.of_user(uid);
        (wait != Wait::No && waiting() >= most).then_some(most)
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
                self.keep_untold(id, newcomer.more, &granted)
            }
            Some(Outcome::Granted(granted)) => {
                self.waiters.drop_grant(request);
                match self.watch_owner(id, granted.frame, newcomer.pidfd) {
                    Ok(()) => self.tell_grant(id, &granted),
                    Err(failure) => Ok(Step::GiveBack(request, failure)),
                }
            }
            Some(Outcome::Queued { frame, .. }) => {
                let step = self.wait_for_grant(id, request, newcomer.more);
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
            // The daemon proposes the request again once the recovery is over.
            Some(Outcome::Refused { why: Refusal::Recovering, .. }) => {
                Ok(self.wait_for_membership(id, newcomer))
            }
            // The daemon proposes the request again once that incarnation is gone.
            Some(Outcome::Refused { why: Refusal::Duplicate, .. })
                if self.decide.table().tagged(newcomer.request.tag).is_some_and(|known| {
                    let Request { uid, owner, .. } = &*newcomer.request;
                    self.is_of_lost_incarnation(known, *uid, owner)
                }) =>
            {
                Ok(self.wait_for_membership(id, newcomer))
            }
            Some(Outcome::Refused { why, .. }) => self.refuse(id, newcomer, &why),
            _ => {
                tracing::error!(request = request.0, "the table did not decide a request");
                Err(lost_track())
            }
        }
    }

    /// Defers a grant until this host is sure of it, usually after the next renewal: the rest of
    /// the TTL may be too short to start a command safely. Refuses a request that may not wait.
    pub(crate) fn keep_untold(&mut self, id: ConnId, more: bool, granted: &Granted) -> Result {
        let (table, request) = (self.decide.table(), granted.request);
        let hold = table.hold(granted.token);
        let Some(hold) = hold.filter(|hold| hold.asked.wait != Wait::No) else {
            let failure = self.decide.not_a_member();
            self.waiters.drop_grant(request);
            return Ok(Step::GiveBack(request, failure));
        };
        self.waiters.add_granted(table, hold);
        Ok(self.wait_for_grant(id, request, more))
    }
}

/// Resumes a request whose client asks again: after a lost connection, or after another daemon has
/// replaced the one that the client asked first.
///
/// Invariant: a request is answered on one connection, the last one that asked for it.
impl Server {
    /// Resumes a request that is on its way into the log, or that waits for the membership of this
    /// host, after its client lost its connection. `None` if there is no such request. `may_wait`:
    /// whether the client lets it wait.
    fn attach_in_flight(
        &mut self,
        caller: &Caller,
        tag: Tag,
        owner: &OwnerFound,
        may_wait: bool,
    ) -> Result<Option<Step>> {
        let waiting = self.conns.asks_for(tag);
        let in_flight = self.decide.in_flight.tagged(tag);
        let known = waiting.map(|(_, request)| request).or(in_flight.map(|(_, request)| request));
        let Some(request) = known.cloned() else { return Ok(None) };
        if (request.uid, &request.owner) != (owner.uid, &owner.owner) {
            return Err(bad("the tag names a request of another process or lease"));
        }
        let (before, ticket) = (waiting.map(|(id, _)| id), in_flight.map(|(ticket, _)| ticket));
        if let Some(ticket) = ticket {
            self.decide.in_flight.pass_on(ticket, caller.id);
        }
        let mut what = if let Some(before) = before
            && let CallState::Log(wait) = self.conns.hand_over(before, caller.id)
        {
            self.carry_out(before, Err(superseded(ErrorName::BadRequest)));
            wait.what
        } else {
            // The call ended before its request came out of the log.
            let Some(ticket) = ticket else { return Ok(None) };
            let pidfd = owner.pidfd.as_ref().and_then(|pidfd| pidfd.try_clone().ok());
            let most = self.effective.config.limits.waiters_per_user;
            let crowd = (may_wait && request.wait == Wait::No).then_some(most);
            let newcomer = PendingAcquire { request, pidfd, crowd, ..PendingAcquire::default() };
            Awaiting::Change(ticket, PendingCall::Ask(newcomer))
        };
        if let Awaiting::MembershipOf(it) | Awaiting::Change(_, PendingCall::Ask(it)) = &mut what {
            it.more = caller.follows == Follows::More;
        }
        Ok(Some(self.wait_for_log(caller.id, what)))
    }

    /// Resumes a known request: its client lost its connection, or asked an earlier daemon first.
    fn attach_again(
        &mut self,
        id: ConnId,
        request: RequestId,
        owner: OwnerFound,
        more: bool,
    ) -> Result {
        let table = self.decide.table();
        let waiter = table.waiter(request);
        let frame = table.frame_of_request(request);
        let same = frame
            .and_then(|frame| table.frame(frame))
            .filter(|frame| frame.host == self.decide.host())
            .is_some_and(|frame| frame.uid == owner.uid && frame.owner == owner.owner);
        let Some(frame) = frame.filter(|_| same) else {
            return Err(bad("the tag names a request of another process or lease"));
        };
        // A request also waits if its grant has not been sent yet.
        if waiter.is_none() && self.waiters.get(request).is_none() {
            let told = |token| {
                self.may_be_told(token)
                    || self.decide.cluster().is_some_and(|it| it.was_told(token))
            };
            let hold = table.hold_of(request);
            if !self.decide.may_grant() || hold.is_some_and(|hold| !told(hold.token)) {
                // The client gets it as soon as this host is sure of it.
                let hold = hold.filter(|hold| hold.asked.wait != Wait::No);
                let hold = hold.ok_or_else(|| self.decide.not_a_member())?;
                self.waiters.add_granted(table, hold);
                self.waiters.queue_grant_again(table, hold);
                return Ok(self.wait_for_grant(id, request, more));
            }
            self.watch_owner(id, frame, owner.pidfd)?;
            // From here, the grant depends on this connection alone.
            self.conns.disown(request);
            return Ok(self.send_grant_or_take_back(id, request, None));
        }
        if let Some(waiter) = self.waiters.get(request)
            && let Some(before) = self.conns.waiter(request)
        {
            // The client of a part may come back: it only lost the connection.
            let name = match waiter.asked.request.over_nodes {
                Some(_) => ErrorName::Gone,
                None => ErrorName::BadRequest,
            };
            self.carry_out(before, Err(superseded(name)));
        }
        let provisional =
            self.decide.table().waiter(request).is_some_and(|waiter| waiter.request.provisional);
        if provisional && let Some(pidfd) = owner.pidfd {
            self.owners.watch(frame, None, pidfd).map_err(|error| cannot_watch(&error))?;
        }
        let step = self.wait_for_grant(id, request, more);
        self.waiters.suspended.remove(&request);
        self.propose(Change::Resume { request });
        Ok(step)
    }
}

/// Answers whether a request that may not wait would be granted, and changes nothing.
///
/// Invariant: the table decides about a question as about a request. Stopped waiters, and holders
/// whose process is exiting, are also handled as for a request.
impl Server {
    pub(crate) fn would_acquire(&mut self, caller: &mut Caller, asked: &WouldAcquire) -> Result {
        let items = items::items(&asked.items)?;
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
        let (request, pidfd) = (Arc::new(request), owner.pidfd);
        let question = PendingAcquire { request, pidfd, ..PendingAcquire::default() };
        Ok(self.ask(PendingAcquire { is_question: true, ..question }))
    }

    /// Answers a question, or defers it while the process of a holder is exiting.
    pub(crate) fn question(&mut self, id: ConnId, newcomer: PendingAcquire) -> Result {
        let asked = Arc::clone(&newcomer.request);
        match self.decide.table().verdict_on(&asked) {
            Outcome::Granted(granted) => {
                Ok(Step::reply(&WouldGrant { keys: granted_keys(&asked, &granted) }))
            }
            Outcome::Refused { why: Refusal::Recovering, .. } => Err(self.decide.not_a_member()),
            Outcome::Refused { why, .. } => self.refuse(id, newcomer, &why),
            _ => Err(lost_track()),
        }
    }
}

impl Server {
    /// Handles a request that the table refused: repeats it, defers it, or fails it.
    pub(crate) fn refuse(
        &mut self,
        id: ConnId,
        mut newcomer: PendingAcquire,
        why: &Refusal,
    ) -> Result {
        if matches!(why, Refusal::Full { .. })
            && let Some(ahead) = self.decide.table().first_ahead_of(&newcomer.request)
            && self.suspend_ahead(ahead, Completion::Nothing)
        {
            self.observe.history.take_back(newcomer.request.tag);
            return Ok(self.ask(newcomer));
        }
        let now = clock::now();
        let until = newcomer.deferred_until.unwrap_or(now + EXITING_TIME);
        if let Refusal::Full { item } = why
            && until > now
            && self.somebody_is_leaving(&newcomer.request, *item)
        {
            tracing::debug!("a request is waiting for a holder that is about to end");
            newcomer.deferred_until = Some(until);
            self.observe.history.take_back(newcomer.request.tag);
            return Ok(Step::Wait(CallState::Deferred(newcomer)));
        }
        let mut failure = self.early_refusal(id, &newcomer, why);
        // The text of `--key` may have been read as a count for a key, not as a size.
        if let Refusal::TooLarge { item, .. } = why
            && let Some(conn) = self.conns.peek(id)
            && let Some(item) = newcomer.request.items.get(*item)
            && let Some(note) = conn.asked.key_notes.iter().find(|it| it.key == item.key.as_str())
            && let Some(text) = note.read.as_deref().filter(|_| note.stated.starts_with(':'))
        {
            failure = failure.hint(wording::count_in_text(text));
        }
        let over = newcomer.request.over_nodes.as_deref();
        if failure.name == ErrorName::NodeListDiffers && over.is_some_and(|over| over.spare) {
            self.leases.are_apart(&failure.message);
        }
        // A client gets each note once. A question gets none, because its client may ask for
        // nothing else.
        if failure.name == ErrorName::Refused && !newcomer.is_question {
            let notes = self.told_sizes.notes(self.decide.table(), &newcomer.request, None);
            failure.add_notes(notes);
        }
        Err(failure)
    }

    /// The failure for a request that is refused before it waits.
    fn early_refusal(&self, id: ConnId, newcomer: &PendingAcquire, why: &Refusal) -> Failure {
        let request = newcomer.request.clone();
        let would_wait = matches!(why, Refusal::Full { .. } | Refusal::Paused { .. });
        if let (true, Some(most)) = (would_wait, newcomer.crowd) {
            return too_many_wait(most, request.uid);
        }
        let peer = self.conns.peek(id).map(|conn| conn.peer);
        if let (Refusal::CannotEnd { token }, Some(peer)) = (why, peer) {
            return self.cannot_supersede(peer, *token);
        }
        let viewer = peer.map_or(NOBODY, |peer| peer.uid);
        // Only a deadlock has a session, and finds it itself.
        let since = UnixMillis(clock::unix_ms());
        let asked = Asked { request, session: FrameId(0), since };
        let mut failure = self.refusal(viewer, &asked, why);
        if failure.name == ErrorName::Refused
            && !matches!(why, Refusal::Deadlock { .. })
            && let Some(at) = wording::item_of(why)
        {
            // Count the slots of the request's own session: its holds are listed, too.
            let holders = self.shown(viewer).holders(&asked.request, at, OwnSlots::Count);
            failure.holders = holders.into();
        }
        failure
    }

    /// The failure for a request that the table refused, as a user may see it.
    pub(crate) fn refusal(&self, viewer: u32, asked: &Asked, why: &Refusal) -> Failure {
        let (shown, table) = (self.shown(viewer), self.decide.table());
        let request = &*asked.request;
        match why {
            Refusal::Deadlock { cycle } => return self.deadlock(viewer, cycle, asked),
            Refusal::Superseded { by } => {
                let by = table.request(*by).map(Arc::as_ref);
                let command = by.and_then(|by| shown.command(by.uid, &by.command.0));
                return wording::superseded_by(by, command.as_deref());
            }
            _ => {}
        }
        let found = wording::item_of(why).and_then(|at| Some((at, request.items.get(at)?)));
        let use_of = found.map(|(at, item)| Use {
            slots: table.use_for(request, at),
            stored: table.settings(&item.key).view,
            conflict: shown.conflict(request, at),
        });
        wording::refusal(why, request, use_of.as_ref())
    }

    /// The error for a waiter whose time is over.
    pub(crate) fn timeout_failure(&mut self, request: RequestId, viewer: u32) -> Failure {
        let shown = self.shown(viewer);
        let mut failure = match shown.why(request) {
            None => refused("timeout", "the wait timed out"),
            Some((why, ..)) if why.reason == Reason::Paused => {
                wording::timeout_while_paused(&why.key)
            }
            Some((why, _, clause)) => {
                let mut failure = wording::timeout(why.key.as_str(), &clause);
                let waiter = shown.table.waiter(request);
                if let Some(waiter) = waiter.filter(|_| Held::by(&why.reason).is_some()) {
                    let holders = shown.holders(&waiter.request, why.item, OwnSlots::LeftOut);
                    failure.holders = holders.into();
                }
                failure
            }
        };
        let table = self.decide.table();
        if let Some(waiter) = table.waiter(request) {
            failure.add_notes(self.told_sizes.notes(table, &waiter.request, None));
        }
        failure
    }

    /// Whether the process of a holder is exiting. It may already have closed its output or its
    /// connection, and the kernel is about to report its end.
    fn somebody_is_leaving(&self, request: &Request, item: usize) -> bool {
        let table = self.decide.table();
        let in_the_way =
            table.blocking_holds(request, item, OwnSlots::Count, PROCESSES_LOOKED_AT_MAX);
        in_the_way
            .into_iter()
            .filter_map(|token| table.hold(token))
            .filter(|hold| hold.asked.host == self.decide.host())
            .any(|hold| run_state(pid_of(&hold.asked.owner)) == RunState::Exiting)
    }
}
