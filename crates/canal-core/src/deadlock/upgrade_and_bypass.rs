//! Upgrade and bypass: a holder that requests more is let past the waiters that wait for its own
//! session. A reader that upgrades to a writer goes before a writer that waits for it to end.
//!
//! Such a waiter cannot be granted until that session moves. If the request had to wait behind it,
//! the two would deadlock over a free lock. A session that holds nothing blocks no other session,
//! so it needs no bypass.

use std::collections::{BTreeMap, BTreeSet};

use super::graph_reduction::Edges;
use crate::index::grant_order::Rank;
use crate::state::table::Contender;
use crate::{FrameId, GrantedItem, Key, Mode, RequestId, Table};

impl Table {
    /// The requests that wait for a key, or for a key above or below it.
    pub(crate) fn waiting_near(&self, key: &Key) -> impl Iterator<Item = RequestId> {
        let near = self.tree.competing(key, Mode::Write).flat_map(BTreeMap::keys);
        let near: BTreeSet<Rank> = near.copied().collect();
        near.into_iter().map(|rank| rank.request)
    }

    /// Admits a request that fits but has predecessors, if every predecessor waits for the
    /// request's own session, directly or through other sessions.
    pub(crate) fn admit_by_bypass(&self, contender: &Contender<'_>) -> Option<Vec<GrantedItem>> {
        let session = self.session(*contender.lineage.last().unwrap_or(&contender.frame));
        if self.sessions.get(&session).is_none_or(|session| session.holds == 0) {
            return None;
        }
        let items = self.admission_at(None, contender).ok()?;
        let predecessors = self.predecessors(contender);
        let bypasses = !predecessors.is_empty() && self.all_wait_for(&predecessors, session);
        bypasses.then_some(items)
    }

    /// Whether each of these requests waits for a session, directly or through other sessions. A
    /// request does if it is still blocked after every frame that can end without that session has
    /// ended, and the session is among its blockers. Keeps the requests of the session itself, and
    /// ignores suspended requests.
    fn all_wait_for(&self, requests: &BTreeSet<RequestId>, session: FrameId) -> bool {
        let reachable = self.reachable(requests.iter().copied().collect(), Edges::HoldsAndOrder);
        if !reachable.sessions.contains(&session) {
            return false;
        }
        let residual =
            self.subtable(&reachable).reduce(Edges::HoldsAndOrder, Some(session)).residual;
        if !requests.iter().all(|request| residual.waiters.contains_key(request)) {
            return false;
        }
        let mut without = residual.clone();
        for own in residual.waiters_of_session(session) {
            drop(without.remove_waiter(own));
        }
        let left = without.reduce(Edges::HoldsAndOrder, None).residual;
        // A request that is admitted once the session has ended was waiting for it. One that is
        // still blocked may have waited for both the session and requests that are about to bypass
        // each other.
        let inside = residual.waiters_inside();
        let mut doubtful = requests.iter().filter(|request| left.waiters.contains_key(request));
        doubtful.all(|request| residual.leads_to(*request, session, &inside))
    }

    /// Whether a request waits for a session, directly or through other sessions. Linear in the
    /// number of waits. `inside`: the requests that must end before a frame does.
    fn leads_to(
        &self,
        request: RequestId,
        session: FrameId,
        inside: &BTreeMap<FrameId, Vec<RequestId>>,
    ) -> bool {
        let (mut next, mut seen) = (vec![request], BTreeSet::new());
        while let Some(id) = next.pop() {
            let Some(waiter) = self.waiters.get(&id).filter(|_| seen.insert(id)) else { continue };
            let waits = self.waits_for_holds(id).into_iter();
            let holders: BTreeSet<FrameId> = waits.map(|wait| wait.by.frame()).collect();
            let mut frames = holders.iter().chain([&waiter.frame]);
            if frames.any(|frame| self.session(*frame) == session) {
                return true;
            }
            next.extend(self.predecessors(&self.contender(waiter)));
            next.extend(holders.iter().filter_map(|holder| inside.get(holder)).flatten());
        }
        false
    }
}
