//! Keeps one watcher process running while this host is a member.

use std::time::Instant;

use super::link::AGAIN_AFTER;
use crate::cluster::Cluster;
use crate::due::is_due;
use crate::net::connections::{Conns, Source};
use crate::processes::holder_record::WatchId;
use canal_sys::clock;

impl Cluster {
    /// Hands the holds of a new membership over to a watcher.
    pub(crate) fn begin_watch(&mut self, conns: &Conns) {
        #[cfg(test)]
        if canal_sys::kernel::simulated::current().is_some() {
            // In the simulation, the simulator is the watcher of all daemons.
            let _ = self.holder_record.hand_over_to(WatchId::default());
        }
        if self.watcher.program.is_none() {
            return;
        }
        let mut id = [0; 8];
        if let Err(error) = getrandom::fill(&mut id) {
            return tracing::error!(%error, "cannot create an id for the watcher");
        }
        self.watcher.duty = WatchId(u64::from_ne_bytes(id));
        self.keep_watcher(conns);
        // The watcher must run before this line: the watcher of the previous daemon ends as soon as
        // it reads the new id.
        if let Err(error) = self.holder_record.hand_over_to(self.watcher.duty) {
            tracing::error!(%error, "cannot record the watcher");
        }
    }

    fn keep_watcher(&mut self, conns: &Conns) {
        let Some(page) = &self.page else { return };
        let before = self.watcher.running.is_some();
        let kept = self.watcher.answer_for(page);
        let kept = kept.and_then(|()| match &self.watcher.running {
            Some(running) if !before => conns.await_source(Source::Watcher, &running.channel),
            _ => Ok(()),
        });
        if let Err(error) = kept {
            tracing::error!(%error, "cannot start a watcher; trying again");
            if let Some(running) = self.watcher.running.take() {
                self.watcher.dismiss(running);
            }
            self.watcher.due = Some(clock::now() + AGAIN_AFTER);
        }
    }

    /// Starts another watcher in place of one that has ended.
    pub(crate) fn look_after_watcher(&mut self, conns: &mut Conns, now: Instant) {
        if conns.reported.remove(&Source::Watcher)
            && let Some(running) = self.watcher.running.take()
        {
            tracing::warn!(pid = running.child.id(), "the watcher has ended; starting another one");
            self.watcher.dismiss(running);
            let started = self.watcher.started.unwrap_or(now);
            self.watcher.due = Some(now.max(started + AGAIN_AFTER));
        }
        if is_due(&mut self.watcher.due, now) {
            self.watcher.reap();
            self.keep_watcher(conns);
        }
    }
}
