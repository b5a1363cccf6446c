//! Stops the daemon: for a client, or because it has been idle for long enough.

use std::time::Instant;

use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::timers::is_due;
use canal_protocol::Stopping;
use canal_sys::peer::Credentials;
use canal_text::duration::stated;

impl Server {
    pub(crate) fn stop(&mut self, caller: &Caller) -> Result {
        let Credentials { uid, pid, .. } = caller.peer;
        self.check_operator(uid, "stop this daemon")?;
        tracing::info!(uid, pid, "stopping for a client");
        self.stopping = true;
        Ok(Step::reply(&Stopping { pid: self.about.pid }))
    }

    /// Stops the daemon if it has been idle for the configured time.
    pub(super) fn note_idleness(&mut self, now: Instant) {
        let Some(limit) = self.effective.idle_exit(self.options.idle_exit_s) else { return };
        if self.conns.len() > 0 || self.decide.is_used() || self.observe.hooks.are_busy() {
            self.due.idle = None;
        } else if is_due(&mut self.due.idle, now) {
            tracing::info!("idle for {}; the daemon is exiting", stated(limit));
            self.stopping = true;
        } else {
            self.due.idle.get_or_insert(now + limit);
        }
    }
}
