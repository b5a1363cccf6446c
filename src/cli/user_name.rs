//! Converts between names and uids of users.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nix::unistd::{Uid, User};

thread_local! {
    static KNOWN: RefCell<BTreeMap<u32, String>> = const { RefCell::new(BTreeMap::new()) };
}

/// The name of a user, or the uid if there is no name. The system is asked only once, because it
/// may query a directory service.
pub(crate) fn name(uid: u32) -> String {
    KNOWN.with_borrow_mut(|known| known.entry(uid).or_insert_with(|| ask(uid)).clone())
}

fn ask(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}

/// The uid of a user, from a name or a number.
pub(crate) fn uid(text: &str) -> Result<u32, String> {
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => text.parse().map_err(|_| "there is no such user".to_owned()),
        Err(error) => text.parse().map_err(|_| format!("cannot look up users: {}", error.desc())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_a_number() {
        assert_eq!(name(0), "root");
        assert_eq!(name(3_999_999_999), "3999999999");
        assert_eq!(uid("root"), Ok(0));
        assert_eq!(uid("3999999999"), Ok(3_999_999_999));
        for text in ["", "no such user", "-1", "4294967296"] {
            assert_eq!(uid(text), Err("there is no such user".to_owned()), "{text}");
        }
    }
}
