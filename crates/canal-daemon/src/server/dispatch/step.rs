//! The next step of a call.

use crate::calls::answer::Answer;
use crate::calls::completion::Completion;
use crate::calls::pending_acquire::PendingAcquire;
use crate::net::call_state::CallState;
use canal_core::{Change, RequestId};
use canal_protocol::{ErrorName, Failure};

/// The next step of a call. Each handler returns one, or a [`Failure`], and the dispatcher carries
/// it out. So every call is either answered or waits.
#[derive(Debug)]
#[must_use = "the dispatcher carries it out"]
pub(crate) enum Step {
    /// Answer the call.
    Answer(Answer),
    /// Propose a change to the log. The completion determines the step after that.
    Propose(Change, Completion),
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

    /// Asks for a lock.
    pub(crate) fn ask(newcomer: PendingAcquire) -> Self {
        Self::Propose(Change::Request(newcomer.request.clone()), Completion::Ask(newcomer))
    }
}

/// The failure for a client whose call this daemon lost track of.
pub(crate) fn lost_track() -> Failure {
    let message = "the daemon lost track of this call because of a defect";
    Failure::new(ErrorName::Fault, message).hint("report it with the daemon's log")
}
