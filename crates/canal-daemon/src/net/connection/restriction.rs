//! The actions that a restricted connection may still take.
//!
//! Invariant: a connection never regains what a restriction removed.

use canal_core::Key;
use canal_protocol::WireItem;

/// How many times a connection may be restricted.
const RESTRICTIONS_MAX: usize = 16;

/// The keys under which a connection may ask for leases over nodes. If there are several `Restrict`
/// calls, all of them apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restriction {
    each: Vec<Vec<Key>>,
}

impl Restriction {
    /// Whether each of these keys equals, or is below, a key of each restriction. A restriction
    /// without keys allows every key.
    pub(crate) fn allows(&self, items: &[WireItem]) -> bool {
        self.each.iter().all(|keys| {
            let covers = |item: &WireItem| {
                Key::shared(item.key.clone()).is_ok_and(|key| keys.iter().any(|it| it.covers(&key)))
            };
            keys.is_empty() || items.iter().all(covers)
        })
    }

    /// Whether a key equals, or is below, a key of each restriction.
    pub(crate) fn allows_key(&self, key: &Key) -> bool {
        self.each.iter().all(|keys| keys.is_empty() || keys.iter().any(|it| it.covers(key)))
    }

    /// Adds a restriction to these keys. An empty list allows every key. Returns whether there is
    /// room for it.
    pub(crate) fn add(&mut self, keys: Vec<Key>) -> bool {
        let has_room = self.each.len() < RESTRICTIONS_MAX;
        if has_room {
            self.each.push(keys);
        }
        has_room
    }

    /// The keys, as text for people.
    pub(crate) fn words(&self) -> String {
        let keys = self.each.iter().flatten().map(|key| format!("`{key}`"));
        let keys = keys.collect::<Vec<_>>().join(", ");
        let under = if keys.is_empty() { String::new() } else { format!(" on keys under {keys}") };
        format!("this connection is restricted to node leases{under}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(keys: &[&str]) -> Vec<WireItem> {
        let item = |key: &&str| WireItem { key: (*key).into(), ..WireItem::default() };
        keys.iter().map(item).collect()
    }

    #[test]
    fn each_restriction_counts_and_none_gives_back_what_another_took() {
        let keys = |keys: &[&str]| keys.iter().map(|key| Key::new(key).unwrap()).collect();
        let mut restriction = Restriction { each: vec![Vec::new()] };
        assert!(restriction.allows(&items(&["anything"])));
        restriction.each.push(keys(&["deploy", "db/x"]));
        for (asked, allowed) in [
            (&["deploy"][..], true),
            (&["deploy/web", "db/x"], true),
            (&["deployment"], false),
            (&["db"], false),
            (&["deploy", "other"], false),
            (&["/deploy"], false),
        ] {
            assert_eq!(restriction.allows(&items(asked)), allowed, "{asked:?}");
            let mut each = asked.iter().map(|key| Key::new(key));
            let all = each.all(|key| key.is_ok_and(|key| restriction.allows_key(&key)));
            assert_eq!(all, allowed, "{asked:?}");
        }
        restriction.each.push(keys(&["deploy/web", "other"]));
        assert!(restriction.allows(&items(&["deploy/web/1"])));
        assert!(
            !restriction.allows(&items(&["deploy"])) && !restriction.allows(&items(&["other"]))
        );
    }
}
