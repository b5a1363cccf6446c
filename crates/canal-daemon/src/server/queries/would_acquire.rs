//! Answers whether a request that may not wait would be granted, and changes nothing.
//!
//! Invariant: the table decides about a question as about a request. Stopped waiters, and holders
//! whose process is exiting, are also handled as for a request.

use std::sync::Arc;

use crate::calls::completion::{Completion, VOID};
use crate::calls::conn_id::ConnId;
use crate::calls::items;
use crate::calls::pending_acquire::PendingAcquire;
use crate::server::Server;
use crate::server::dispatch::step::{Step, lost_track};
use crate::view::grant::granted_keys;
use canal_core::{Outcome, Refusal, Request, Tag, Wait};
use canal_protocol::{Failure, WouldAcquire, WouldGrant};

impl Server {
    pub(crate) fn would_acquire(
        &mut self,
        id: ConnId,
        asked: &WouldAcquire,
    ) -> Result<Step, Failure> {
        let items = items::items(&asked.items)?;
        let owner = self.owner(id, None, Vec::new())?;
        self.may_hold(id, &items, asked.priority)?;
        self.withdraw_offers_for(&items);
        let request = Request {
            tag: self.unused_tag(),
            host: self.ledger.host,
            parent: self.enclosing_or_under(asked.frame.as_deref(), asked.under, &owner),
            owner: owner.owner,
            uid: owner.uid,
            command: items::command(String::new()),
            items,
            wait: Wait::No,
            priority: asked.priority,
            max_waiting: None,
            supersede: None,
            max_run_ms: None,
            provisional: false,
            children: false,
            ttl_ms: None,
            on_lost: Default::default(),
            asker: None,
            over_nodes: None,
            above: None,
            note: None,
        };
        Ok(self.pose(PendingAcquire {
            conn: id,
            request: Arc::new(request),
            pidfd: owner.pidfd,
            more: false,
            deferred_until: None,
            crowd: None,
            is_question: true,
        }))
    }

    /// Answers a question once the table has all changes that this host proposed before. So a
    /// change without effect goes through the log first, as a request would.
    pub(crate) fn pose(&self, newcomer: PendingAcquire) -> Step {
        Step::Propose(VOID, Completion::Question(Box::new(newcomer)))
    }

    /// Answers a question, or defers it while the process of a holder is exiting.
    pub(crate) fn question(&mut self, newcomer: PendingAcquire) -> Result<Step, Failure> {
        let asked = Arc::clone(&newcomer.request);
        let verdict = self.ledger.table.verdict_on(&asked);
        let is_full = matches!(verdict, Outcome::Refused { why: Refusal::Full { .. }, .. });
        if is_full
            && let Some(ahead) = self.ledger.table.first_ahead_of(&asked)
            && self.suspend_ahead(ahead, Completion::Nothing)
        {
            return Ok(self.pose(newcomer));
        }
        match verdict {
            Outcome::Granted(granted) => {
                Ok(Step::reply(&WouldGrant { keys: granted_keys(&asked, &granted) }))
            }
            Outcome::Refused { why: Refusal::Recovering, .. } => Err(self.not_a_member()),
            Outcome::Refused { why, .. } => self.refuse(newcomer, &why),
            _ => Err(lost_track()),
        }
    }

    /// A tag that no request has.
    fn unused_tag(&self) -> Tag {
        let table = &self.ledger.table;
        let mut tags = (0..=u128::MAX).rev().map(Tag);
        tags.find(|tag| table.tagged(*tag).is_none()).unwrap_or(Tag(0))
    }
}
