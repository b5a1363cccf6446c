//! The next step of a call: an answer, a change for the log, or a wait. No other code can end a
//! call.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::calls::call::{Answer, ConnId};
use crate::calls::in_flight::{Completion, VOID};
use crate::net::call_state::{Awaiting, CallState, LogWait, Patience, PendingAcquire, PendingCall};
use crate::server::Server;
use canal_core::{Change, FrameId, RequestId};
use canal_protocol::{ErrorName, Failure};
use canal_sys::clock;
use canal_sys::peer::Credentials;

/// The next step of a call. Each handler returns one, or a [`Failure`], and the dispatcher carries
/// it out. So every call is either answered or waits.
#[derive(Debug)]
#[must_use = "the dispatcher carries it out"]
pub(crate) enum Step {
    /// Answer the call.
    Answer(Answer),
    /// Propose a change to the log. The pending call determines the step after that.
    Propose(Change, PendingCall),
    /// Let the call wait for this.
    Wait(CallState),
    /// End the call without an answer: its client is gone, or the next daemon will answer.
    Leave,
    /// Fail the call, and release its request or end its wait.
    GiveBack(RequestId, Failure),
}

impl Step {
    /// Answers the call with this reply.
    pub(crate) fn reply<T: serde::Serialize>(parameters: &T) -> Self {
        Self::Answer(Answer::reply(parameters))
    }

    /// Answers the call of a method that returns nothing.
    pub(crate) fn done() -> Self {
        Self::reply(&serde_json::Map::new())
    }
}

/// The result of work for a call. Unless the type names another one, it is the call's next step.
pub(crate) type Result<T = Step, E = Failure> = std::result::Result<T, E>;

/// The client of a call.
#[derive(Debug)]
pub(crate) struct Caller {
    pub id: ConnId,
    pub peer: Credentials,
    /// The descriptors that came with the call.
    pub fds: Vec<OwnedFd>,
}

/// The failure for a client whose call this daemon lost track of.
pub(crate) fn lost_track() -> Failure {
    let message = "the daemon lost track of this call because of a bug";
    Failure::new(ErrorName::Fault, message).hint("report this, and include the daemon's log")
}

impl Server {
    /// Proposes a change that no call waits for.
    ///
    /// `follow_log.rs` continues once the log has returned it.
    pub(crate) fn propose(&mut self, change: Change) {
        self.propose_and(change, Completion::Nothing);
    }

    /// Proposes a change that no call waits for. Once it is applied, `then` determines the next
    /// step.
    pub(crate) fn propose_and(&mut self, change: Change, then: Completion) {
        // Without a membership, the change has lost its subject.
        if self.decide.is_member() {
            self.decide.propose(change, then);
        }
    }

    /// Proposes a change for a call. Returns the next step of the call.
    ///
    /// # Errors
    /// The change cannot be proposed.
    fn propose_for(&mut self, id: ConnId, change: Change, call: PendingCall) -> Result {
        let may_propose = match &call {
            PendingCall::Ask(_) => self.decide.may_ask(),
            _ => self.decide.is_member(),
        };
        if !may_propose {
            return self.without_membership(id, call);
        }
        let Some(conn) = self.conns.peek(id) else { return Ok(Step::Leave) };
        let ticket = self.decide.propose(change, Completion::Call(id, conn.peer));
        Ok(self.wait_for_log(id, Awaiting::Change(ticket, call)))
    }

    /// Proposes a request, for the first time or again. A question is answered once the table has
    /// all changes that this host proposed before it. For that, a change without effect goes
    /// through the log first, as a request would.
    pub(crate) fn ask(&self, mut newcomer: PendingAcquire) -> Step {
        if newcomer.is_question {
            return Step::Propose(VOID, PendingCall::Question(newcomer));
        }
        // The host and the parent may have changed since the request was deferred.
        let (host, table) = (self.decide.host(), self.decide.table());
        let lives = |frame: &FrameId| table.frame(*frame).is_some_and(|state| !state.ended);
        let parent = newcomer.request.parent.filter(lives);
        if (newcomer.request.host, newcomer.request.parent) != (host, parent) {
            let request = Arc::make_mut(&mut newcomer.request);
            (request.host, request.parent) = (host, parent);
        }
        Step::Propose(Change::Request(newcomer.request.clone()), PendingCall::Ask(newcomer))
    }

