//! Storing a key's view, or forgetting the stored one.
//!
//! Invariant: with the embedded journal, a view is durable before it applies. So no waiter is granted
//! anything by a view that a restart would lose.

use crate::core::{Change, Key, Kind, Outcome, View};
use crate::daemon::calls::completion::{Applied, Completion, PendingResize};
use crate::daemon::calls::items;
use crate::daemon::calls::step::Step;
use crate::daemon::net::conn_id::ConnId;
use crate::daemon::permissions::Action;
use crate::daemon::server::Server;
use crate::daemon::view::wording::disk_full;
use crate::protocol::{ErrorName, Failure, Resize, Resized};

impl Server {
    pub(crate) fn resize(&mut self, id: ConnId, resize: &Resize) -> Result<Step, Failure> {
        let (key, wanted) = items::stored_view(resize)?;
        self.may(id, Action::Resize, &key)?;
        self.ledger.admit_view(&key).map_err(|error| disk_full(&error))?;
        // A key whose stored view is forgotten falls back to the configured view.
        let view = wanted.or_else(|| self.limits.configured(&key));
        // An engine keeps the views itself, and its log decides.
        if self.cluster.is_none() {
            if let Some(in_use) = self.ledger.table.bars_view(&key, view) {
                return Err(other_kind(&key, in_use));
            }
            self.ledger.store_view(&key, wanted).map_err(|error| {
                let message = format!("the view of `{key}` cannot be kept: {error}");
                Failure::new(ErrorName::DiskFull, message)
            })?;
        }
        let change = Change::Resize { key: key.clone(), view };
        Ok(Step::Propose(change, Completion::Resize(Box::new(PendingResize { id, key, view }))))
    }

    /// A resize was applied to the table, or refused by it.
    pub(crate) fn resized(
        &self,
        resizing: &PendingResize,
        applied: &Applied,
    ) -> Result<Step, Failure> {
        let PendingResize { key, view, .. } = resizing;
        let before = match applied.outcomes.first() {
            Some(Outcome::Resized { before }) => *before,
            Some(Outcome::ResizeRefused { in_use }) => return Err(other_kind(key, *in_use)),
            _ => None,
        };
        let table = &self.ledger.table;
        let resized = Resized {
            key: key.to_string(),
            before: before.as_ref().map(View::to_string),
            now: view.as_ref().map(View::to_string),
            held: table.held_of(key),
            waiting: table.waiting_for(key) as u64,
        };
        tracing::info!(%key, view = resized.now.as_deref().unwrap_or("none"), "resized");
        Ok(Step::reply(&resized))
    }
}

/// The failure for a client that stores a view of another kind than the one in use.
fn other_kind(key: &Key, in_use: Kind) -> Failure {
    let message = format!("`{key}` is in use as another kind of lock, {in_use}");
    Failure::new(ErrorName::Mismatch, message)
        .hint(format!("`canal status {key}` shows who uses it"))
}
