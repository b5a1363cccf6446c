//! Watches the daemon's files, and restores removed files from memory.

use std::time::{Duration, Instant};

use crate::due::is_due;
use crate::net::events::Source;
use crate::processes::owners::find;
use crate::server::Server;
use canal_core::{Owner, Token};
use canal_sys::process::Found;

/// How often to check files that cannot be watched.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// How long to wait after a removal before files are restored: a running `rm -r` must find nothing
/// new.
const CALM: Duration = Duration::from_millis(20);

/// How long to wait before a failed attempt is repeated.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How often to look again for a process whose life is uncertain.
const VERIFIED_EVERY: Duration = Duration::from_secs(10);

impl Server {
    pub(crate) fn look_after_home(&mut self, now: Instant) {
        if self.conns.reported.take(Source::RuntimeDir) {
            self.due.home = Some(now + CALM);
        }
        if is_due(&mut self.due.home, now) {
            match self.restore_home() {
                Ok(()) => self.runtime_dir.restore_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut self.runtime_dir.restore_failed, true) {
                        tracing::warn!("cannot restore the files yet: {error:#}");
                    }
                    self.due.home = Some(now + AGAIN_AFTER);
                }
            }
        }
        if self.due.home.is_none() && self.runtime_dir.watch().is_none() {
            self.due.home = Some(now + LOOKS_EVERY);
        }
        if is_due(&mut self.due.verify, now) {
            self.verify_again();
        }
        if self.due.verify.is_none() && !self.owners.unverified.is_empty() {
            self.due.verify = Some(now + VERIFIED_EVERY);
        }
    }

    fn restore_home(&mut self) -> anyhow::Result<()> {
        let is_whole = !self.runtime_dir.is_damaged() && !self.ledger.vanished();
        if is_whole && !self.runtime_dir.restore_failed {
            return Ok(());
        }
        if !self.runtime_dir.restore_failed {
            tracing::warn!("another process removed files of this daemon; restoring them");
        }
        self.runtime_dir.restore()?;
        // This also records the whole table if an earlier attempt to record it failed.
        self.ledger.recreate()?;
        if let Some(cluster) = &mut self.cluster {
            cluster.restore_record()?;
        }
        self.runtime_dir.reopen()?;
        // The listener is registered already unless it was created again.
        let _ = self.conns.await_source(Source::Listener, &self.runtime_dir.listener);
        Ok(())
    }

    /// Looks again for the processes whose life is uncertain.
    fn verify_again(&mut self) {
        for frame in self.owners.unverified.clone() {
            let Some(state) = self.ledger.table.frame(frame) else {
                self.owners.forget(frame);
                continue;
            };
            let Owner::Process(process) = state.owner else { continue };
            match find(process) {
                Found::Same(pidfd) => {
                    if let Err(error) = self.owners.watch(frame, None, pidfd) {
                        tracing::debug!(%error, "still unverified");
                    }
                }
                Found::Gone => self.end(frame),
                Found::Unknown(_) => {}
            }
        }
    }

    /// Watches the holds that last only while descendants live.
    pub(crate) fn await_orphans(&mut self) {
        let here = self.ledger.host;
        let own = self.ledger.table.holds().filter(|hold| hold.asked.host == here);
        let orphaned = own.filter(|hold| hold.orphaned);
        let orphaned: Vec<Token> = orphaned.map(|hold| hold.token).collect();
        for token in orphaned {
            self.end_without_writers(token);
        }
    }
}
