//! The end of a host, and of everything that only its daemon kept alive.

use super::worklist::Transition;
use crate::{FrameId, HostId, Outcome, Owner, Table, Token};

impl Table {
    /// Ends everything that only the daemon of `host` kept alive, oldest frame first:
    /// - all of its processes, including holds kept for their descendants;
    /// - requests of leases, and unconfirmed grants of leases, because their clients are connected
    ///   to that daemon.
    ///
    /// Other leases move to the host `by`.
    pub(crate) fn host_gone(&mut self, transition: &mut Transition<'_>, host: HostId, by: HostId) {
        let frames: Vec<FrameId> = self.frames_of_host(host).collect();
        for id in frames {
            let Some(frame) = self.frames.get(&id) else { continue };
            transition.touched.insert(id);
            let process = matches!(frame.state.owner, Owner::Process(_));
            let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
            for request in waiters {
                self.commit(transition, Outcome::Withdrawn { request });
            }
            for token in holds {
                if process || self.is_provisional(token) {
                    self.release_whole(transition, token);
                }
            }
            let kept = self.frames.get(&id).is_some_and(|frame| !frame.holds.is_empty());
            if !process && kept {
                self.commit(transition, Outcome::LeaseMoved { frame: id, host: by });
            }
        }
        self.add_all_candidates(transition);
    }

    fn is_provisional(&self, token: Token) -> bool {
        self.holds.get(&token).is_some_and(|hold| hold.provisional)
    }
}
