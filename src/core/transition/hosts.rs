//! The end of a host: what its daemon alone kept alive ends with it.

use super::worklist::Turn;
use crate::core::{FrameId, HostId, Outcome, Owner, Table, Token};

impl Table {
    /// Ends everything that lives only by the daemon of `host`, oldest frame first: all of its
    /// processes, also what is kept for their descendants; and what leases wait for or were
    /// granted and not told, because it is that daemon's connection that they wait on. Other
    /// leases move to `by`.
    pub(in crate::core) fn host_gone(&mut self, turn: &mut Turn<'_>, host: HostId, by: HostId) {
        let frames: Vec<FrameId> = self.frames_of_host(host).collect();
        for id in frames {
            let Some(frame) = self.frames.get(&id) else { continue };
            turn.touched.insert(id);
            let process = matches!(frame.state.owner, Owner::Process(_));
            let (waiters, holds) = (frame.waiters.clone(), frame.holds.clone());
            for request in waiters {
                self.decide(turn, Outcome::Withdrawn { request });
            }
            for token in holds {
                if process || self.is_provisional(token) {
                    self.release_whole(turn, token);
                }
            }
            let kept = self.frames.get(&id).is_some_and(|frame| !frame.holds.is_empty());
            if !process && kept {
                self.decide(turn, Outcome::LeaseMoved { frame: id, host: by });
            }
        }
        self.suspect_everyone(turn);
    }

    fn is_provisional(&self, token: Token) -> bool {
        self.holds.get(&token).is_some_and(|hold| hold.provisional)
    }
}
