//! A map by numbers that are given out in ascending order: ids, tokens, revisions.
//!
//! Mostly the next key is the greatest and what is removed is among the latest, so that a list with
//! gaps does with a fraction of the steps what a tree does.

use std::iter::FilterMap;
use std::slice;

/// A map whose keys mostly come in ascending order; others cost the length of the map.
#[derive(Clone, Debug)]
pub(crate) struct Rising<K, V> {
    /// By key; what was removed leaves a gap until there are too many.
    entries: Vec<(K, Option<V>)>,
    /// How many of them are no gaps.
    len: usize,
}

/// So many gaps are let be, however few entries there are.
const GAPS: usize = 16;

impl<K, V> Default for Rising<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new(), len: 0 }
    }
}

impl<K: Copy + Ord, V> Rising<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn place(&self, key: &K) -> Result<usize, usize> {
        // What came last is looked at most.
        if let Some(((last, _), before)) = self.entries.split_last()
            && last == key
        {
            return Ok(before.len());
        }
        self.entries.binary_search_by(|(other, _)| other.cmp(key))
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries[self.place(key).ok()?].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.place(key).ok()?;
        self.entries[at].1.as_mut()
    }

    /// What was there before is replaced.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        let place = match self.entries.last() {
            Some((last, _)) if *last >= key => self.place(&key),
            _ => Err(self.entries.len()),
        };
        match place {
            Ok(at) => {
                let before = self.entries[at].1.replace(value);
                self.len += usize::from(before.is_none());
            }
            Err(at) => {
                self.entries.insert(at, (key, Some(value)));
                self.len += 1;
            }
        }
    }

    pub(crate) fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = match self.place(&key) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, (key, None));
                at
            }
        };
        let value = &mut self.entries[at].1;
        self.len += usize::from(value.is_none());
        value.get_or_insert_default()
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.place(key).ok()?;
        let value = self.entries[at].1.take()?;
        self.len -= 1;
        if self.entries.len() > 2 * self.len + GAPS {
            self.entries.retain(|(_, value)| value.is_some());
            self.entries.shrink_to(2 * self.len + GAPS);
        }
        Some(value)
    }

    pub(crate) fn keys(&self) -> Keys<'_, K, V> {
        self.entries.iter().filter_map(|(key, value)| value.is_some().then_some(key))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().filter_map(|(_, value)| value.as_ref())
    }
}

/// The keys of a [`Rising`].
pub(crate) type Keys<'a, K, V> =
    FilterMap<slice::Iter<'a, (K, Option<V>)>, fn(&'a (K, Option<V>)) -> Option<&'a K>>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_equals_a_map(ops in prop::collection::vec((0..6_u8, 0..60_u64), 0..400)) {
            let (mut rising, mut map) = (Rising::default(), BTreeMap::new());
            let mut next = 0;
            for (op, number) in ops {
                match op {
                    0 | 1 => {
                        next += 1 + number % 2;
                        rising.insert(next, number);
                        map.insert(next, number);
                    }
                    2 => {
                        rising.insert(number, next);
                        map.insert(number, next);
                    }
                    3 => {
                        *rising.or_default(number) += 1;
                        *map.entry(number).or_default() += 1;
                    }
                    4 => prop_assert_eq!(rising.remove(&number), map.remove(&number)),
                    _ => {
                        let oldest = map.keys().next().copied().unwrap_or(number);
                        prop_assert_eq!(rising.remove(&oldest), map.remove(&oldest));
                    }
                }
                prop_assert_eq!((rising.len(), rising.is_empty()), (map.len(), map.is_empty()));
                prop_assert!(rising.keys().eq(map.keys()));
                prop_assert!(rising.values().eq(map.values()));
                prop_assert_eq!(rising.get(&number), map.get(&number));
                prop_assert_eq!(rising.get_mut(&next), map.get_mut(&next));
                prop_assert_eq!(rising.contains_key(&number), map.contains_key(&number));
                prop_assert!(rising.entries.len() <= 2 * rising.len() + GAPS + 1);
            }
        }
    }

    #[test]
    fn what_is_removed_takes_no_room_for_long() {
        let mut rising = Rising::default();
        (0..10_000).for_each(|key| rising.insert(key, key));
        (0..9_999).for_each(|key| assert_eq!(rising.remove(&key), Some(key)));
        assert!(rising.entries.capacity() < 100, "{}", rising.entries.capacity());
        assert_eq!(rising.get(&9_999), Some(&9_999));
    }
}
