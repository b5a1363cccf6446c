//! Names of users.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nix::unistd::{Uid, User};

thread_local! {
    static KNOWN: RefCell<BTreeMap<u32, String>> = const { RefCell::new(BTreeMap::new()) };
}

/// The name of a user, or the number of one that has no name. Asked of the system only once: it
/// may be a directory service.
pub(crate) fn name(uid: u32) -> String {
    KNOWN.with_borrow_mut(|known| known.entry(uid).or_insert_with(|| ask(uid)).clone())
}

fn ask(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_a_number() {
        assert_eq!(name(0), "root");
        assert_eq!(name(3_999_999_999), "3999999999");
    }
}
