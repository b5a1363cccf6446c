//! Limits requests over nodes, so that the nodes that grant one request exclude all others.

use crate::index::key_tree::conflict;
use crate::{Item, Key, Mode, Outcome, OverNodes, Refusal, Request, Require, Table, View, Wait};

impl Table {
    /// Why a request over nodes is invalid regardless of what is free; `None` if it is valid.
    pub(crate) fn fault_over_nodes(&self, asked: &Request) -> Option<Refusal> {
        let over = asked.over_nodes.as_deref()?;
        if !over.is_sorted() || over.spare && asked.wait != Wait::No {
            return Some(Refusal::Invalid { item: 0 });
        }
        let is_majority = over.require == Require::Majority;
        let too_large =
            asked.items.iter().position(|item| is_majority && self.exceeds_majority(item));
        let mut others = self.requests_over_nodes();
        let differs = || others.find_map(|(theirs, _)| differs_in_nodes(asked, theirs));
        too_large.map(|item| Refusal::RequireTooLarge { item }).or_else(differs)
    }

    /// Whether a majority of the nodes is not enough to exclude other requests from an item. With
    /// two slots over three nodes, three requests can get two nodes each. A write does not stop
    /// jobs on the other nodes.
    fn exceeds_majority(&self, item: &Item) -> bool {
        match item.ask.mode() {
            Mode::Read => false,
            Mode::Write => true,
            Mode::Counted => {
                // A stored view may be removed later; the request's own view then applies.
                let own = item.ask.stated().unwrap_or_else(|| self.followed(&item.key));
                has_several_slots(own)
                    || self.settings(&item.key).view.is_some_and(has_several_slots)
            }
        }
    }

    /// Why a view cannot be stored: the key is in use as another kind of lock, or by a request for
    /// a majority of nodes, which relies on a lock of one slot.
    pub fn refusal_of_view(&self, key: &Key, view: Option<View>) -> Option<Outcome> {
        let view = view?;
        if let Some(in_use) = self.tree.lock(key).kind.filter(|in_use| *in_use != view.kind()) {
            return Some(Outcome::ResizeRefused { in_use });
        }
        let counts = |item: &Item| item.key == *key && item.ask.mode() == Mode::Counted;
        let bars = |(asked, list): (&Request, &OverNodes)| {
            list.require == Require::Majority && asked.items.iter().any(counts)
        };
        let is_barred = has_several_slots(view) && self.requests_over_nodes().any(bars);
        is_barred.then_some(Outcome::ResizeRefusedOverNodes)
    }

    fn requests_over_nodes(&self) -> impl Iterator<Item = (&Request, &OverNodes)> {
        let requests = self.over_nodes.iter().filter_map(|id| self.request(*id));
        requests.filter_map(|asked| Some((&**asked, asked.over_nodes.as_deref()?)))
    }
}

/// The refusal if two requests over nodes compete, but a sufficient set of one list may share no
/// node with a sufficient set of the other.
pub fn differs_in_nodes(asked: &Request, theirs: &Request) -> Option<Refusal> {
    let (over, list) = (asked.over_nodes.as_deref()?, theirs.over_nodes.as_deref()?);
    let is_any = [over, list].iter().any(|it| it.require == Require::Any);
    if is_any || over.always_meets(list) {
        return None;
    }
    let is_rival = |item: &Item| theirs.items.iter().any(|it| are_rivals(parts(it), parts(item)));
    let item = asked.items.iter().position(is_rival)?;
    Some(Refusal::OtherNodes { item, theirs: list.nodes.clone() })
}

fn has_several_slots(view: View) -> bool {
    view.capacity() > 1
}

fn parts(item: &Item) -> (&Key, Mode) {
    (&item.key, item.ask.mode())
}

/// Whether two items compete: each can block the other, because both are slots of the same key, or
/// one of them is a write and one key covers the other.
pub fn are_rivals(one: (&Key, Mode), other: (&Key, Mode)) -> bool {
    let counted = one.1 == Mode::Counted && other.1 == Mode::Counted && one.0 == other.0;
    let near = one.0.covers(other.0) || other.0.covers(one.0);
    counted || near && conflict(one.1, other.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_keeps_out_all_above_and_below_and_slots_only_those_of_their_key() {
        use Mode::{Counted, Read, Write};
        let rivals = |(one, mode): (&str, Mode), (other, as_): (&str, Mode)| {
            let [one, other] = [one, other].map(|text| Key::new(text).unwrap());
            let forth = are_rivals((&one, mode), (&other, as_));
            assert_eq!(forth, are_rivals((&other, as_), (&one, mode)));
            forth
        };
        assert!(rivals(("a", Write), ("a/b", Read)));
        assert!(rivals(("a/b", Write), ("a", Counted)));
        assert!(rivals(("a", Write), ("a", Write)));
        assert!(rivals(("a", Counted), ("a", Counted)));
        assert!(!rivals(("a", Counted), ("a/b", Counted)));
        assert!(!rivals(("a", Read), ("a/b", Counted)));
        assert!(!rivals(("a/b", Write), ("a/c", Write)));
        assert!(!rivals(("a", Write), ("ab", Read)));
    }
}
