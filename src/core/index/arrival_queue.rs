//! The waiters of one key with the same class and priority, in the order of arrival.

use std::collections::BTreeMap;

/// A waiter's position in the order of arrival. The smallest is served first.
pub(in crate::core) type Arrival = u64;

/// Waiters in order of arrival, each with the number of times that it was overtaken.
///
/// A grant overtakes every waiter that arrived before it, which is a prefix of the queue. So the
/// counts never grow along the queue, and each entry stores only by how much its count exceeds the
/// next one's. Overtaking any number of waiters changes one number.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct ArrivalQueue {
    excess: BTreeMap<Arrival, u32>,
    first_count: u32,
}

impl ArrivalQueue {
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.excess.is_empty()
    }

    pub(in crate::core) fn first(&self) -> Option<Arrival> {
        self.excess.first_key_value().map(|(arrival, _)| *arrival)
    }

    /// How often the first waiter was overtaken: the largest count in the queue.
    pub(in crate::core) fn first_count(&self) -> u32 {
        self.first_count
    }

    /// The last waiter before an arrival.
    pub(in crate::core) fn last_before(&self, arrival: Arrival) -> Option<Arrival> {
        self.excess.range(..arrival).next_back().map(|(arrival, _)| *arrival)
    }

    pub(in crate::core) fn arrivals(&self) -> impl DoubleEndedIterator<Item = Arrival> + '_ {
        self.excess.keys().copied()
    }

    /// Inserts a waiter with its count, limited to the range that its neighbours allow. Cheap at
    /// the end of the queue; elsewhere the cost is the number of waiters behind it.
    pub(in crate::core) fn insert(&mut self, arrival: Arrival, count: u32) {
        let behind: u32 = self.excess.range(arrival + 1..).map(|(_, excess)| excess).sum();
        let mut own = count.saturating_sub(behind);
        match self.excess.range_mut(..arrival).next_back() {
            Some((_, before)) => {
                own = own.min(*before);
                *before -= own;
            }
            None => self.first_count = behind + own,
        }
        self.excess.insert(arrival, own);
    }

    pub(in crate::core) fn remove(&mut self, arrival: Arrival) -> bool {
        let Some(own) = self.excess.remove(&arrival) else { return false };
        match self.excess.range_mut(..arrival).next_back() {
            Some((_, before)) => *before += own,
            None => self.first_count -= own,
        }
        true
    }

    /// Counts one overtaking for every waiter before `arrival`.
    pub(in crate::core) fn overtake_before(&mut self, arrival: Arrival) {
        if let Some((_, excess)) = self.excess.range_mut(..arrival).next_back() {
            *excess += 1;
            self.first_count += 1;
        }
    }

    /// How often the waiter at `arrival` was overtaken. Linear.
    pub(in crate::core) fn count(&self, arrival: Arrival) -> u32 {
        self.excess.range(arrival..).map(|(_, excess)| excess).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_grant_overtakes_earlier_waiters() {
        let mut queue = ArrivalQueue::default();
        for arrival in [1, 2, 5] {
            queue.insert(arrival, 0);
        }
        queue.overtake_before(4);
        queue.overtake_before(9);
        assert_eq!([1, 2, 5].map(|arrival| queue.count(arrival)), [2, 2, 1]);
        assert_eq!(queue.first_count(), 2);
        assert!(queue.remove(1));
        assert_eq!(queue.first_count(), 2);
        assert!(queue.remove(2));
        assert_eq!(queue.first_count(), 1);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Arrival, u32),
        Remove(usize),
        Overtake(Arrival),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u64..40, 0u32..5).prop_map(|(arrival, count)| Op::Insert(arrival, count)),
            (0usize..20).prop_map(Op::Remove),
            (0u64..42).prop_map(Op::Overtake),
        ]
    }

    proptest! {
        #[test]
        fn it_equals_plain_counts(ops in prop::collection::vec(op(), 1..80)) {
            let mut queue = ArrivalQueue::default();
            let mut model: BTreeMap<Arrival, u32> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Insert(arrival, count) if !model.contains_key(&arrival) => {
                        let behind = model.range(arrival..).next().map_or(0, |(_, count)| *count);
                        let before = model.range(..arrival).next_back().map(|(_, count)| *count);
                        let count = count.max(behind).min(before.unwrap_or(u32::MAX));
                        model.insert(arrival, count);
                        queue.insert(arrival, count);
                    }
                    Op::Remove(which) => {
                        if let Some(arrival) = model.keys().nth(which).copied() {
                            model.remove(&arrival);
                            prop_assert!(queue.remove(arrival));
                        }
                    }
                    Op::Overtake(arrival) => {
                        for (_, count) in model.range_mut(..arrival) {
                            *count += 1;
                        }
                        queue.overtake_before(arrival);
                    }
                    Op::Insert(..) => {}
                }
                for (arrival, count) in &model {
                    prop_assert_eq!(queue.count(*arrival), *count);
                }
                prop_assert_eq!(queue.first_count(), model.values().next().copied().unwrap_or(0));
            }
        }
    }
}
