//! Converts between names and uids of users.

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
pub(crate) fn in_message(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 0 { named(part) } else { part.to_owned() }).join("`")
}

fn named(text: &str) -> String {
    rewrite(text, "uid ", |before, after| {
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (digits, rest) = after.split_at(digits);
        let uid = digits.parse().ok().filter(|_| !before.ends_with(char::is_alphanumeric))?;
        Some(name(uid)).filter(|name| name != digits).map(|name| name + rest)
    })
}

/// Replaces a mark and the text after it, up to the next mark, wherever `new` returns other words,
/// for the result before the mark and the text after it.
pub(crate) fn rewrite(
    text: &str,
    mark: &str,
    new: impl Fn(&str, &str) -> Option<String>,
) -> String {
    let mut parts = text.split(mark);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, after| match new(&before, after) {
        Some(words) => before + &words,
        None => before + mark + after,
    })
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
