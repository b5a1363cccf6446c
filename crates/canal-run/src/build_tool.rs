//! The program of a build: how it finds a jobserver, and whether it uses one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Command;
use canal_sys::process::exec::{Lookup, lookup};

/// A feature that GNU make 4.4 introduced, in the list of features that each make contains.
/// Searching for it takes a tenth of the time that `make --version` takes.
const FEATURE: &[u8] = b"jobserver-fifo";

/// How many bytes of a make to search at most.
const MAKE_BYTES_MAX: u64 = 16 << 20;

/// The one-letter options of make and ninja that take no value, so that `-j` can follow in the same
/// word.
const FLAGS: &[u8] = b"bBdeikLmnpqrRsStvw";

/// Whether the programs of a build find a jobserver by the name of a FIFO: the make or ninja of the
/// command line, otherwise the make in the PATH. Without any make, cargo and ninja do.
#[must_use]
pub fn finds_fifo(command: &Command) -> bool {
    let tool = words(&command.argv).find(|word| is_tool(word));
    let tool = OsStr::from_bytes(tool.unwrap_or(b"make"));
    match lookup(tool) {
        _ if base_name(tool) == b"ninja" => true,
        Lookup::Found(make) => has_feature(&make),
        _ => true,
    }
}

fn has_feature(make: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(make).and_then(|file| file.take(MAKE_BYTES_MAX).read_to_end(&mut bytes));
    read.is_ok() && bytes.windows(FEATURE.len()).any(|window| window == FEATURE)
}

/// The program that runs a build and closes descriptors that it did not open, such as Python.
#[must_use]
pub fn closes_descriptors(command: &Command) -> Option<String> {
    let name = base_name(command.argv.first()?);
    let closes = name.starts_with(b"python") || [&b"sudo"[..], b"doas"].contains(&name);
    closes.then(|| String::from_utf8_lossy(name).into_owned())
}

/// Whether the command is a sudo that removes the variable by which a build finds the jobserver.
#[must_use]
pub fn removes_variable(command: &Command) -> bool {
    let keeps = |word: &OsString| {
        let word = word.as_bytes();
        word == b"-E" || word.starts_with(b"--preserve-env") || word.starts_with(b"MAKEFLAGS=")
    };
    let is_sudo = |word: &OsString| base_name(word) == b"sudo";
    command.argv.first().is_some_and(is_sudo) && !command.argv.iter().any(keeps)
}

/// The make or ninja of a command line, and its option for a number of jobs. With that option, the
/// program ignores the jobserver.
#[must_use]
pub fn number_of_jobs(argv: &[OsString]) -> Option<(String, String)> {
    let mut words = words(argv).skip_while(|word| !is_tool(word));
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let tool = text(base_name(OsStr::from_bytes(words.next()?)));
    let jobs = words.take_while(|word| *word != b"--").find(|word| is_number_of_jobs(word))?;
    Some((tool, text(jobs)))
}

/// The words of a command line, and those of a script after `-c`.
fn words(argv: &[OsString]) -> impl Iterator<Item = &[u8]> {
    let is_script = |at: usize| at > 0 && argv[at - 1] == "-c";
    argv.iter().enumerate().flat_map(move |(at, word)| {
        let word = word.as_bytes();
        word.split(move |byte| is_script(at) && b" \t\n;&|()'\"".contains(byte))
    })
}

fn is_tool(word: &[u8]) -> bool {
    let name = base_name(OsStr::from_bytes(word));
    is_make(name) || name == b"ninja"
}

fn base_name(word: &OsStr) -> &[u8] {
    word.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// `make`, `gmake`, `make-4.4`.
fn is_make(name: &[u8]) -> bool {
    let version = name.strip_prefix(b"g").unwrap_or(name).strip_prefix(b"make");
    version.is_some_and(|rest| rest.iter().all(|byte| b"-.0123456789".contains(byte)))
}

fn is_number_of_jobs(word: &[u8]) -> bool {
    if word == b"--jobs" || word.starts_with(b"--jobs=") {
        return true;
    }
    let Some(letters) = word.strip_prefix(b"-").filter(|rest| !rest.starts_with(b"-")) else {
        return false;
    };
    letters.iter().find(|letter| !FLAGS.contains(letter)) == Some(&b'j')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(line: &[&str]) -> Option<(String, String)> {
        number_of_jobs(&line.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_number_of_jobs_is_found_wherever_make_would_read_it() {
        for (line, tool, option) in [
            (&["make", "-j8"][..], "make", "-j8"),
            (&["/usr/bin/gmake", "-C", "x", "-sj", "4"], "gmake", "-sj"),
            (&["nice", "make-4.4", "--jobs=2", "all"], "make-4.4", "--jobs=2"),
            (&["ninja", "-j1"], "ninja", "-j1"),
            (&["sh", "-c", "cd x && make all -j; true"], "make", "-j"),
        ] {
            assert_eq!(jobs(line), Some((tool.to_owned(), option.to_owned())), "{line:?}");
        }
    }

    #[test]
    fn other_words_are_no_number_of_jobs() {
        for line in [
            &["make", "all", "V=-j8"][..],
            &["make", "--", "-j8"],
            &["make", "-fj", "jobs", "--just-print"],
            &["cargo", "build", "-j8"],
            &["cmake", "-j8"],
            &["./build.sh", "-j8"],
            &["sh", "-c", "make all"],
            &[],
        ] {
            assert_eq!(jobs(line), None, "{line:?}");
        }
    }
}
