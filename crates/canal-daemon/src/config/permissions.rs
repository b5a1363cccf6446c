//! Permissions at a daemon that several users share: `[[permission]]` of the configuration.
//!
//! The daemon checks permissions at the request and again at the grant, not when the configuration
//! is read again: by the time of its turn, a waiter may be permitted again. Entries name groups,
//! because every user can be given one.
//!
//! Invariant: root and the user that runs the daemon may do everything. For all other users, only
//! the kernel's peer credentials and the configuration decide; messages never do.

use nix::unistd::Group as SystemGroup;
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::config::values::{NumberOrText, optional_key};
use crate::fault_injection::group_names_hang;
use crate::processes::identify_owner::NOBODY;
use canal_core::Key;
use canal_sys::process::user::found;

/// An action that can be permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Ask for a lock.
    Hold,
    /// Store a size.
    Resize,
    /// Release a hold of another user.
    Force,
    /// Ask with a priority above 0.
    Priority,
}

/// An entry of the configuration: the groups that may do certain actions to a key and the keys
/// below it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Permission {
    /// This key and the keys below it. `None` means all keys.
    #[serde(default, deserialize_with = "optional_key")]
    keys: Option<Key>,
    groups: Vec<Group>,
    #[serde(deserialize_with = "actions")]
    may: Vec<Action>,
}

/// A group of users, and its name in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub gid: u32,
    pub called: String,
}

/// The entries of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Permissions(pub Vec<Permission>);

/// The users who may do something, in addition to root and the user that runs the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Who<'a> {
    Everybody,
    /// The members of these groups. An empty list means no other user.
    Members(Vec<&'a Group>),
}

impl Permissions {
    /// The users who may do this to a key. Among the entries that cover the key and contain the
    /// action, those with the longest key decide.
    pub(crate) fn who(&self, action: Action, key: &Key) -> Who<'_> {
        let concerned = || {
            let entries = self.0.iter().filter(|entry| entry.may.contains(&action));
            entries.filter(|entry| entry.keys.as_ref().is_none_or(|keys| keys.covers(key)))
        };
        let Some(longest) = concerned().map(Permission::length).max() else {
            return match action {
                Action::Hold => Who::Everybody,
                Action::Resize | Action::Force | Action::Priority => Who::Members(Vec::new()),
            };
        };
        let deciding = concerned().filter(|entry| entry.length() == longest);
        Who::Members(deciding.flat_map(|entry| &entry.groups).collect())
    }

    /// The keys below this key with separate entries for `Action::Hold`. A read or write needs
    /// these permissions too, because it locks others out of these keys.
    pub(crate) fn held_apart<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Key> {
        let entries = self.0.iter().filter(|entry| entry.may.contains(&Action::Hold));
        let keys = entries.filter_map(|entry| entry.keys.as_ref());
        keys.filter(move |below| key.covers(below) && *below != key)
    }
}

impl Permission {
    /// Among entries that cover one key, equal lengths mean equal keys.
    fn length(&self) -> usize {
        self.keys.as_ref().map_or(0, |key| key.as_str().len())
    }
}

impl Who<'_> {
    pub(crate) fn includes(&self, groups: impl FnOnce() -> Vec<u32>) -> bool {
        match self {
            Self::Everybody => true,
            Self::Members(of) if of.is_empty() => false,
            Self::Members(of) => {
                let groups = groups();
                of.iter().any(|group| groups.contains(&group.gid))
            }
        }
    }

    /// `only the groups ops and 1001`, for a message to users who are not included.
    pub(crate) fn only(&self, owner: u32) -> String {
        let of = if let Self::Members(of) = self { of.as_slice() } else { &[] };
        match of {
            [] => only_operators(owner),
            [one] => format!("only the group {}", one.called),
            [others @ .., last] => {
                let others: Vec<_> = others.iter().map(|group| group.called.as_str()).collect();
                format!("only the groups {} and {}", others.join(", "), last.called)
            }
        }
    }
}

/// `only root`, `only root and uid 999 (the daemon's user)`.
pub(crate) fn only_operators(owner: u32) -> String {
    match owner {
        0 => "only root".to_owned(),
        _ => format!("only root and uid {owner} (the daemon's user)"),
    }
}

fn actions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Action>, D::Error> {
    let may: Vec<Action> = Vec::deserialize(from)?;
    if may.is_empty() {
        return Err(D::Error::custom("`may` permits nothing; remove the entry"));
    }
    Ok(may)
}

impl<'de> Deserialize<'de> for Group {
    /// Looks up the name of a group. The lookup may wait for a directory service.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumberOrText {
            expected: "the name or number of a group",
            number: |number| {
                let gid = u32::try_from(number);
                let gid = gid.map_err(|_| "a group must be a name or number".to_owned())?;
                checked(Self { gid, called: gid.to_string() })
            },
            text: |name| match look_up(name) {
                Ok(Some(it)) => checked(Self { gid: it.gid.as_raw(), called: name.to_owned() }),
                Ok(None) => Err(format!("there is no group `{name}`")),
                Err(error) => Err(format!("cannot look up the group `{name}`: {error}")),
            },
        })
    }
}

