//! Which request has a tag.
//!
//! Tags are random and in no order, so that a tree of them has to move others for each. Nothing
//! depends on the order in which they lie here. Whoever makes tags that all hash alike has made a
//! list of his own requests of it, of which a user has only so many.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{RequestId, Tag};

/// The requests that wait or hold, by tag.
#[derive(Clone, Debug, Default)]
pub(super) struct Tags {
    requests: HashMap<Tag, RequestId, BuildHasherDefault<Folded>>,
}

/// So many entries have room at least, once there was one.
const ROOM_MIN: usize = 64;

impl Tags {
    pub(super) fn get(&self, tag: Tag) -> Option<RequestId> {
        self.requests.get(&tag).copied()
    }

    pub(super) fn insert(&mut self, tag: Tag, request: RequestId) {
        self.requests.insert(tag, request);
    }

    pub(super) fn remove(&mut self, tag: Tag) {
        self.requests.remove(&tag);
        // What a crowd needed is given back when it has gone.
        if self.requests.capacity() > ROOM_MIN + 8 * self.requests.len() {
            self.requests.shrink_to(ROOM_MIN.max(2 * self.requests.len()));
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// A tag, folded by multiplying its halves.
#[derive(Default)]
struct Folded(u64);

/// The first 128 bits of the fraction of pi: so that no half is 0 by chance.
const ODD: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

impl Hasher for Folded {
    #[inline]
    fn write_u128(&mut self, tag: u128) {
        let (low, high) = (tag as u64 ^ ODD[0], (tag >> 64) as u64 ^ ODD[1]);
        let product = u128::from(low) * u128::from(high);
        self.0 ^= product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u128((*byte).into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_has_its_request_and_a_crowd_leaves_no_room_behind() {
        // As a program may count them, in either half.
        let tag =
            |n: u64| if n.is_multiple_of(2) { Tag(n.into()) } else { Tag(u128::from(n) << 64) };
        let mut tags = Tags::default();
        (0..10_000).for_each(|n| tags.insert(tag(n), RequestId(n)));
        assert!((0..10_000).all(|n| tags.get(tag(n)) == Some(RequestId(n))));
        for n in 0..9_990 {
            tags.remove(tag(n));
            assert_eq!((tags.get(tag(n)), tags.get(tag(n + 1))), (None, Some(RequestId(n + 1))));
        }
        assert!(tags.requests.capacity() < 500, "{}", tags.requests.capacity());
    }

    #[test]
    fn tags_that_are_counted_hash_apart() {
        let hash = |tag: u128| {
            let mut hasher = Folded::default();
            hasher.write_u128(tag);
            // The bits by which a place is found.
            hasher.finish() % 4096
        };
        for shift in [0, 32, 64, 96] {
            let mut hashes: Vec<u64> = (0..1000_u128).map(|n| hash(n << shift)).collect();
            hashes.sort_unstable();
            hashes.dedup();
            assert!(hashes.len() > 700, "{} of 1000 at {shift}", hashes.len());
        }
    }
}
