//! Starting a daemon, one client at a time.
//!
//! Invariant: of all clients that find no daemon, only the one that holds `start.lock` starts one;
//! the kernel frees that lock if its holder dies.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::protocol::place::{Place, Rule};
use crate::sys::detach;
use crate::sys::exec::{Lookup, lookup};

use super::connect::knock;
use super::connection::Connection;
use super::{ClientError, Options};

/// How long the daemon may take to say that it is up.
const UP_MS_MAX: u64 = 10_000;

/// Where the daemon finds what it runs, whatever its starter's PATH is.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Switches for tests and operators that go along.
const PASSED_ON: [&str; 6] = [
    "CANAL_LOG",
    "CANAL_KERNEL",
    "CANAL_FAULT",
    "CANAL_RULES",
    "CANAL_SNAPSHOT_BATCHES",
    "RUST_BACKTRACE",
];

/// How long the right to start is kept by one whose daemon came up and does not listen: it lost
/// against one that runs already and has yet to make its socket again.
const LOST_PAUSE: Duration = Duration::from_millis(50);

/// Starts a daemon unless another client is doing that, and connects to it; `None` if nothing
/// listens yet.
pub(super) fn attempt(place: &Place, options: &Options) -> Result<Option<Connection>, ClientError> {
    let path = place.dir.join("start.lock");
    let lock = open_lock(&path)
        .map_err(|error| ClientError::Place(format!("{}: {error}", path.display())))?;
    if fs2::FileExt::try_lock_exclusive(&lock).is_err() {
        return Ok(None);
    }
    // Whoever held it before us may have started one after we looked.
    if let Some(connection) = knock(place, options)? {
        return Ok(Some(connection));
    }
    let program = program(options.program.as_deref())?;
    let log = place.dir.join("daemon.log");
    let told = detach::start(&program, &argv(place), &environment(), Some(&log), UP_MS_MAX)
        .map_err(|error| {
            ClientError::Start(format!("cannot start {}: {error}", program.display()))
        })?;
    let told = told.trim();
    if !told.is_empty() {
        return Err(ClientError::Start(told.to_owned()));
    }
    let connection = knock(place, options)?;
    if connection.is_none() {
        thread::sleep(LOST_PAUSE);
    }
    Ok(connection)
}

/// The pid that the daemon wrote in its instance lock.
pub(super) fn recorded_pid(place: &Place) -> Option<u32> {
    let text = std::fs::read_to_string(place.dir.join("lock")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// The program that is the daemon: what was said, else this program if it is canal, else the
/// `canal` along PATH.
fn program(said: Option<&Path>) -> Result<PathBuf, ClientError> {
    if let Some(program) = said {
        return Ok(program.to_owned());
    }
    if let Some(this) = this_program() {
        return Ok(this);
    }
    match lookup(OsStr::new("canal")) {
        Lookup::Found(program) => Ok(program),
        Lookup::NotExecutable(program, error) => {
            Err(ClientError::Start(format!("cannot start {}: {error}", program.display())))
        }
        Lookup::NotFound => {
            let text = "cannot start a daemon: no program `canal` along PATH";
            Err(ClientError::Start(text.to_owned()))
        }
    }
}

fn this_program() -> Option<PathBuf> {
    const LINK: &str = "/proc/self/exe";
    let path = std::fs::read_link(LINK).ok()?;
    // The kernel adds ` (deleted)` where the file was replaced by a newer one.
    let name = path.file_name()?.to_str()?;
    match name {
        "canal" => Some(path),
        "canal (deleted)" => {
            let newer = path.with_file_name("canal");
            Some(if newer.exists() { newer } else { PathBuf::from(LINK) })
        }
        _ => None,
    }
}

fn argv(place: &Place) -> Vec<OsString> {
    let mut argv: Vec<OsString> = ["canal", "daemon", "--on-demand"].map(OsString::from).into();
    // A user's own daemon finds its place by the uid, and with it where its state is.
    if place.rule == Rule::Given {
        argv.push("--socket".into());
        argv.push(place.socket.clone().into());
    }
    argv
}

fn environment() -> Vec<(OsString, OsString)> {
    let passed_on = PASSED_ON
        .into_iter()
        .filter_map(|name| std::env::var_os(name).map(|value| (name.into(), value)));
    [("PATH".into(), PATH.into())].into_iter().chain(passed_on).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    fn place(rule: Rule) -> Place {
        let dir = PathBuf::from("/d");
        Place { socket: dir.join("s"), dir, rule, stores: OnceLock::new() }
    }

    #[test]
    fn only_a_given_socket_is_passed_to_the_daemon() {
        assert_eq!(argv(&place(Rule::PerUser)), ["canal", "daemon", "--on-demand"]);
        assert_eq!(
            argv(&place(Rule::Given)),
            ["canal", "daemon", "--on-demand", "--socket", "/d/s"]
        );
    }

    #[test]
    fn the_environment_holds_nothing_of_the_callers_but_switches() {
        for (name, _) in environment() {
            let name = name.into_string().unwrap();
            assert!(name == "PATH" || PASSED_ON.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn a_program_that_is_not_canal_is_not_started_as_a_daemon() {
        // This test is such a program.
        assert_eq!(this_program(), None);
        let said = Path::new("/some/canal-of-tests");
        assert_eq!(program(Some(said)).unwrap(), said);
    }
}
