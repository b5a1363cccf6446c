//! The recovery of a table that many hosts share, as one of their daemons sees it. While it lasts,
//! requests wait here and the daemon tells no grant.
//!
//! Invariant: the daemon asks again for each request that was refused because of a recovery, once
//! the recovery is over.

use anyhow::Context;

use crate::core::{Change, RequestId, Token};
use crate::daemon::calls::completion::Completion;
use crate::daemon::cluster::engine_status::EngineStatus;
use crate::daemon::cluster::told_tokens::ToldTokens;
use crate::daemon::server::Server;
use crate::daemon::view::text::time;
use crate::host::{Mark, Memory};
use crate::protocol::RecoveryInfo;
use crate::protocol::place::Place;
use crate::sys::clock;

impl Server {
    /// Loads which tokens earlier daemons of this place told.
    ///
    /// # Errors
    /// The file of told tokens cannot be read.
    pub(crate) fn remember_tokens(&mut self, place: &Place) -> anyhow::Result<()> {
        let tokens = ToldTokens::open(place, &self.engine_status.name)
            .context(place.dir.display().to_string())?;
        let memory = tokens.memory();
        let marks = self.holder_record.iter().filter_map(|(_, told)| told.mark);
        let later = |one: Mark, other: Mark| if other.is_after(one) { other } else { one };
        let mark = marks.reduce(later);
        // Tokens of another engine say nothing about this log, but they must not be given out
        // again.
        let recorded = self.holder_record.largest();
        let told = if memory.epoch.is_some() { memory.told.max(recorded) } else { Token(0) };
        let bound = memory.bound.max(recorded);
        if let Some(shared) = self.ledger.engine_mut() {
            shared.remember(Memory { mark, told, bound, ..memory });
        }
        self.engine_status.tokens = Some(tokens);
        Ok(())
    }

    /// Records a token before a client is told of it, so that a later daemon knows it even after a
    /// reboot.
    pub(crate) fn record_token(&mut self, token: Token) -> std::io::Result<()> {
        let Some(shared) = self.ledger.engine_mut() else { return Ok(()) };
        let EngineStatus { tokens, .. } = &mut self.engine_status;
        if let Some(tokens) = tokens {
            tokens.tell(token, shared.epoch())?;
        }
        shared.tell(token);
        Ok(())
    }

    /// Notes that this daemon tells no more tokens.
    pub(crate) fn forget_no_token(&mut self) {
        if let Some(Err(error)) = self.engine_status.tokens.as_mut().map(ToldTokens::close) {
            tracing::warn!(%error, "the next daemon does not know exactly which tokens were told");
        }
    }

    /// Reports a change of the recovery, after an entry was applied or the table was replaced.
    /// `before` says whether a recovery was under way before that.
    pub(crate) fn follow_recovery(&mut self, before: bool) {
        let table = &self.ledger.table;
        let now = table.recovery().is_some();
        if let crate::daemon::store::ledger::Log::Engine(shared) = &mut self.ledger.log {
            shared.recovers(table);
        }
        // Before it joins, a host reads old entries, whose recoveries ended long ago.
        if now == before || !self.ledger.is_member() {
            return;
        }
        self.changed = true;
        if let Some(words) = self.recovery_words() {
            tracing::warn!("{words}");
        } else {
            tracing::info!("the table has recovered: locks are granted again");
            self.ask_for_homeless();
        }
    }

    /// A message that the table recovers and what it waits for, if a recovery is under way.
    pub(crate) fn recovery_words(&self) -> Option<String> {
        let RecoveryInfo { hosts, left_ms, .. } = self.recovery_shown()?;
        let hosts = match hosts.len() {
            0 => None,
            1 => Some(format!("host {} has spoken or is gone", hosts[0])),
            _ => Some(format!("hosts {} have spoken or are gone", hosts.join(", "))),
        };
        let left = left_ms.map(|ms| format!("{} s have passed", ms.div_ceil(1_000)));
        let until = hosts.into_iter().chain(left).collect::<Vec<_>>().join(", and ");
        let until = if until.is_empty() { "it has read on".to_owned() } else { until };
        Some(format!("the engine may have lost entries: no lock is granted until {until}"))
    }

    /// The recovery, for `canal status`.
    pub(crate) fn recovery_shown(&self) -> Option<RecoveryInfo> {
        let table = &self.ledger.table;
        let recovery = table.recovery()?;
        let name = |host| table.host(host).map_or_else(|| host.to_string(), |it| it.label.clone());
        let recovered_at = self.ledger.engine().and_then(|shared| shared.recovered_at());
        let left = recovered_at.filter(|_| recovery.ttl_from.is_some());
        Some(RecoveryInfo {
            since: time(recovery.since),
            hosts: recovery.unheard.iter().copied().map(name).collect(),
            left_ms: left.map(|at_ms| at_ms.saturating_sub(clock::boottime_ms())),
        })
    }

    /// Whether a grant that no client was told yet may be told.
    pub(crate) fn may_be_told(&self, token: Token) -> bool {
        self.ledger.table.may_be_told(token)
    }

    /// Takes back a grant that no client was told before history was lost, and asks for it again at
    /// the same place in the queue.
    pub(crate) fn ask_anew(&mut self, request: RequestId) {
        self.propose(Change::Suspend { request }, Completion::Nothing);
        self.propose(Change::Resume { request }, Completion::Nothing);
    }
}
