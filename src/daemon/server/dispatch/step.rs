//! What happens next to a call.

use crate::core::{Change, RequestId};
use crate::daemon::calls::answer::Answer;
use crate::daemon::calls::completion::Completion;
use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::server::dispatch::permit::Waiting;
use crate::protocol::Failure;

/// What happens next to a call. Whatever serves a call returns this or a [`Failure`], and the
/// dispatcher carries it out: a call that is neither answered nor waits cannot be expressed.
#[derive(Debug)]
#[must_use = "the dispatcher carries it out"]
pub(crate) enum Step {
    /// It is answered.
    Answer(Answer),
    /// A change goes into the log. The completion says what follows.
    Propose(Change, Completion),
    /// It waits.
    Wait(Waiting),
    /// It fails, and what its request was granted or waits for is given back.
    GiveBack(RequestId, Failure),
}

impl Step {
    /// The call is answered with this reply.
    pub(crate) fn reply<T: serde::Serialize>(parameters: &T) -> Self {
        Self::Answer(Answer::reply(parameters))
    }

    /// The call asks for a lock.
    pub(crate) fn ask(newcomer: PendingAcquire) -> Self {
        Self::Propose(Change::Request(newcomer.request.clone()), Completion::Ask(newcomer))
    }
}
