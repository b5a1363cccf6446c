//! Continues the jobservers of an earlier daemon.

use std::collections::BTreeSet;

use crate::core::{FrameId, Key, Owner, Tag, Token};
use crate::daemon::server::Server;

impl Server {
    /// Opens the FIFOs of the builds that still hold their slot. Ends the job tokens of the others.
    pub(crate) fn take_up_jobservers(&mut self) {
        let frames = self.ledger.table.frames().filter_map(|frame| match frame.owner {
            Owner::Jobserver(build) => Some((build, frame.id)),
            _ => None,
        });
        let frames: Vec<(Tag, FrameId)> = frames.collect();
        let mut builds: BTreeSet<Tag> = self.jobservers.found().into_iter().collect();
        builds.extend(frames.iter().map(|(build, _)| *build));
        for build in builds {
            let Some((token, key)) = self.hold_of_build(build) else {
                self.jobservers.sweep(build);
                continue;
            };
            if let Err(error) = self.jobservers.take_over(token, build, &key) {
                tracing::warn!(%error, token = token.0, "cannot continue its jobserver");
            }
        }
        for (build, frame) in frames {
            if self.jobservers.get(build).is_none() {
                self.end(frame);
            }
        }
    }

    fn hold_of_build(&self, build: Tag) -> Option<(Token, Key)> {
        let table = &self.ledger.table;
        let hold = table.hold_of(table.tagged(build)?)?;
        let [item] = &*hold.items else { return None };
        Some((hold.token, item.key.clone()))
    }
}
