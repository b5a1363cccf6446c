//! Storing a key's view, or forgetting the stored one.

use crate::core::{Change, Outcome, View};
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
        let change = Change::Resize { key: key.clone(), view };
        let then = Completion::Resize(Box::new(PendingResize { id, key, wanted, view }));
        Ok(Step::Propose(change, then))
    }

    /// A resize was applied to the table, or refused by it.
    pub(crate) fn resized(
        &mut self,
        resizing: &PendingResize,
        applied: &Applied,
    ) -> Result<Step, Failure> {
        let PendingResize { key, wanted, view, .. } = resizing;
        let before = match applied.outcomes.first() {
            Some(Outcome::Resized { before }) => *before,
            Some(Outcome::ResizeRefused { in_use }) => {
                let message = format!("`{key}` is in use as another kind of lock, {in_use}");
                return Err(Failure::new(ErrorName::Mismatch, message)
                    .hint(format!("`canal status {key}` shows who uses it")));
            }
            _ => None,
        };
        if let Err(error) = self.ledger.store_view(key, *wanted) {
            let change = Change::Resize { key: key.clone(), view: before };
            self.propose(change);
            let message = format!("the view of `{key}` cannot be kept: {error}");
            return Err(Failure::new(ErrorName::DiskFull, message));
        }
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
