//! The two descriptors and the `MAKEFLAGS` by which a build finds its jobserver.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::Variables;
use crate::client::JobserverEnds;
use crate::sys::fds;

const MAKEFLAGS: &str = "MAKEFLAGS";
/// Cargo looks here first, so a value from an enclosing cargo would hide ours.
const CARGO_MAKEFLAGS: &str = "CARGO_MAKEFLAGS";
/// Written by old versions of make, and read by jobserver clients after `MAKEFLAGS`.
const MFLAGS: &str = "MFLAGS";

/// Lets the command inherit the ends of its jobserver, and names them in its environment.
pub(super) fn inherit(ends: JobserverEnds, at_least: i32) -> io::Result<Variables> {
    let read = fds::inherit(ends.offers, at_least)?;
    let write = fds::inherit(ends.returns, at_least)?;
    let flags = makeflags(&std::env::var_os(MAKEFLAGS).unwrap_or_default(), read, write);
    Ok(vec![(MAKEFLAGS.into(), Some(flags)), (CARGO_MAKEFLAGS.into(), None), (MFLAGS.into(), None)])
}

/// The flags from make's caller, with this jobserver in place of another one. make writes its
/// one-letter flags first, and the variables of its command line last, after `--`.
fn makeflags(before: &OsStr, read: i32, write: i32) -> OsString {
    let words: Vec<&[u8]> =
        before.as_bytes().split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let variables = words.iter().position(|word| *word == b"--").unwrap_or(words.len());
    let (flags, variables) = words.split_at(variables);
    let own = format!("-j --jobserver-fds={read},{write} --jobserver-auth={read},{write}");
    let kept = flags.iter().copied().filter(|word| !is_about_jobs(word));
    let all: Vec<&[u8]> = kept.chain([own.as_bytes()]).chain(variables.iter().copied()).collect();
    OsString::from_vec(all.join(&b' '))
}

fn is_about_jobs(word: &[u8]) -> bool {
    word.starts_with(b"--jobserver")
        || word.starts_with(b"--jobs")
        || word.strip_prefix(b"-j").is_some_and(|count| count.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(before: &str) -> String {
        makeflags(OsStr::new(before), 7, 8).into_string().unwrap()
    }

    const OWN: &str = "-j --jobserver-fds=7,8 --jobserver-auth=7,8";

    #[test]
    fn without_other_flags_only_the_jobserver_is_named() {
        assert_eq!(flags(""), OWN);
        assert_eq!(flags("  "), OWN);
    }

    #[test]
    fn flags_and_variables_of_the_caller_stay_where_make_expects_them() {
        assert_eq!(flags("ks"), format!("ks {OWN}"));
        assert_eq!(flags("k -- CC=clang X=-j4"), format!("k {OWN} -- CC=clang X=-j4"));
        assert_eq!(flags("--no-print-directory"), format!("--no-print-directory {OWN}"));
    }

    #[test]
    fn another_jobserver_and_another_number_of_jobs_are_left_out() {
        assert_eq!(flags("k -j8 --jobserver-auth=3,4"), format!("k {OWN}"));
        assert_eq!(flags(" -j --jobserver-fds=3,4 --jobs=2"), OWN);
        assert_eq!(flags("-j1 --jobserver-auth=fifo:/tmp/x -k"), format!("-k {OWN}"));
    }
}
