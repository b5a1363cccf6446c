//! The jobserver of a build: how its program finds one, whether it uses one, and the `MAKEFLAGS`
//! that name one by two descriptors or by a FIFO.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{fstat, stat};
use nix::unistd::{AccessFlags, access};

use canal_lock::client::JobserverEnds;
use canal_lock::client::command_environment::Variables;
use canal_sys::fds;
use canal_sys::process::find_command::lookup;

use super::Command;

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
pub fn finds_fifo(command: &Command) -> bool {
    let tool = words(&command.argv).find(|word| is_tool(word));
    let tool = OsStr::from_bytes(tool.unwrap_or(b"make"));
    let has_feature = |make: PathBuf| {
        let mut bytes = Vec::new();
        let make = File::open(make);
        let read = make.and_then(|file| file.take(MAKE_BYTES_MAX).read_to_end(&mut bytes));
        read.is_ok() && bytes.windows(FEATURE.len()).any(|window| window == FEATURE)
    };
    is_ninja(base_name(tool)) || lookup(tool).map_or(true, has_feature)
}

/// The program that runs a build and closes descriptors that it did not open, such as Python.
pub fn closes_descriptors(command: &Command) -> Option<String> {
    let name = base_name(command.argv.first()?);
    let is_python = name.starts_with(b"python") || name.ends_with(b".py");
    let closes = is_python || [&b"sudo"[..], b"doas"].contains(&name);
    closes.then(|| String::from_utf8_lossy(name).into_owned())
}

/// Whether the command is a sudo that removes the variable by which a build finds the jobserver.
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
    // `make`, `gmake`, `make-4.4`.
    let make = name.strip_prefix(b"g").unwrap_or(name).strip_prefix(b"make");
    make.is_some_and(is_version) || is_ninja(name)
}

fn base_name(word: &OsStr) -> &[u8] {
    word.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
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
