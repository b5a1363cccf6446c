//! The environment of this process, where it lies.
//!
//! Rust's library reads it under a lock and copies all that it looks through. Nothing of canal changes
//! it, and who changes it in a program that uses canal has to know that no other thread reads it, not
//! even a C library.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

unsafe extern "C" {
    /// environ(7).
    static environ: *const *const libc::c_char;
}

/// The value of a variable; of several of one name the first, as getenv(3) says.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    entries().find_map(|entry| {
        let rest = after(entry, name.as_bytes())?;
        // SAFETY: `rest` is within a string that stands in the environment.
        let value = unsafe { CStr::from_ptr(rest) }.to_bytes().strip_prefix(b"=")?;
        Some(OsStr::from_bytes(value).to_owned())
    })
}

/// The entries whose name is none of these, in order, as they stand in the environment; with room for a
/// few more. One without `=` is all name.
pub(super) fn without<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
) -> Vec<*const libc::c_char> {
    let mut kept = Vec::with_capacity(entries().count() + ROOM);
    let is_other = |entry: &_| names.clone().all(|name| after(*entry, name.as_bytes()).is_none());
    kept.extend(entries().filter(is_other));
    kept
}

/// How many entries more there is room for: those of canal's own, and the end.
const ROOM: usize = 9;

/// All entries, as they stand there.
fn entries() -> impl Iterator<Item = *const libc::c_char> {
    // SAFETY: nobody changes it meanwhile (see above).
    let mut next = unsafe { environ };
    std::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: it is a vector that ends with a null, which we have not passed.
        let entry = unsafe { *next };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the vector goes on: this was not its end.
        next = unsafe { next.add(1) };
        Some(entry)
    })
}

/// What follows the name of an entry, from its `=` on or its end, if that is the name.
fn after(entry: *const libc::c_char, name: &[u8]) -> Option<*const libc::c_char> {
    let mut rest = entry;
    for byte in name {
        // SAFETY: an entry is a string, of which no byte so far was the end: a name has no NUL.
        if unsafe { *rest.cast::<u8>() } != *byte {
            return None;
        }
        // SAFETY: likewise.
        rest = unsafe { rest.add(1) };
    }
    // SAFETY: at most the end of the string.
    let ends = matches!(unsafe { *rest.cast::<u8>() }, 0 | b'=');
    ends.then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_what_the_library_says_it_is() {
        assert!(std::env::vars_os().count() > 1);
        for (name, value) in std::env::vars_os() {
            let name = name.to_str().unwrap();
            assert_eq!(variable(name), Some(value), "{name}");
            assert_eq!(
                variable(&name[..name.len() - 1]),
                std::env::var_os(&name[..name.len() - 1])
            );
        }
        assert_eq!(variable("CANAL_NO_SUCH_VARIABLE"), None);
        assert_eq!(variable(""), None);
    }

    #[test]
    fn a_name_is_a_whole_one() {
        for (entry, name, rest) in [
            (c"A=b", "A", Some("=b")),
            (c"A=", "A", Some("=")),
            (c"A", "A", Some("")),
            (c"AB=c", "A", None),
            (c"A=b", "AB", None),
            (c"", "A", None),
            (c"=b", "A", None),
        ] {
            // SAFETY: within a string that is still there.
            let found = after(entry.as_ptr(), name.as_bytes())
                .map(|rest| unsafe { CStr::from_ptr(rest) }.to_str().unwrap());
            assert_eq!(found, rest, "{entry:?} {name}");
        }
    }
}
