//! Converts between names and uids of users.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use itertools::Itertools as _;
use nix::unistd::{Uid, User};

thread_local! {
    static KNOWN: RefCell<BTreeMap<u32, String>> = const { RefCell::new(BTreeMap::new()) };
}

/// The name of a user, or the uid if there is no name. The system is asked only once, because it
/// may query a directory service.
pub(crate) fn name(uid: u32) -> String {
    let ask = || match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    };
    KNOWN.with_borrow_mut(|known| known.entry(uid).or_insert_with(ask).clone())
}

/// A message with the names of users in place of `uid 1001`. The daemon writes numbers, because it
/// must not wait for a directory service. A text between backticks belongs to a user, and stays.
pub(crate) fn in_message(text: &str) -> Cow<'_, str> {
    if !text.contains(UID) {
        return text.into();
    }
    let parts = text.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 0 { named(part) } else { part.to_owned() }).join("`").into()
}

/// Precedes the number of a user in a message.
const UID: &str = "uid ";

fn named(text: &str) -> String {
    let mut parts = text.split(UID);
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) =
            part.split_at(part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len()));
        let name =
            digits.parse().ok().filter(|_| !words.ends_with(char::is_alphanumeric)).map(name);
        match name.filter(|name| name != digits) {
            Some(name) => words += &(name + rest),
            None => words += &[UID, part].concat(),
        }
    }
    words
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
        let text = "uid 0 may not hold `uid 0`: only root and uid 3999999999 may, euid 0, uid";
        let named = "root may not hold `uid 0`: only root and uid 3999999999 may, euid 0, uid";
        assert_eq!(in_message(text), named);
        for text in ["", "no such user", "-1", "4294967296"] {
            assert_eq!(uid(text), Err("there is no such user".to_owned()), "{text}");
        }
    }
}
