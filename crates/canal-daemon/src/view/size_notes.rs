//! Notes about requests that pass another size than the one in use, and about how canal parsed
//! their keys.

use std::collections::VecDeque;

use canal_core::{Key, Request, Table, Token, View};
use canal_protocol::{SizeNote, WireItem};

/// The number of remembered notes. A note is repeated after this many others.
const TOLD_MAX: usize = 1024;

/// A note's user and message, which names the key and the sizes.
type Told = (u32, String);

/// The notes that this daemon has sent to its users, oldest first. Cron mails all output, so each
/// note is printed only once.
#[derive(Debug, Default)]
pub(crate) struct ToldSizes(VecDeque<Told>);

impl ToldSizes {
    /// The notes about a request. `own` is the token of its hold, if it has one.
    pub(crate) fn notes(
        &mut self,
        table: &Table,
        asked: &Request,
        own: Option<Token>,
    ) -> Vec<SizeNote> {
        let stated = asked.items.iter().filter_map(|item| Some((&item.key, item.ask.stated()?)));
        let notes = stated.filter_map(|(key, stated)| {
            let stored = table.settings(key).view;
            let size = stored.or_else(|| table.stated_by_others(key, own))?;
            let differs = size != stated;
            let note = differs.then(|| note(key, stated, size, stored.is_some()))?;
            Some(self.remembered(asked.uid, note))
        });
        notes.collect()
    }

    /// How canal parsed the keys of a user's request.
    pub(crate) fn of_texts(&mut self, uid: u32, items: &[WireItem]) -> Vec<SizeNote> {
        let notes = items.iter().filter_map(SizeNote::of_text);
        notes.map(|note| self.remembered(uid, note)).collect()
    }

    fn remembered(&mut self, uid: u32, note: SizeNote) -> SizeNote {
        SizeNote { first: self.is_first((uid, note.message.clone())), ..note }
    }

    fn is_first(&mut self, note: Told) -> bool {
        if self.0.contains(&note) {
            return false;
        }
        self.0.push_back(note);
        if self.0.len() > TOLD_MAX {
            self.0.pop_front();
        }
        true
    }
}

/// The note that a request states another size than the stored one, or else the one in use.
fn note(key: &Key, stated: View, size: View, is_stored: bool) -> SizeNote {
    let message = if is_stored {
        format!("`{key}` has the stored size {size}, which replaces the given size {stated}")
    } else {
        format!("`{key}` is in use with the size {size}, but this request passes the size {stated}")
    };
    let (key, stated, size) = (key.to_string(), stated.to_string(), Some(size.to_string()));
    let (stored, followed) = if is_stored { (size, None) } else { (None, size) };
    SizeNote { key, stated, stored, followed, message, first: false, read: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(uid: u32, key: &str, stated: u64) -> Told {
        let slots = |slots| View::Slots { slots };
        (uid, note(&Key::new(key).unwrap(), slots(stated), slots(1), true).message)
    }

    #[test]
    fn a_difference_is_told_once_to_each_user() {
        let mut told = ToldSizes::default();
        for (uid, key, stated, first) in [
            (1, "a", 3, true),
            (1, "a", 3, false),
            (2, "a", 3, true),
            (1, "b", 3, true),
            (1, "a", 4, true),
            (2, "a", 3, false),
        ] {
            assert_eq!(told.is_first(difference(uid, key, stated)), first);
        }
    }

    #[test]
    fn the_number_of_remembered_differences_is_bounded() {
        let mut told = ToldSizes::default();
        for n in 0..=TOLD_MAX as u64 {
            assert!(told.is_first(difference(1, "a", n)));
        }
        assert_eq!(told.0.len(), TOLD_MAX);
        assert!(!told.is_first(difference(1, "a", 1)));
        assert!(told.is_first(difference(1, "a", 0)), "the oldest was forgotten");
    }

    #[test]
    fn a_note_names_both_sizes_and_which_one_counts() {
        let key = Key::new("db").unwrap();
        let (three, four) = (View::Buckets { per: 3, buckets: 1 }, View::Slots { slots: 4 });
        let stored = note(&key, four, View::Slots { slots: 3 }, true);
        assert_eq!(stored.message, "`db` has the stored size 3, which replaces the given size 4");
        assert_eq!((stored.stored.as_deref(), stored.followed), (Some("3"), None));
        let followed = note(&key, four, three, false);
        assert_eq!(
            followed.message,
            "`db` is in use with the size 3x1, but this request passes the size 4"
        );
    }
}
