//! Hands the deadline page to the clients that run the commands of holders.
//!
//! The page exists only while the daemon works over an engine and is a member there. This file
//! never updates it.

use std::io;

use crate::calls::answer::Answer;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_core::Token;
use canal_protocol::{DeadlinePageQuery, ErrorName, Failure, Wrapper};

impl Server {
    /// Refuses a client that would leave its command without a supervisor over an engine.
    pub(crate) fn check_wrapper(&self, wrapper: Option<Wrapper>) -> Result<(), Failure> {
        // This applies even while there is no page: a request that arrives before this host is a
        // member is granted later.
        if wrapper != Some(Wrapper::Exec) || self.cluster.is_none() {
            return Ok(());
        }
        let message = "a lock with an engine needs a supervisor that ends the command in time if \
                       the lock is lost";
        Err(Failure::new(ErrorName::SupervisorRequired, message))
    }

    /// Gives the page to the client that runs the command of a holder.
    pub(crate) fn page(&self, query: &DeadlinePageQuery) -> Result<Step, Failure> {
        let Some(cluster) = &self.cluster else {
            let message = "this daemon has no engine, so locks have no deadline";
            return Err(Failure::new(ErrorName::Unsupported, message));
        };
        if let Some(why) = query.token.and_then(|token| cluster.why_lost(Token(token))) {
            let message = "the lock is lost, and the daemon ended its process";
            let failure = Failure::new(ErrorName::LeaseLost, message);
            return Err(Failure { reason: Some(why.word().into()), ..failure });
        }
        let not_held = || Failure::new(ErrorName::NotHeld, "no hold of this host has this tag");
        let table = &self.ledger.table;
        let hold = table.tagged(query.tag).and_then(|request| table.hold_of(request));
        let frame = hold.and_then(|hold| table.frame(hold.frame));
        if frame.is_none_or(|frame| frame.host != self.ledger.host) {
            return Err(not_held());
        }
        let mut fds = Vec::new();
        let found = cluster.add_page(&mut fds).map_err(|error| no_page(&error))?;
        let found = found.ok_or_else(not_held)?;
        Ok(Step::Answer(Answer::with_fds(&found, fds)))
    }
}

/// The failure for a client that cannot get the page.
pub(crate) fn no_page(error: &io::Error) -> Failure {
    let message = format!("cannot pass on the deadline page: {error}");
    Failure::new(ErrorName::TooManyConnections, message)
}
