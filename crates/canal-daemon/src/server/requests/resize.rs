//! Changes the settings of a key: its size, a pause, and the numbers that are out of service.
//!
//! Invariant: with the embedded journal, a setting is durable before it applies. So no grant
//! depends on a setting that a restart would lose.

use crate::calls::in_flight::Applied;
use crate::calls::parameters;
use crate::config::permissions::Action;
use crate::net::call_state::PendingCall;
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::store::table_and_log::setting_bytes;
use crate::wording::{bad, cannot, used_as};
use canal_core::{Change, Key, Outcome, Setting, View, WITHOUT_MAX};
use canal_protocol::{ErrorName, Failure, Resize, Resized};

impl Server {
    pub(crate) fn resize(&mut self, caller: &Caller, resize: &Resize) -> Result {
        let (key, setting) = parameters::setting(resize)?;
        self.may(caller.id, Action::Resize, &key)?;
        let mut wanted = self.decide.table().settings(&key).clone();
        let numbers = match &setting {
            Setting::Service { numbers, .. } => numbers.len() + wanted.without.0.len(),
            Setting::View(_) | Setting::Paused(_) => 0,
        };
        self.reserve(setting_bytes(&key, numbers))?;
        wanted.set(&setting);
        if wanted.without.0.len() > WITHOUT_MAX {
            let message = format!("at most {WITHOUT_MAX} of `{key}` can be out of service");
            return Err(bad(message));
        }
        let mut applied = setting.clone();
        if let Setting::View(view) = &mut applied {
            // A key whose stored view is forgotten gets the configured view.
            *view = view.or_else(|| self.effective.config.views.get(&key).copied());
            if let Some(refused) = self.decide.refusal_of_view(&key, *view)
                && let Some(failure) = refusal_of(&key, &refused)
            {
                return Err(failure);
            }
        }
        let what = format!("store the setting of `{key}`");
        let ledger = self.decide.ledger_mut();
        ledger.change_durable(|it| it.set(&key, &setting)).map_err(cannot(&what))?;
        let change = Change::Set { key: key.clone(), setting: applied };
        Ok(Step::Propose(change, PendingCall::Resize(key)))
    }

    /// Answers a setting that was applied to the table, or refused by it.
    pub(crate) fn resized(&self, key: &Key, applied: &Applied) -> Result {
        let table = self.decide.table();
        let settings = table.settings(key);
        let outcome = applied.outcomes.first();
        if let Some(failure) = outcome.and_then(|outcome| refusal_of(key, outcome)) {
            return Err(failure);
        }
        let before =
            if let Some(Outcome::Stored { before }) = outcome { *before } else { settings.view };
        let resized = Resized {
            key: key.to_string(),
            before: before.as_ref().map(View::to_string),
            now: settings.view.as_ref().map(View::to_string),
            paused: settings.paused,
            without: settings.without.0.iter().copied().collect(),
            held: table.held_of(key),
            waiting: table.waiting_for(key) as u64,
        };
        let view = resized.now.as_deref().unwrap_or("none");
        tracing::info!(%key, view, paused = resized.paused, "resized");
        Ok(Step::reply(&resized))
    }
}

/// The failure for a client whose view of a key the table refuses.
fn refusal_of(key: &Key, outcome: &Outcome) -> Option<Failure> {
    let failure = Failure::new(ErrorName::Mismatch, format!("`{key}` {}", barred(outcome)?));
    Some(failure.hint(format!("run `canal status {key}` to see its holders and waiters")))
}

/// The end of a sentence about a key whose view the table refuses: the key is in use with another
/// kind of view, or a majority of nodes grants it.
pub(super) fn barred(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::ResizeRefused { in_use } => Some(used_as(*in_use)),
        Outcome::ResizeRefusedOverNodes => Some(
            "is in use with a majority of nodes, which excludes others only if the lock has one \
             slot",
        ),
        _ => None,
    }
}