    /// The next step of a call whose change cannot be proposed. A request is proposed again once
    /// this host is a member; any other call fails.
    pub(super) fn without_membership(&mut self, id: ConnId, call: PendingCall) -> Result {
        match call {
            PendingCall::Ask(newcomer) => Ok(self.wait_for_membership(id, newcomer)),
            _ => Err(self.decide.not_a_member()),
        }
    }

    /// Makes a call wait until its request is granted or refused.
    pub(crate) fn wait_for_grant(&mut self, id: ConnId, request: RequestId) -> Step {
        self.waiters.attach(request);
        if let Some(conn) = self.conns.get(id) {
            conn.save_memory();
        }
        Step::Wait(CallState::Waits(request))
    }

    /// Makes a call wait for the log. Later calls of the connection have to wait, too.
    pub(crate) fn wait_for_log(&mut self, id: ConnId, what: Awaiting) -> Step {
        let Some(conn) = self.conns.get(id) else { return Step::Leave };
        // The client has waited since its call began, even if the call first waited for something
        // else.
        let since = *conn.wordless_since.get_or_insert_with(clock::boottime_ms);
        let patience = match &what {
            Awaiting::Membership => conn.calls.front().and_then(Patience::of),
            Awaiting::MembershipOf(it) | Awaiting::Change(_, PendingCall::Ask(it)) => {
                it.patience(conn.takes_more())
            }
            Awaiting::Change(..) => None,
        };
        Step::Wait(CallState::Log(LogWait { what, since, patience: patience.map(Box::new) }))
    }

    /// Makes a request wait until this host is a member and may propose it.
    pub(crate) fn wait_for_membership(&mut self, id: ConnId, newcomer: PendingAcquire) -> Step {
        if self.conns.peek(id).is_none_or(|conn| conn.heard_end() || conn.is_closing) {
            return Step::Leave;
        }
        self.wait_for_log(id, Awaiting::MembershipOf(newcomer))
    }

    /// Carries out what happens next to a call.
    pub(crate) fn carry_out(&mut self, id: ConnId, step: Result) {
        match step {
            Ok(Step::Answer(answer)) => self.end_call(id, answer),
            Ok(Step::Propose(change, call)) => {
                let step = self.propose_for(id, change, call);
                self.carry_out(id, step);
            }
            Ok(Step::Wait(state)) => {
                self.conns.set_state(id, state);
            }
            Ok(Step::Leave) => {
                self.conns.end_wait(id);
            }
            Ok(Step::GiveBack(request, failure)) => {
                // The call must no longer wait, or its own withdrawal would end it as well.
                self.conns.end_wait(id);
                self.propose(Change::Withdraw { request });
                self.end_call(id, Answer::failure(&failure));
            }
            Err(mut failure) => {
                if failure.name == ErrorName::Refused
                    && let Some(conn) = self.conns.get(id)
                {
                    failure.add_notes(std::mem::take(&mut conn.asked.key_notes));
                }
                self.end_call(id, Answer::failure(&failure));
            }
        }
    }

    /// Ends the current call of a connection, so that its next call can be served.
    fn end_call(&mut self, id: ConnId, answer: Answer) {
        self.conns.end_wait(id);
        self.conns.answer(id, answer);
    }
}

/// The failure for a client whose request ended while this host could not follow the log.
pub(super) fn ended_unseen() -> Failure {
    let message = "the request ended while the daemon could not follow the engine's log";
    Failure::new(ErrorName::EngineAway, message).hint("run the command again")
}
