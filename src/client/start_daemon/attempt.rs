//! Starting a daemon, one client at a time.
//!
//! Of all clients that find no daemon, the one that holds `start.lock` starts one, and the kernel
//! frees that lock if its holder dies. This lock only spares the machine a herd of daemons; the
//! daemon's own instance lock ensures that only one daemon runs. A holder may be stopped: clients
//! that have waited for a while take the next lock (`start.lock.1` …), so that one of them starts a
//! daemon.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::protocol::place::{Place, Rule};
use crate::sys::detach;

use super::program;
use crate::client::connection::open::knock;
use crate::client::connection::stream::Connection;
use crate::client::{ClientError, Options};

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

/// How long a client keeps the start lock if its daemon came up and does not listen: that daemon
/// lost against one that already runs and has yet to make its socket again.
const LOST_PAUSE: Duration = Duration::from_millis(50);

/// How many holders of start locks can be stopped before no client starts a daemon any more.
const LOCKS_MAX: u128 = 5;

/// What came of trying to start a daemon.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// One listens.
    Connected(Connection),
    /// One was started, and nothing listens yet.
    Started,
    /// Another client is to start one: it holds this lock.
    Left(PathBuf),
}

/// Starts a daemon unless another client is doing that, and connects to it. The caller has `waited`
/// for others to start one.
pub(crate) fn attempt(
    place: &Place,
    options: &Options,
    waited: Duration,
) -> Result<Attempt, ClientError> {
    let path = lock_path(place, options.answer, waited);
    let lock = open_lock(&path)
        .map_err(|error| ClientError::Place(format!("{}: {error}", path.display())))?;
    if fs2::FileExt::try_lock_exclusive(&lock).is_err() {
        return Ok(Attempt::Left(path));
    }
    // The holder of the lock before this client may have started a daemon since the first attempt.
    if let Some(connection) = knock(place, options)? {
        return Ok(Attempt::Connected(connection));
    }
    let program = program::find(options.program.as_deref())?;
    let log = place.dir.join("daemon.log");
    let reported = detach::start(&program, &argv(place), &environment(), Some(&log), UP_MS_MAX)
        .map_err(|error| {
            ClientError::Start(format!("cannot start {}: {error}", program.display()))
        })?;
    let reported = reported.trim();
    if !reported.is_empty() {
        return Err(ClientError::Start(reported.to_owned()));
    }
    if let Some(connection) = knock(place, options)? {
        return Ok(Attempt::Connected(connection));
    }
    thread::sleep(LOST_PAUSE);
    Ok(Attempt::Started)
}

/// The start lock to take after waiting for `waited`: the next one each time that a holder may take
/// to bring a daemon up, which is half of the time that a daemon may take to answer.
fn lock_path(place: &Place, answer: Duration, waited: Duration) -> PathBuf {
    let each_ms = (answer.as_millis() / 2).max(1);
    match (waited.as_millis() / each_ms).min(LOCKS_MAX - 1) {
        0 => place.dir.join("start.lock"),
        number => place.dir.join(format!("start.lock.{number}")),
    }
}

/// The pid that the daemon wrote in its instance lock.
pub(crate) fn recorded_pid(place: &Place) -> Option<u32> {
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

fn argv(place: &Place) -> Vec<OsString> {
    let mut argv: Vec<OsString> = program::ARGV.map(OsString::from).into();
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
    fn the_next_lock_is_for_those_who_have_waited_for_long() {
        let answer = Duration::from_secs(5);
        let name = |waited_ms| {
            let path = lock_path(&place(Rule::Given), answer, Duration::from_millis(waited_ms));
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let names = [0, 2_499, 2_500, 7_499, 10_000, 1_000_000].map(name);
        let expected = ["", "", ".1", ".2", ".4", ".4"].map(|end| format!("start.lock{end}"));
        assert_eq!(names, expected);
        lock_path(&place(Rule::Given), Duration::ZERO, Duration::from_secs(1));
    }

    #[test]
    fn the_environment_holds_nothing_of_the_callers_but_switches() {
        for (name, _) in environment() {
            let name = name.into_string().unwrap();
            assert!(name == "PATH" || PASSED_ON.contains(&name.as_str()), "{name}");
        }
    }
}
