//! Keeps one watcher process running while this host is a member.

use std::time::Instant;

use super::link::AGAIN_AFTER;
use crate::daemon::due::is_due;
use crate::daemon::net::events::Source;
use crate::daemon::processes::holder::WatchId;
use crate::daemon::server::Server;
use crate::sys::clock;

impl Server {
    /// Hands the holds of a new membership over to a watcher.
    pub(crate) fn begin_watch(&mut self) {
        if self.engine_status.watcher.program.is_none() {
            return;
        }
        let mut id = [0; 8];
        if let Err(error) = getrandom::fill(&mut id) {
            return tracing::error!(%error, "no watcher can be told apart");
        }
        self.engine_status.watcher.duty = WatchId(u64::from_ne_bytes(id));
        self.keep_watcher();
        // The watcher must run before this line: the watcher of the previous daemon ends as soon as
        // it reads the new id.
        if let Err(error) = self.holder_record.hand_over_to(self.engine_status.watcher.duty) {
            tracing::error!(%error, "the watcher cannot be recorded");
        }
    }

    pub(super) fn keep_watcher(&mut self) {
        let Some(page) = &self.deadline else { return };
        let before = self.engine_status.watcher.running.is_some();
        let kept = self.engine_status.watcher.answer_for(page);
        let kept = kept.and_then(|()| match &self.engine_status.watcher.running {
            Some(running) if !before => self.conns.await_source(Source::Watcher, &running.channel),
            _ => Ok(()),
        });
        if let Err(error) = kept {
            tracing::error!(%error, "no watcher can be started; tried again");
            if let Some(running) = self.engine_status.watcher.running.take() {
                self.engine_status.watcher.dismiss(running);
            }
            self.engine_status.watcher.due = Some(clock::now() + AGAIN_AFTER);
        }
    }

    /// Starts another watcher in place of one that has ended.
    pub(crate) fn look_after_watcher(&mut self, now: Instant) {
        if self.conns.reported.take(Source::Watcher)
            && let Some(running) = self.engine_status.watcher.running.take()
        {
            tracing::warn!(
                pid = running.child.id(),
                "the watcher has ended; another one is started"
            );
            self.engine_status.watcher.dismiss(running);
            let started = self.engine_status.watcher.started.unwrap_or(now);
            self.engine_status.watcher.due = Some(now.max(started + AGAIN_AFTER));
        }
        if is_due(&mut self.engine_status.watcher.due, now) {
            self.engine_status.watcher.reap();
            self.keep_watcher();
        }
    }
}
