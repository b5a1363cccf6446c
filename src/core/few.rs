//! A set of ids that mostly has one member: it takes no block of memory for that one.

use std::iter::{Chain, Flatten};
use std::option;

use super::rising::{self, Rising};

/// A set of numbers, mostly of one.
#[derive(Clone, Debug)]
pub(super) enum Few<T> {
    One(Option<T>),
    /// In a block of its own: half as large as the set itself would make it.
    Many(Box<Rising<T, ()>>),
}

/// The members of a [`Few`], in order.
pub(super) type Iter<'a, T> =
    Chain<option::IntoIter<&'a T>, Flatten<option::IntoIter<rising::Keys<'a, T, ()>>>>;

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::One(None)
    }
}

impl<T: Copy + Ord> Few<T> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(one) => usize::from(one.is_some()),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn insert(&mut self, member: T) {
        match self {
            Self::One(None) => *self = Self::One(Some(member)),
            Self::One(Some(one)) if *one == member => {}
            Self::One(Some(one)) => {
                let mut many = Rising::default();
                many.insert(*one, ());
                many.insert(member, ());
                *self = Self::Many(Box::new(many));
            }
            Self::Many(many) => many.insert(member, ()),
        }
    }

    pub(super) fn remove(&mut self, member: &T) {
        match self {
            Self::One(one) => {
                one.take_if(|one| one == member);
            }
            Self::Many(many) => {
                many.remove(member);
                if many.is_empty() {
                    *self = Self::default();
                }
            }
        }
    }

    pub(super) fn iter(&self) -> Iter<'_, T> {
        let (one, many) = match self {
            Self::One(one) => (one.as_ref(), None),
            Self::Many(many) => (None, Some(many.keys())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The greatest one.
    pub(super) fn last(&self) -> Option<&T> {
        match self {
            Self::One(one) => one.as_ref(),
            Self::Many(many) => many.keys().next_back(),
        }
    }

    /// Takes the greatest one out.
    pub(super) fn pop_last(&mut self) -> Option<T> {
        let last = self.last().copied()?;
        self.remove(&last);
        Some(last)
    }

    /// The members, to change the set meanwhile.
    pub(super) fn to_vec(&self) -> Vec<T> {
        self.iter().copied().collect()
    }
}

impl<'a, T: Copy + Ord> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_equals_a_set(ops in prop::collection::vec((any::<bool>(), 0u8..4), 0..40)) {
            let (mut few, mut set) = (Few::default(), BTreeSet::new());
            for (insert, member) in ops {
                if insert {
                    few.insert(member);
                    set.insert(member);
                } else {
                    few.remove(&member);
                    set.remove(&member);
                }
                prop_assert!(few.iter().eq(&set));
                prop_assert_eq!((few.len(), few.is_empty()), (set.len(), set.is_empty()));
            }
        }
    }
}
