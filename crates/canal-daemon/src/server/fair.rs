//! Decides which connections are served first if several users call at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::calls::conn_id::ConnId;
use crate::server::Server;

impl Server {
    /// Sorts the connections into the order in which they are served: users take turns, and the
    /// connections of each user keep the order in which their calls arrived.
    pub(crate) fn in_turns(&self, active: Vec<ConnId>) -> Vec<ConnId> {
        let user = |id: &ConnId| self.conns.peek(*id).map(|conn| conn.peer.uid);
        let mut users = active.iter().filter_map(user);
        let first = users.next();
        if users.all(|uid| Some(uid) == first) {
            return active;
        }
        in_turns(active.iter().filter_map(|id| Some((user(id)?, *id))))
    }

    /// Keeps the connections that still have calls for the next turn.
    pub(crate) fn leave_for_next_turn(&mut self, active: &[ConnId]) {
        let mut listed = BTreeSet::new();
        for id in active.iter().copied().chain(self.conns.take_active()) {
            if listed.insert(id) {
                self.conns.activate(id);
            }
        }
    }
}

fn in_turns(active: impl Iterator<Item = (u32, ConnId)>) -> Vec<ConnId> {
    let mut users: BTreeMap<u32, VecDeque<ConnId>> = BTreeMap::new();
    for (uid, id) in active {
        users.entry(uid).or_default().push_back(id);
    }
    let mut ordered = Vec::new();
    while !users.is_empty() {
        users.retain(|_, ids| {
            ordered.extend(ids.pop_front());
            !ids.is_empty()
        });
    }
    ordered
}

#[cfg(test)]
mod tests {
    use slotmap::{Key, KeyData};

    use super::*;

    fn id(number: u64) -> ConnId {
        KeyData::from_ffi((1 << 32) | number).into()
    }

    #[test]
    fn a_user_with_many_connections_delays_each_other_user_by_one_call() {
        let flood = (0..1000).map(|at| (7, id(at)));
        let others = [(9, id(5000)), (8, id(6000)), (9, id(4000))];
        let ordered = in_turns(flood.chain(others));
        let ordered: Vec<u64> =
            ordered.iter().map(|id| id.data().as_ffi() & u64::from(u32::MAX)).collect();
        assert_eq!(ordered[..6], [0, 6000, 5000, 1, 4000, 2]);
        assert_eq!(ordered.len(), 1003);
        assert!(ordered[6..].is_sorted());
    }
}
