//! Stores or forgets a key's view, pauses or resumes a key, and takes parts of it out of service.
//!
//! Invariant: with the embedded journal, a setting is durable before it applies. So no grant
//! depends on a setting that a restart would lose.

use std::collections::BTreeSet;
use std::io;

use crate::calls::completion::{Applied, Completion, PendingResize};
use crate::calls::conn_id::ConnId;
use crate::calls::items::{self, Setting, WITHOUT_MAX};
use crate::permissions::Action;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::store::disk_full::disk_full;
use crate::wording::refusal::used_as;
use canal_core::{Change, Key, Kind, Outcome, View};
use canal_protocol::{ErrorName, Failure, Resize, Resized};

impl Server {
    pub(crate) fn resize(&mut self, id: ConnId, resize: &Resize) -> Result<Step, Failure> {
        let (key, setting) = items::setting(resize)?;
        self.may(id, Action::Resize, &key)?;
        let numbers = match &setting {
            Setting::Service(numbers, _) => {
                numbers.len() + self.ledger.table.without_of(&key).len()
            }
            Setting::View(_) | Setting::Pause(_) => 0,
        };
        self.ledger.admit_setting(&key, numbers).map_err(|error| disk_full(&error))?;
        let not_kept = |error: io::Error| {
            let message = format!("cannot store the setting of `{key}`: {error}");
            Failure::new(ErrorName::DiskFull, message)
        };
        // An engine keeps the settings itself, and its log decides.
        let is_local = self.cluster.is_none();
        let change = match setting {
            Setting::View(wanted) => {
                // A key whose stored view is forgotten gets the configured view.
                let view = wanted.or_else(|| self.limits.configured(&key));
                if is_local && let Some(in_use) = self.ledger.table.bars_view(&key, view) {
                    return Err(other_kind(&key, in_use));
                }
                if is_local && self.ledger.table.majority_bars_view(&key, view) {
                    return Err(over_nodes(&key));
                }
                if is_local {
                    self.ledger.store_view(&key, wanted).map_err(not_kept)?;
                }
                Change::Resize { key: key.clone(), view }
            }
            Setting::Pause(paused) => {
                if is_local {
                    self.ledger.store_pause(&key, paused).map_err(not_kept)?;
                }
                Change::Pause { key: key.clone(), paused }
            }
            Setting::Service(numbers, out) => {
                let mut without: BTreeSet<u64> =
                    self.ledger.table.without_of(&key).into_iter().collect();
                without.retain(|number| out || !numbers.contains(number));
                without.extend(numbers.iter().filter(|_| out));
                if without.len() > WITHOUT_MAX {
                    let message = format!("at most {WITHOUT_MAX} of `{key}` can be out of service");
                    return Err(Failure::new(ErrorName::BadRequest, message));
                }
                if is_local {
                    let numbers = without.into_iter().collect();
                    self.ledger.store_without(&key, numbers).map_err(not_kept)?;
                }
                Change::Service { key: key.clone(), numbers, out }
            }
        };
        Ok(Step::Propose(change, Completion::Resize(Box::new(PendingResize { id, key }))))
    }

    /// Answers a setting that was applied to the table, or refused by it.
    pub(crate) fn resized(
        &self,
        resizing: &PendingResize,
        applied: &Applied,
    ) -> Result<Step, Failure> {
        let PendingResize { key, .. } = resizing;
        let table = &self.ledger.table;
        let now = table.stored(key);
        let before = match applied.outcomes.first() {
            Some(Outcome::Resized { before }) => *before,
            Some(Outcome::ResizeRefused { in_use }) => return Err(other_kind(key, *in_use)),
            Some(Outcome::ResizeRefusedOverNodes) => return Err(over_nodes(key)),
            _ => now,
        };
        let resized = Resized {
            key: key.to_string(),
            before: before.as_ref().map(View::to_string),
            now: now.as_ref().map(View::to_string),
            paused: table.is_paused(key),
            without: table.without_of(key),
            held: table.held_of(key),
            waiting: table.waiting_for(key) as u64,
        };
        let view = resized.now.as_deref().unwrap_or("none");
        tracing::info!(%key, view, paused = resized.paused, "resized");
        Ok(Step::reply(&resized))
    }
}

/// The failure for a client that stores a view of another kind than the one in use.
fn other_kind(key: &Key, in_use: Kind) -> Failure {
    let message = format!("`{key}` {}", used_as(in_use));
    Failure::new(ErrorName::Mismatch, message)
        .hint(format!("`canal status {key}` shows its holders and waiters"))
}

/// The failure for a client that stores several slots for a key that a majority of nodes grants.
fn over_nodes(key: &Key) -> Failure {
    let message = format!(
        "a majority of nodes grants `{key}`, which excludes others only while it has one slot"
    );
    Failure::new(ErrorName::Mismatch, message)
        .hint(format!("`canal status {key}` shows its holders and waiters"))
}
