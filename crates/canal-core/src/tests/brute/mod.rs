//! The rules of admission, word for word, over plain data and without any index: slow and simple.

mod admission;
mod check;
mod deadlock;
mod supersede;

use crate::*;

pub(super) use check::{check_bypasses, check_decisions, check_step};
pub(super) use deadlock::waiting_in_vain;

/// A request with its frame, whether it already waits or not.
struct Asker<'a> {
    id: RequestId,
    frame: FrameId,
    parent: Option<FrameId>,
    asked: &'a Request,
    barrier: bool,
}

impl<'a> Asker<'a> {
    fn waiting(waiter: &'a WaiterState) -> Self {
        let WaiterState { id, request: asked, frame, barrier, .. } = waiter;
        Asker { id: *id, frame: *frame, parent: None, asked, barrier: *barrier }
    }
}

fn lineage(state: &Snapshot, asker: &Asker<'_>) -> Vec<FrameId> {
    let frame = |id: FrameId| state.frames.iter().find(|frame| frame.id == id);
    if frame(asker.frame).is_some_and(|frame| matches!(frame.owner, Owner::Jobserver(_))) {
        return Vec::new();
    }
    let mut lineage = vec![asker.frame];
    let mut next = match frame(asker.frame) {
        Some(frame) => frame.parent,
        None => asker.parent.filter(|parent| frame(*parent).is_some_and(|outer| !outer.ended)),
    };
    while let Some(outer) = next {
        lineage.push(outer);
        next = frame(outer).and_then(|frame| frame.parent);
    }
    lineage
}

fn session(state: &Snapshot, asker: &Asker<'_>) -> FrameId {
    *lineage(state, asker).last().unwrap()
}

fn root(state: &Snapshot, frame: FrameId) -> FrameId {
    let parent = |id: FrameId| state.frames.iter().find(|frame| frame.id == id)?.parent;
    std::iter::successors(Some(frame), |id| parent(*id)).last().unwrap()
}