/// A group, unless it is one that nobody can tell from others. The same rule holds for users.
fn checked(group: Group) -> Result<Group, String> {
    if group.gid == NOBODY {
        return Err(format!("group {NOBODY} stands for many groups and cannot get permissions"));
    }
    Ok(group)
}

/// Looks up a group; `None` if there certainly is none of this name.
pub(super) fn look_up(name: &str) -> nix::Result<Option<SystemGroup>> {
    if group_names_hang() {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
    found(SystemGroup::from_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Force, Hold, Priority, Resize};

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn permissions(entries: &[(&str, &[u32], &[Action])]) -> Permissions {
        let entries = entries.iter().map(|(keys, groups, may)| Permission {
            keys: (!keys.is_empty()).then(|| key(keys)),
            groups: groups.iter().map(|gid| Group { gid: *gid, called: gid.to_string() }).collect(),
            may: may.to_vec(),
        });
        Permissions(entries.collect())
    }

    fn may(permissions: &Permissions, groups: &[u32], action: Action, to: &str) -> bool {
        permissions.who(action, &key(to)).includes(|| groups.to_vec())
    }

    #[test]
    fn without_an_entry_everybody_may_hold_and_nobody_may_anything_else() {
        let none = permissions(&[]);
        let elsewhere = permissions(&[("b", &[1], &[Hold, Resize, Force, Priority])]);
        for permissions in [none, elsewhere] {
            let may = |action| may(&permissions, &[1], action, "a");
            assert_eq!([Hold, Resize, Force, Priority].map(may), [true, false, false, false]);
        }
    }

    #[test]
    fn an_entry_is_about_its_key_those_below_it_and_its_actions() {
        let permissions = permissions(&[("a", &[1], &[Hold, Resize])]);
        for (groups, action, to, expected) in [
            (&[1][..], Hold, "a", true),
            (&[1], Hold, "a/b", true),
            (&[2], Hold, "a", false),
            (&[2], Hold, "a/b/c", false),
            (&[2], Hold, "ab", true),
            (&[], Hold, "a", false),
            (&[1], Resize, "a/b", true),
            (&[2], Resize, "a/b", false),
            (&[1], Resize, "ab", false),
            (&[1], Force, "a", false),
        ] {
            assert_eq!(
                may(&permissions, groups, action, to),
                expected,
                "{groups:?} {action:?} {to}"
            );
        }
    }

    #[test]
    fn the_longest_key_that_has_the_action_decides_alone() {
        let permissions = permissions(&[
            ("a/b", &[2], &[Hold]),
            ("", &[1], &[Hold, Resize]),
            ("a", &[3], &[Hold]),
            ("a/b/c", &[4], &[Priority]),
        ]);
        for (to, group) in [("x", 1), ("a", 3), ("a/x", 3), ("a/b", 2), ("a/b/c", 2)] {
            let allowed: Vec<u32> =
                (1..=4).filter(|gid| may(&permissions, &[*gid], Hold, to)).collect();
            assert_eq!(allowed, [group], "{to}");
        }
        // A longer entry without the action leaves the decision to the shorter entries.
        assert!(may(&permissions, &[1], Resize, "a/b/c"));
        assert!(may(&permissions, &[4], Priority, "a/b/c/d"));
        assert!(!may(&permissions, &[4], Priority, "a/b"));
    }

    #[test]
    fn one_matching_group_in_one_entry_is_enough() {
        let permissions =
            permissions(&[("a", &[1, 2], &[Hold]), ("a", &[3], &[Hold]), ("", &[9], &[Hold])]);
        for (groups, expected) in
            [(&[7, 2][..], true), (&[3], true), (&[1, 3], true), (&[7, 8], false), (&[9], false)]
        {
            assert_eq!(may(&permissions, groups, Hold, "a/x"), expected, "{groups:?}");
        }
    }

    #[test]
    fn an_entry_without_groups_is_for_nobody() {
        let permissions = permissions(&[("a", &[], &[Hold])]);
        assert!(!may(&permissions, &[1], Hold, "a"));
        assert_eq!(permissions.who(Hold, &key("a")), Who::Members(Vec::new()));
    }

    #[test]
    fn keys_below_that_have_their_own_entries_are_known() {
        let permissions = permissions(&[
            ("a/b", &[1], &[Hold]),
            ("a/b/c", &[1], &[Resize]),
            ("a", &[1], &[Hold]),
            ("ab", &[1], &[Hold]),
            ("", &[1], &[Hold]),
        ]);
        let apart = |of: &str| {
            let of = key(of);
            permissions.held_apart(&of).map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(apart("a"), ["a/b"]);
        assert!(apart("a/b").is_empty());
    }

    #[test]
    fn a_refusal_names_who_has_the_permission() {
        let permissions = permissions(&[("a", &[1], &[Hold]), ("b", &[1, 2, 3], &[Hold])]);
        let only = |to: &str, owner| permissions.who(Hold, &key(to)).only(owner);
        assert_eq!(only("a", 5), "only the group 1");
        assert_eq!(only("b", 5), "only the groups 1, 2 and 3");
        let resize = permissions.who(Resize, &key("a"));
        assert_eq!(resize.only(0), "only root");
        assert_eq!(resize.only(5), "only root and uid 5 (the daemon's user)");
    }
}
