//! Stops the daemon.

use crate::permissions::only_operators;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_protocol::{ErrorName, Failure, Stopping};
use canal_sys::peer::Credentials;

impl Server {
    pub(crate) fn stop(&mut self, peer: Credentials) -> Result<Step, Failure> {
        let owner = self.about.uid;
        if !self.is_operator(peer.uid) {
            let message = format!("uid {} may not stop this daemon", peer.uid);
            return Err(
                Failure::new(ErrorName::Denied, message).hint(only_operators(owner) + " may")
            );
        }
        tracing::info!(uid = peer.uid, pid = peer.pid, "stopping for a client");
        self.stopping = true;
        Ok(Step::reply(&Stopping { pid: self.about.pid }))
    }
}
