//! Detects deadlocks and chooses the request to refuse.
//!
//! Detection is a graph reduction with the table's own admission rules, over the part of the table
//! that the candidates can reach. It ends every frame that can end, admits every request that can
//! then be admitted, and repeats. Whatever remains is deadlocked.

use std::collections::BTreeSet;

use super::graph_reduction::Edges;
use crate::{FrameId, Mode, RequestId, Table, WaitFor};

impl Table {
    /// A request can be part of a deadlock only if its session waits and holds a key that another
    /// request wants.
    pub(crate) fn is_deadlock_candidate(&self, request: RequestId) -> bool {
        let Some(waiter) = self.waiters.get(&request) else { return false };
        let session = self.session(waiter.frame);
        self.hold_and_wait.contains(&session)
            && !self.is_inactive(waiter)
            && self.holds_what_others_want(session)
    }

    /// Whether a request waits for a key that a session holds, or for a key above or below it. The
    /// cost depends on the number of keys that the session holds, not on the number of waiters.
    pub(crate) fn holds_what_others_want(&self, session: FrameId) -> bool {
        let mut keys = self.frames_of_session(session).flat_map(|frame| frame.shares.keys());
        keys.any(|key| self.tree.competing(key, Mode::Write).any(|waits| !waits.is_empty()))
    }

    /// The request whose refusal breaks the deadlock, and its cycle.
    ///
    /// The order of the waiters does not matter. Once nothing can move, a predecessor of a session
    /// that holds something waits forever, so the request bypasses it (see `upgrade_and_bypass`). A
    /// session that holds nothing blocks only the waiters behind it. So each remaining session that
    /// holds something waits for a hold of another remaining session: every deadlock contains a
    /// cycle of holds. Holds only become fewer during the reduction, so the result does not depend
    /// on its order.
    ///
    /// The victim is the youngest session whose refusal lets another request on a cycle continue;
    /// if there is none, the youngest on a cycle. Refusing a session that is on only one of several
    /// cycles may help no one.
    ///
    /// Sometimes a second victim is refused although one would be enough: a cycle can be deadlocked
    /// only because it waits for another cycle. The search starts at the waiting request and
    /// follows all holders of a wanted key, even while enough slots are free, so it can find the
    /// first cycle late. Following only the holders that block the request would need another
    /// version of the rules.
    pub(crate) fn victim(&self, among: &BTreeSet<RequestId>) -> Option<(RequestId, Vec<WaitFor>)> {
        let reachable = self.reachable(among.iter().copied().collect(), Edges::Holds);
        if !reachable.may_close_cycle {
            return None;
        }
        let reduction = self.subtable(&reachable).reduce(Edges::Holds, None);
        let residual = &reduction.residual;
        let inside = residual.waiters_inside();
        // Each wait for a hold, with the requests that must end before it.
        let steps = |request| -> Vec<(WaitFor, &[RequestId])> {
            let before = |frame| inside.get(&frame).map_or(&[][..], Vec::as_slice);
            let waits = residual.waits_for_holds(request);
            let before: Vec<_> = waits.iter().map(|wait| before(wait.by.frame())).collect();
            waits.into_iter().zip(before).collect()
        };
        let cycle = |request| shortest_cycle(request, steps);
        // Prefer the youngest session, and within it the latest request.
        let waiting = residual.waiters.values();
        let waiting: BTreeSet<(FrameId, RequestId)> =
            waiting.map(|waiter| (residual.session(waiter.frame), waiter.id)).collect();
        let requests = || waiting.iter().rev().map(|(_, request)| *request);
        let with_cycle = |request| Some((request, cycle(request)?));
        let on_a_cycle = |request: RequestId| cycle(request).is_some();
        let helps = |request| reduction.helped_by_refusal(request).into_iter().any(on_a_cycle);
        let mut helpful = requests().filter(|request| helps(*request));
        helpful.find_map(with_cycle).or_else(|| requests().find_map(with_cycle))
    }
}

/// A shortest cycle of waits through a request, if it is on one. `steps` returns the waits of a
/// request, each with the requests that must end before that wait does.
pub fn shortest_cycle<'a, R: Copy + Ord + 'a, S: Clone>(
    request: R,
    steps: impl Fn(R) -> Vec<(S, &'a [R])>,
) -> Option<Vec<S>> {
    // Each step of the search, with the index of the previous step.
    let mut taken: Vec<(S, &[R], Option<usize>)> = Vec::new();
    let take =
        |request: R, after| steps(request).into_iter().map(move |(step, next)| (step, next, after));
    taken.extend(take(request, None));
    let mut asked = BTreeSet::from([request]);
    let mut at = 0;
    while let Some((_, next, _)) = taken.get(at) {
        if next.contains(&request) {
            let back = std::iter::successors(Some(at), |at| taken[*at].2);
            let mut cycle: Vec<S> = back.map(|at| taken[at].0.clone()).collect();
            cycle.reverse();
            return Some(cycle);
        }
        for next in next.iter().filter(|next| asked.insert(**next)) {
            taken.extend(take(*next, Some(at)));
        }
        at += 1;
    }
    None
}
