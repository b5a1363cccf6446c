//! Waiters of one key that ask for the same under the same priority, in the order of arrival.

use std::collections::BTreeMap;

/// A waiter's place in a lane. The first place is served first.
pub(in crate::core) type Place = u64;

/// Waiters in order, each with how often it was overtaken.
///
/// A grant overtakes everyone who came before it, that is, a beginning of the lane. So the counts
/// never grow along the lane, and each place keeps only by how much its count exceeds the next
/// one's: overtaking any number of waiters changes one number.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Lane {
    excess: BTreeMap<Place, u32>,
    first_count: u32,
}

impl Lane {
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.excess.is_empty()
    }

    pub(in crate::core) fn first(&self) -> Option<Place> {
        self.excess.first_key_value().map(|(place, _)| *place)
    }

    /// How often the first was overtaken; nobody in the lane was more often.
    pub(in crate::core) fn first_count(&self) -> u32 {
        self.first_count
    }

    /// The last place before another.
    pub(in crate::core) fn last_before(&self, place: Place) -> Option<Place> {
        self.excess.range(..place).next_back().map(|(place, _)| *place)
    }

    pub(in crate::core) fn places(&self) -> impl DoubleEndedIterator<Item = Place> + '_ {
        self.excess.keys().copied()
    }

    /// Puts a waiter at its place with its count, kept between those of its neighbours. Cheap at
    /// the end of the lane; elsewhere it costs the number of waiters behind it.
    pub(in crate::core) fn insert(&mut self, place: Place, count: u32) {
        let behind: u32 = self.excess.range(place + 1..).map(|(_, excess)| excess).sum();
        let mut own = count.saturating_sub(behind);
        match self.excess.range_mut(..place).next_back() {
            Some((_, before)) => {
                own = own.min(*before);
                *before -= own;
            }
            None => self.first_count = behind + own,
        }
        self.excess.insert(place, own);
    }

    pub(in crate::core) fn remove(&mut self, place: Place) -> bool {
        let Some(own) = self.excess.remove(&place) else { return false };
        match self.excess.range_mut(..place).next_back() {
            Some((_, before)) => *before += own,
            None => self.first_count -= own,
        }
        true
    }

    /// Counts one overtaking for everyone before `place`.
    pub(in crate::core) fn overtake_before(&mut self, place: Place) {
        if let Some((_, excess)) = self.excess.range_mut(..place).next_back() {
            *excess += 1;
            self.first_count += 1;
        }
    }

    /// How often the waiter at `place` was overtaken. Linear.
    pub(in crate::core) fn count(&self, place: Place) -> u32 {
        self.excess.range(place..).map(|(_, excess)| excess).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_grant_overtakes_those_who_came_before_it() {
        let mut lane = Lane::default();
        for place in [1, 2, 5] {
            lane.insert(place, 0);
        }
        lane.overtake_before(4);
        lane.overtake_before(9);
        assert_eq!([1, 2, 5].map(|place| lane.count(place)), [2, 2, 1]);
        assert_eq!(lane.first_count(), 2);
        assert!(lane.remove(1));
        assert_eq!(lane.first_count(), 2);
        assert!(lane.remove(2));
        assert_eq!(lane.first_count(), 1);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Place, u32),
        Remove(usize),
        Overtake(Place),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u64..40, 0u32..5).prop_map(|(place, count)| Op::Insert(place, count)),
            (0usize..20).prop_map(Op::Remove),
            (0u64..42).prop_map(Op::Overtake),
        ]
    }

    proptest! {
        #[test]
        fn it_equals_plain_counts(ops in prop::collection::vec(op(), 1..80)) {
            let mut lane = Lane::default();
            let mut model: BTreeMap<Place, u32> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Insert(place, count) if !model.contains_key(&place) => {
                        let behind = model.range(place..).next().map_or(0, |(_, count)| *count);
                        let before = model.range(..place).next_back().map(|(_, count)| *count);
                        let count = count.max(behind).min(before.unwrap_or(u32::MAX));
                        model.insert(place, count);
                        lane.insert(place, count);
                    }
                    Op::Remove(which) => {
                        if let Some(place) = model.keys().nth(which).copied() {
                            model.remove(&place);
                            prop_assert!(lane.remove(place));
                        }
                    }
                    Op::Overtake(place) => {
                        for (_, count) in model.range_mut(..place) {
                            *count += 1;
                        }
                        lane.overtake_before(place);
                    }
                    Op::Insert(..) => {}
                }
                for (place, count) in &model {
                    prop_assert_eq!(lane.count(*place), *count);
                }
                prop_assert_eq!(lane.first_count(), model.values().next().copied().unwrap_or(0));
            }
        }
    }
}
