//! Finds the holds that block a request for a key.

use crate::limits::KEYS_LOOKED_AT_MAX;
use canal_core::{FrameId, HeldItem, HoldState, Key, Mode, Table};

/// A hold that blocks a request, and the blocking item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockingHold<'a> {
    pub hold: &'a HoldState,
    pub item: &'a HeldItem,
}

/// Whether two items exclude each other: both are slots of the same key, or one of them is a write
/// and one key covers the other.
pub(crate) fn conflict(one: (&Key, Mode), other: (&Key, Mode)) -> bool {
    let (key, mode) = one;
    let (other, other_mode) = other;
    if mode == Mode::Write || other_mode == Mode::Write {
        return key.covers(other) || other.covers(key);
    }
    mode == Mode::Counted && other_mode == Mode::Counted && key == other
}

/// The holds that conflict with an item, whether or not the item fits in addition to them. Holds of
/// the key itself come first, then holds of the keys above it, then holds of the keys below it.
///
/// At most `each` holds are returned for each key, and at most [`KEYS_LOOKED_AT_MAX`] keys below
/// the key are examined.
pub(crate) fn blocking_holds<'a>(
    table: &'a Table,
    key: &'a Key,
    mode: Mode,
    each: usize,
) -> impl Iterator<Item = BlockingHold<'a>> {
    let below = table.keys(Some(key)).filter(move |other| *other != key).take(KEYS_LOOKED_AT_MAX);
    let related = std::iter::once(key.clone()).chain(above(key)).chain(below.cloned());
    related.flat_map(move |other| {
        let holds = table.holders(&other).filter_map(|token| table.hold(token));
        let in_the_way = holds.filter_map(|hold| {
            let mut items = hold.items.iter();
            let item = items
                .find(|item| item.key == other && conflict((key, mode), (&item.key, item.mode)))?;
            Some(BlockingHold { hold, item })
        });
        in_the_way.take(each).collect::<Vec<_>>()
    })
}

/// The keys that cover a key, without the key itself. The nearest key comes first.
fn above(key: &Key) -> impl Iterator<Item = Key> {
    let ends = key.as_str().rmatch_indices('/').map(|(at, _)| at);
    ends.filter_map(|end| Key::new(key.as_str().get(..end)?).ok())
}

/// A frame and the frames that enclose it, without frames that hold nothing.
pub(crate) fn lineage(table: &Table, frame: FrameId) -> Vec<FrameId> {
    let state = |frame| table.frame(frame);
    let around = std::iter::successors(state(frame), |inner| state(inner.parent?));
    around.map(|frame| frame.id).filter(|id| table.holds_in(*id).next().is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn a_write_keeps_out_all_above_and_below_and_slots_only_those_of_their_key() {
        use Mode::{Counted, Read, Write};
        let conflicts = |(one, mode): (&str, Mode), (other, as_): (&str, Mode)| {
            let forth = conflict((&key(one), mode), (&key(other), as_));
            assert_eq!(forth, conflict((&key(other), as_), (&key(one), mode)));
            forth
        };
        assert!(conflicts(("a", Write), ("a/b", Read)));
        assert!(conflicts(("a/b", Write), ("a", Counted)));
        assert!(conflicts(("a", Write), ("a", Write)));
        assert!(conflicts(("a", Counted), ("a", Counted)));
        assert!(!conflicts(("a", Counted), ("a/b", Counted)));
        assert!(!conflicts(("a", Read), ("a/b", Counted)));
        assert!(!conflicts(("a/b", Write), ("a/c", Write)));
        assert!(!conflicts(("a", Write), ("ab", Read)));
    }

    #[test]
    fn the_keys_above_are_all_prefixes_of_whole_components() {
        let above = |text| above(&key(text)).map(|key| key.to_string()).collect::<Vec<_>>();
        assert_eq!(above("a/bc/d"), ["a/bc", "a"]);
        assert!(above("abc").is_empty());
    }
}
