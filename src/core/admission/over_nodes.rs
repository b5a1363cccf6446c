//! What a request over nodes may ask for, so that the nodes that grant it exclude others.

use crate::core::index::key_tree::conflict;
use crate::core::{
    Item, Key, Mode, OverNodes, Refusal, Request, RequestId, Require, Table, View, Wait,
};

impl Table {
    /// Why a request over nodes is invalid whatever is free, if it is.
    pub(in crate::core) fn fault_over_nodes(&self, asked: &Request) -> Option<Refusal> {
        let over = asked.over_nodes.as_deref()?;
        if !over.is_sorted() || over.spare && asked.wait != Wait::No {
            return Some(Refusal::Invalid { item: 0 });
        }
        let too_large = match over.require {
            Require::Majority => asked.items.iter().position(|item| self.exceeds_majority(item)),
            Require::All | Require::Any => None,
        };
        match too_large {
            Some(item) => Some(Refusal::RequireTooLarge { item }),
            None => self.other_list(asked),
        }
    }

    /// Whether more than half of the nodes do not exclude others from an item. With two slots over
    /// three nodes, three requests find two nodes each. A write does not stop the jobs of the other
    /// nodes.
    fn exceeds_majority(&self, item: &Item) -> bool {
        match item.ask.mode() {
            Mode::Read => false,
            Mode::Write => true,
            Mode::Counted => {
                // What is stored now may be forgotten later: then the own view counts.
                let own = item.ask.stated().unwrap_or_else(|| self.followed(&item.key));
                has_several_slots(own) || self.stored(&item.key).is_some_and(has_several_slots)
            }
        }
    }

    /// That a request over another list of nodes holds or waits for what this one asks for, so that
    /// enough nodes of the two lists need not have one in common.
    fn other_list(&self, asked: &Request) -> Option<Refusal> {
        self.requests_over_nodes().find_map(|(theirs, _)| differs_in_nodes(asked, theirs))
    }

    /// Whether a view cannot be stored because a request that more than half of some nodes have to
    /// grant holds or waits for the key: it counts on a lock of one slot.
    #[must_use]
    pub fn majority_bars_view(&self, key: &Key, view: Option<View>) -> bool {
        view.is_some_and(has_several_slots)
            && self.requests_over_nodes().any(|(asked, list)| {
                let counts = |item: &Item| item.key == *key && item.ask.mode() == Mode::Counted;
                list.require == Require::Majority && asked.items.iter().any(counts)
            })
    }

    fn requests_over_nodes(&self) -> impl Iterator<Item = (&Request, &OverNodes)> {
        let asked = |request: &RequestId| {
            let waiting = self.waiters.get(request).map(|waiter| &*waiter.request);
            waiting.or_else(|| self.hold_of(*request).map(|hold| &*hold.asked))
        };
        let requests = self.over_nodes.iter().filter_map(asked);
        requests.filter_map(|asked| Some((asked, asked.over_nodes.as_deref()?)))
    }
}

/// That two requests over nodes want what excludes each other, and that enough nodes of their two lists need
/// not have one in common.
#[must_use]
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

/// Whether two items can be in each other's way.
pub(in crate::core) fn are_rivals(one: (&Key, Mode), other: (&Key, Mode)) -> bool {
    let counted = one.1 == Mode::Counted && other.1 == Mode::Counted && one.0 == other.0;
    let near = one.0.covers(other.0) || other.0.covers(one.0);
    counted || near && conflict(one.1, other.1)
}
