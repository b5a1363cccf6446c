//! The parts of an ended request that a message shows in the same way everywhere.

use canal_core::FrameId;
use canal_history::{Ending, RingStep};
use canal_protocol::{HistoryClient, HistoryStep};

/// The session of an outermost frame; `None` if the request had no frame.
pub(crate) fn session(frame: u64) -> Option<String> {
    (frame != 0).then(|| format!("s{}", FrameId(frame)))
}

/// The client that released it by force, if it called this host's daemon.
pub(crate) fn forced_by(ending: &Ending) -> Option<HistoryClient> {
    match ending {
        Ending::Forced { by } => by.map(|(uid, pid)| HistoryClient { uid, pid }),
        _ => None,
    }
}

/// The deadlock that it was refused for; empty if there was none.
pub(crate) fn cycle(ending: &Ending) -> Vec<HistoryStep> {
    let Ending::Refused { ring, .. } = ending else { return Vec::new() };
    let step = |step: &RingStep| HistoryStep {
        session: format!("s{}", FrameId(step.session)),
        uid: step.uid,
        pid: step.pid,
        key: step.key.clone(),
    };
    ring.iter().map(step).collect()
}
