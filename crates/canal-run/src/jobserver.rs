//! The `MAKEFLAGS` by which a build finds its jobserver: by two descriptors, or by the name of a
//! FIFO.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::sys::stat::{fstat, stat};
use nix::unistd::{AccessFlags, access};

use canal_lock::client::JobserverEnds;
use canal_lock::client::environment::Variables;
use canal_sys::fds;

const MAKEFLAGS: &str = "MAKEFLAGS";
/// Cargo looks here first, so a value from an enclosing cargo would hide ours.
const CARGO_MAKEFLAGS: &str = "CARGO_MAKEFLAGS";
/// Written by old versions of make, and read by jobserver clients after `MAKEFLAGS`.
const MFLAGS: &str = "MFLAGS";

/// Lets the command inherit the ends of its jobserver, and names them in its environment.
pub(super) fn inherit(ends: JobserverEnds, at_least: i32) -> io::Result<Variables> {
    let path = ends.path.as_ref().filter(|path| leads_here(path, &ends));
    let name = path.map(|path| path.display().to_string());
    // Open in the command, so that a FIFO keeps its tokens while no daemon runs.
    let read = fds::inherit(ends.offers, at_least)?;
    let own = match name {
        Some(path) => format!("-j --jobserver-auth=fifo:{path}"),
        None => {
            let write = fds::inherit(ends.returns, at_least)?;
            format!("-j --jobserver-fds={read},{write} --jobserver-auth={read},{write}")
        }
    };
    let flags = makeflags(&std::env::var_os(MAKEFLAGS).unwrap_or_default(), &own);
    Ok(vec![(MAKEFLAGS.into(), Some(flags)), (CARGO_MAKEFLAGS.into(), None), (MFLAGS.into(), None)])
}

/// Whether the build can open the FIFO by this path. The daemon may see other mounts. Not all
/// clients of jobservers read quoted characters.
fn leads_here(path: &Path, ends: &JobserverEnds) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,@%=".contains(byte);
    let same = |path: &Path| {
        let (there, here) = (stat(path).ok()?, fstat(&ends.offers).ok()?);
        Some((there.st_dev, there.st_ino) == (here.st_dev, here.st_ino))
    };
    path.as_os_str().as_bytes().iter().all(is_plain)
        && same(path) == Some(true)
        && access(path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
}

/// The flags from make's caller, with this jobserver in place of another one. make writes its
/// one-letter flags first, and the variables of its command line last, after `--`.
fn makeflags(before: &OsStr, own: &str) -> OsString {
    let words: Vec<&[u8]> =
        before.as_bytes().split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let variables = words.iter().position(|word| *word == b"--").unwrap_or(words.len());
    let (flags, variables) = words.split_at(variables);
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
        makeflags(OsStr::new(before), OWN).into_string().unwrap()
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
