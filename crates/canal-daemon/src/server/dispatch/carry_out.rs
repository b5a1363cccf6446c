//! Carries out the [`Step`]s that handlers return, and ends calls.

use crate::calls::answer::Answer;
use crate::calls::conn_id::ConnId;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::wording::refusal::superseded;
use canal_core::{Change, Withdrawal};
use canal_protocol::{ErrorName, Failure};

impl Server {
    /// Carries out what happens next to a call.
    pub(crate) fn carry_out(&mut self, id: ConnId, step: Result<Step, Failure>) {
        match step {
            Ok(Step::Answer(answer)) => self.end_call(id, answer),
            Ok(Step::Propose(change, then)) => {
                let step = self.propose_for(id, change, then);
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
                self.propose(Change::Withdraw { request, why: Withdrawal::Cancelled });
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
        if let Some(conn) = self.conns.get(id) {
            conn.answer(answer);
        }
    }

    /// Ends a call whose client asked for the same request on another connection.
    pub(crate) fn supersede(&mut self, before: ConnId, name: ErrorName) {
        self.carry_out(before, Err(superseded(name)));
    }

    /// Ends a call whose request ended while this host could not follow the log.
    pub(crate) fn end_unseen(&mut self, id: ConnId) {
        self.carry_out(id, Err(ended_unseen()));
    }
}

/// The failure for a client whose request ended while this host could not follow the log.
pub(super) fn ended_unseen() -> Failure {
    let message = "the request ended while the daemon could not follow the engine's log";
    Failure::new(ErrorName::EngineAway, message).hint("run the command again")
}
