//! The environment of this process.
//!
//! The program canal reads it where it lies: its `main` promised that nobody changes it
//! ([`begin`](super::startup::begin)). In any other program another thread may change it at any time,
//! under a lock that only Rust's library has, so that it is asked.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::startup::environment_is_fixed;

unsafe extern "C" {
    /// environ(7).
    static environ: *const *const libc::c_char;
}

/// The value of a variable; of several of one name the first, as getenv(3) says.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if !environment_is_fixed() {
        return (!name.is_empty()).then(|| std::env::var_os(name)).flatten();
    }
    // SAFETY: nobody changes it.
    unsafe { variable_there(name) }
}

/// # Safety
/// Nobody changes the environment meanwhile.
unsafe fn variable_there(name: &str) -> Option<OsString> {
    // SAFETY: the caller's promise.
    let mut entries = unsafe { entries() };
    entries.find_map(|entry| {
        let rest = after(entry, name.as_bytes())?;
        // SAFETY: `rest` is within a string that stands in the environment.
        let value = unsafe { CStr::from_ptr(rest) }.to_bytes().strip_prefix(b"=")?;
        Some(OsStr::from_bytes(value).to_owned())
    })
}

/// The environment of another program, as execve(2) takes it but for the null at its end.
#[derive(Default)]
pub(super) struct Entries {
    /// What `pointers` points to, where that is not the environment of this process.
    pub(super) copied: Vec<CString>,
    pub(super) pointers: Vec<*const libc::c_char>,
}

/// The entries whose name is none of these, in order; with room for a few more. In the program canal
/// those without `=`, which are all name, are among them.
pub(super) fn without<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Entries {
    if !environment_is_fixed() {
        return copied_without(names);
    }
    // SAFETY: nobody changes it, as long as the process lives.
    let (all, count) = unsafe { (entries(), entries().count()) };
    let mut pointers = Vec::with_capacity(count + ROOM);
    let is_other = |entry: &_| names.clone().all(|name| after(*entry, name.as_bytes()).is_none());
    pointers.extend(all.filter(is_other));
    Entries { copied: Vec::new(), pointers }
}

fn copied_without<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Entries {
    let is_other = |name: &OsString| names.clone().all(|other| name != other);
    let others = std::env::vars_os().filter(|(name, _)| is_other(name));
    let joined = others.map(|(name, value)| {
        let mut entry = name.into_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        entry
    });
    // None has a NUL: they were strings that end with one.
    let copied: Vec<CString> = joined.filter_map(|entry| CString::new(entry).ok()).collect();
    let mut pointers = Vec::with_capacity(copied.len() + ROOM);
    pointers.extend(copied.iter().map(|entry| entry.as_ptr()));
    Entries { copied, pointers }
}

/// How many entries more there is room for: those of canal's own, and the end.
const ROOM: usize = 9;

/// All entries, as they stand there.
///
/// # Safety
/// Nobody changes the environment until the last of them was used.
unsafe fn entries() -> impl Iterator<Item = *const libc::c_char> {
    // SAFETY: the caller's promise.
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
            let part = &name[..name.len() - 1];
            let whole = (Some(value), (!part.is_empty()).then(|| std::env::var_os(part)).flatten());
            assert_eq!((variable(name), variable(part)), whole, "{name}");
            // SAFETY: no test changes it.
            let there = unsafe { (variable_there(name), variable_there(part)) };
            assert_eq!(there, whole, "{name}");
        }
        for name in ["CANAL_NO_SUCH_VARIABLE", ""] {
            assert_eq!(variable(name), None);
            // SAFETY: as above.
            assert_eq!(unsafe { variable_there(name) }, None);
        }
    }

    #[test]
    fn a_copy_is_what_stands_there_but_for_what_is_left_out() {
        let (first, _) = std::env::vars_os().next().unwrap();
        let left_out = first.to_str().unwrap();
        let copied = copied_without([left_out].into_iter());
        // SAFETY: no test changes it.
        let there =
            unsafe { entries() }.filter(|entry| after(*entry, left_out.as_bytes()).is_none());
        // SAFETY: strings that are still there.
        let text = |entry: *const libc::c_char| unsafe { CStr::from_ptr(entry) }.to_owned();
        let copied: Vec<CString> = copied.pointers.iter().map(|entry| text(*entry)).collect();
        assert_eq!(copied, there.map(text).collect::<Vec<_>>());
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
