//! Finds the leader of a key: its only holder, if the key can have only one.

use crate::{Key, Mode, Table, Token, View};

/// The leader of a key, or why it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The key has no holder.
    Vacant,
    /// This hold leads.
    Led(Token),
    /// The key has this many slots, more than one, so it can have several holders at once.
    Slots(u64),
    /// The key is only read, and readers share it.
    Readers,
}

impl Table {
    /// The leader of exactly this key: the holder that writes it, or else the holder of its only
    /// slot. Other readers next to that holder do not lead. A hold that its client has not
    /// confirmed does not count, because it may still be taken back. Of nested holds, the outermost
    /// leads.
    pub fn leader(&self, key: &Key) -> Leadership {
        let (mut alone, mut is_read) = (None, false);
        let mut slots = self.settings(key).view.map_or(0, View::capacity);
        let holds = self.holders(key).filter_map(|token| self.hold(token));
        for hold in holds.filter(|hold| !hold.provisional) {
            for item in hold.items.iter().filter(|item| item.key == *key) {
                match item.mode {
                    Mode::Write => return Leadership::Led(hold.token),
                    Mode::Read => is_read = true,
                    Mode::Counted if item.shared => {}
                    Mode::Counted => {
                        slots = slots.max(item.view.map_or(1, View::capacity));
                        alone = alone.or(Some(hold.token));
                    }
                }
            }
        }
        match alone {
            _ if slots > 1 => Leadership::Slots(slots),
            Some(token) => Leadership::Led(token),
            None if is_read => Leadership::Readers,
            None => Leadership::Vacant,
        }
    }
}
