//! The slots granted to a request, remembered until it has ended.

use canal_core::{GrantedItem, HoldState, Key, Request, SlotRange, Slots, View};

/// The slots of each item of a request, without slots that belong to another hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnSlots {
    #[default]
    None,
    /// The only item has this slot; the number is the size of the lock. This is the usual request,
    /// and it needs no allocation.
    One([SlotRange; 1], u64),
    /// The slots of each item and the size of its lock, in the order of the items.
    Each(Box<[(Slots, u64)]>),
}

impl OwnSlots {
    /// The slots of a grant.
    pub(crate) fn of(items: &[GrantedItem]) -> Self {
        match items {
            [GrantedItem { slots: Slots(ranges), shared: false, view, .. }] if matches!(ranges[..], [SlotRange(first, last)] if first == last) => {
                Self::One([ranges[0]], capacity(*view))
            }
            items if items.iter().all(|item| item.shared || item.slots.is_empty()) => Self::None,
            items => {
                let own = |item: &GrantedItem| match item.shared {
                    true => (Slots::default(), capacity(item.view)),
                    false => (item.slots.clone(), capacity(item.view)),
                };
                Self::Each(items.iter().map(own).collect())
            }
        }
    }

    /// The slots of a hold, of which some items may have been released.
    pub(crate) fn of_hold(asked: &Request, hold: &HoldState) -> Self {
        let slots_of = |key: &Key| {
            let held = hold.items.iter().find(|item| item.key == *key && !item.shared);
            held.map(|item| (item.slots.clone(), capacity(item.view))).unwrap_or_default()
        };
        Self::Each(asked.items.iter().map(|item| slots_of(&item.key)).collect())
    }

    /// The slots of the item with this number.
    pub(crate) fn get(&self, item: usize) -> &[SlotRange] {
        match self {
            Self::One(slot, _) if item == 0 => slot,
            Self::None | Self::One(..) => &[],
            Self::Each(each) => each.get(item).map_or(&[], |(slots, _)| &slots.0),
        }
    }

    /// The size of the lock when the item with this number was granted; `None` if it is unknown.
    pub(crate) fn size(&self, item: usize) -> Option<u64> {
        let size = match self {
            Self::One(_, size) if item == 0 => *size,
            Self::None | Self::One(..) => 0,
            Self::Each(each) => each.get(item).map_or(0, |(_, size)| *size),
        };
        Some(size).filter(|size| *size > 0)
    }
}

fn capacity(view: Option<View>) -> u64 {
    view.map_or(0, View::capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(ranges: &[(u64, u64)], shared: bool) -> GrantedItem {
        let ranges = ranges.iter().map(|(first, last)| SlotRange(*first, *last));
        let view = Some(View::Slots { slots: 4 });
        GrantedItem { acquired: 1, slots: Slots(ranges.collect()), shared, view }
    }

    fn slots(of: &OwnSlots, item: usize) -> Vec<u64> {
        Slots(of.get(item).to_vec()).to_vec()
    }

    #[test]
    fn each_item_keeps_its_own_slots() {
        let one = OwnSlots::of(&[granted(&[(3, 3)], false)]);
        assert_eq!(one, OwnSlots::One([SlotRange(3, 3)], 4));
        assert_eq!((one.size(0), one.size(1)), (Some(4), None));
        assert_eq!((slots(&one, 0), slots(&one, 1)), (vec![3], vec![]));
        let several = OwnSlots::of(&[granted(&[], false), granted(&[(0, 1), (4, 4)], false)]);
        assert_eq!((slots(&several, 0), slots(&several, 1)), (vec![], vec![0, 1, 4]));
        assert_eq!(several.get(2), []);
    }

    #[test]
    fn slots_of_another_hold_are_not_its_own() {
        assert_eq!(OwnSlots::of(&[granted(&[(3, 3)], true)]), OwnSlots::None);
        assert_eq!(OwnSlots::of(&[granted(&[], false)]), OwnSlots::None, "a writer");
        let mixed = OwnSlots::of(&[granted(&[(3, 3)], true), granted(&[(5, 5)], false)]);
        assert_eq!((slots(&mixed, 0), slots(&mixed, 1)), (vec![], vec![5]));
    }
}
