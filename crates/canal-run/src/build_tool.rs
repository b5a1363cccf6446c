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

/// The one-letter options of sudo that take no value.
const SUDO_FLAGS: &[u8] = b"ABbEeHiKklNnPSsVv";

/// Whether the programs of a build find a jobserver by the name of a FIFO: the make or ninja of the
/// command line, otherwise the make in the PATH. Without any make, cargo and ninja do.
#[must_use]
pub fn finds_fifo(command: &Command) -> bool {
    let tool = words(&command.argv).find(|word| is_tool(word));
    let tool = OsStr::from_bytes(tool.unwrap_or(b"make"));
    match lookup(tool) {
        _ if is_ninja(base_name(tool)) => true,
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
    let is_python = name.starts_with(b"python") || name.ends_with(b".py");
    let closes = is_python || [&b"sudo"[..], b"doas"].contains(&name);
    closes.then(|| String::from_utf8_lossy(name).into_owned())
}

/// Whether the command is a sudo that removes the variable by which a build finds the jobserver.
#[must_use]
pub fn removes_variable(command: &Command) -> bool {
    let keeps = |word: &[u8]| match word.strip_prefix(b"--preserve-env") {
        Some(b"") => true,
        Some(names) => names[1..].split(|byte| *byte == b',').any(|name| name == b"MAKEFLAGS"),
        None => has_flag(word, b'E', SUDO_FLAGS),
    };
    let is_sudo = |word: &OsString| base_name(word) == b"sudo";
    let mut options = command.argv.iter().map(|word| word.as_bytes()).take_while(|it| !is_tool(it));
    command.argv.first().is_some_and(is_sudo) && !options.any(keeps)
}

/// Whether a word of one-letter options has this one. `flags` take no value, so that others can
/// follow in the same word.
fn has_flag(word: &[u8], flag: u8, flags: &[u8]) -> bool {
    let letters = word.strip_prefix(b"-").filter(|rest| !rest.starts_with(b"-"));
    letters.is_some_and(|letters| {
        let last = letters.iter().find(|it| **it == flag || !flags.contains(it));
        last == Some(&flag)
    })
}

/// The make or ninja of a command line, and its option or `MAKEFLAGS` for a number of jobs. With
/// that, the program ignores the jobserver.
#[must_use]
pub fn number_of_jobs(argv: &[OsString]) -> Option<(String, String)> {
    let words: Vec<&[u8]> = words(argv).collect();
    let (before, after) = words.split_at(words.iter().position(|word| is_tool(word))?);
    let (tool, options) = after.split_first()?;
    let sets = |word: &&&[u8]| word.strip_prefix(b"MAKEFLAGS=").is_some_and(is_number_of_jobs);
    let jobs = before.iter().find(sets).or_else(|| {
        options.iter().take_while(|word| **word != b"--").find(|word| is_number_of_jobs(word))
    })?;
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    Some((text(base_name(OsStr::from_bytes(tool))), text(jobs)))
}

/// The words of a command line, and those of a script after `-c` or `-ec`.
fn words(argv: &[OsString]) -> impl Iterator<Item = &[u8]> {
    let is_script = |at: usize| at > 0 && has_flag(argv[at - 1].as_bytes(), b'c', b"elux");
    argv.iter().enumerate().flat_map(move |(at, word)| {
        let word = word.as_bytes();
        word.split(move |byte| is_script(at) && b" \t\n;&|()'\"".contains(byte))
    })
}

fn is_tool(word: &[u8]) -> bool {
    let name = base_name(OsStr::from_bytes(word));
    is_make(name) || is_ninja(name)
}

fn base_name(word: &OsStr) -> &[u8] {
    word.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// `make`, `gmake`, `make-4.4`.
fn is_make(name: &[u8]) -> bool {
    name.strip_prefix(b"g").unwrap_or(name).strip_prefix(b"make").is_some_and(is_version)
}

/// `ninja`, `ninja-1.13`, and `ninja-build`, its name on Fedora.
fn is_ninja(name: &[u8]) -> bool {
    name.strip_prefix(b"ninja").is_some_and(|rest| rest == b"-build" || is_version(rest))
}

fn is_version(rest: &[u8]) -> bool {
    rest.iter().all(|byte| b"-.0123456789".contains(byte))
}

fn is_number_of_jobs(word: &[u8]) -> bool {
    word == b"--jobs" || word.starts_with(b"--jobs=") || has_flag(word, b'j', FLAGS)
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
            (&["ninja-build", "-vj1"], "ninja-build", "-vj1"),
            (&["sh", "-c", "cd x && make all -j; true"], "make", "-j"),
            (&["bash", "-ec", "ninja-1.13 '-j2'"], "ninja-1.13", "-j2"),
            (&["env", "MAKEFLAGS=-j8", "make"], "make", "MAKEFLAGS=-j8"),
            (&["sh", "-c", "MAKEFLAGS=-sj8 make"], "make", "MAKEFLAGS=-sj8"),
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
            &["ninjatracing", "-j8"],
            &["env", "MAKEFLAGS=-s", "make", "MAKEFLAGS=-j8"],
            &["./build.sh", "-j8"],
            &["sh", "-c", "make all"],
            &[],
        ] {
            assert_eq!(jobs(line), None, "{line:?}");
        }
    }

    #[test]
    fn sudo_keeps_the_variable_only_if_an_option_of_its_own_says_so() {
        for (line, removes) in [
            (&["sudo", "make"][..], true),
            (&["sudo", "MAKEFLAGS=-s", "make"], true),
            (&["sudo", "--preserve-env=PATH,CC", "make"], true),
            (&["sudo", "-u", "build", "make", "-E", "x:"], true),
            (&["/usr/bin/sudo", "-nE", "make"], false),
            (&["sudo", "-u", "build", "--preserve-env", "make"], false),
            (&["sudo", "--preserve-env=PATH,MAKEFLAGS", "make"], false),
            (&["make", "sudo"], false),
        ] {
            let argv = line.iter().map(OsString::from).collect();
            let command = Command { file: line[0].into(), argv };
            assert_eq!(removes_variable(&command), removes, "{line:?}");
        }
    }
}
