//! Starts a daemon, one client at a time.
//!
//! Of all clients that find no daemon, the holder of `start.lock` starts one; the kernel frees the
//! lock if the holder dies. It only prevents a herd of daemons: the daemon's own instance lock
//! ensures that just one runs. Because a holder may be stopped, clients that have waited for a
//! while take the next lock (`start.lock.1` …).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use canal_protocol::place::{Place, Rule};
use canal_sys::detach;
use canal_sys::detach::{GAVE_WAY, Started};
use canal_sys::dir::open_lock;
use canal_sys::process::Activity;
use canal_sys::process::user::FilesOf;
use canal_text::duration::stated;

use super::program;
use super::starts::{Starts, log_of};
use crate::client::connection::connect::{connect_if_running, pid_in, recorded_pid};
use crate::client::connection::silence::{Limits, Owed};
use crate::client::connection::stream::{Connection, activity};
use crate::client::{ClientError, Options, Result};

/// The PATH of the daemon, independent of the PATH of its starter.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables for tests and operators that the daemon inherits.
const PASSED_ON: [&str; 5] =
    ["CANAL_LOG", "CANAL_KERNEL", "CANAL_FAULT", "CANAL_SNAPSHOT_BATCHES", "RUST_BACKTRACE"];

/// How long a client keeps the start lock if its daemon came up but does not listen. That daemon
/// lost against a running one that has yet to create its socket again.
const LOST_PAUSE: Duration = Duration::from_millis(50);

/// How many holders of start locks can be stopped before clients can no longer start a daemon.
const LOCKS_MAX: u128 = 5;

/// The outcome of an attempt to start a daemon.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// A daemon listens that another client started.
    Connected(Connection),
    /// The daemon was started, and listens.
    Up(Connection),
    /// The daemon was started, but does not listen yet.
    Started,
    /// Another client, which holds this lock, will start a daemon.
    Left(PathBuf),
}

/// Starts a daemon unless another client is doing so, and connects to it. The caller has `waited`
/// for other clients to start one.
pub(crate) fn attempt(
    place: &Place,
    options: &Options,
    waited: Duration,
    starts: &mut Starts,
) -> Result<Attempt> {
    let _files = FilesOf::owner_of(&place.dir);
    let path = lock_path(place, options.answer, waited);
    let lock = open_lock(&path)
        .map_err(|error| ClientError::Place(format!("{}: {error}", path.display())))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(Attempt::Left(path)),
        Err(error) => {
            return Err(ClientError::Place(format!("{}: flock(2): {error}", path.display())));
        }
    }
    // The previous holder of the lock may have started a daemon since the first attempt.
    if let Some(connection) = connect_if_running(place, options)? {
        return Ok(Attempt::Connected(connection));
    }
    let program = program::find(options.program.as_deref())?;
    let log = log_of(place);
    starts.begin(place)?;
    let limits = Limits { idle: options.up, ..Limits::from(options) };
    let reported = detach::start(&program, &argv(place), &environment(), Some(&log))
        .and_then(|mut started| {
            let reported = report_of(&mut started, limits, &lock);
            starts.is_process(started.into_process());
            reported
        })
        .map_err(|error| {
            ClientError::Start(format!("cannot start {}: {error}", program.display()))
        })?;
    match reported.trim() {
        "" => {}
        GAVE_WAY => starts.gave_way(),
        error => return Err(ClientError::Start(error.to_owned())),
    }
    if let Some(connection) = connect_if_running(place, options)? {
        return Ok(Attempt::Up(connection));
    }
    thread::sleep(LOST_PAUSE);
    Ok(Attempt::Started)
}

/// Starts a daemon in the background, with these arguments, that replaces the running one. Waits
/// until the new daemon serves or has ended.
///
/// # Errors
/// The new daemon could not replace the running one, which still runs unless the error states
/// otherwise.
pub fn replace_daemon(place: &Place, program: &Path, arguments: Vec<OsString>) -> Result<()> {
    let program = program::find(Some(program))?;
    let argv = [argv(place), vec!["--replace".into()], arguments].concat();
    // The caller is an operator, whose engine it is.
    let engine = std::env::var_os("CANAL_ENGINE").map(|url| ("CANAL_ENGINE".into(), url));
    let environment: Vec<_> = environment().into_iter().chain(engine).collect();
    let report = || {
        let _files = FilesOf::owner_of(&place.dir);
        let mut started = detach::start(&program, &argv, &environment, Some(&log_of(place)))?;
        loop {
            if let Some(report) = started.report_within(Duration::from_secs(60))? {
                return Ok(report);
            }
        }
    };
    let report = report().map_err(|error: io::Error| {
        ClientError::Start(format!("cannot start {}: {error}", program.display()))
    })?;
    match report.trim() {
        "" => Ok(()),
        error => Err(ClientError::Start(error.to_owned())),
    }
}

/// Waits for the report of a started daemon. If that takes long, writes the daemon's pid to the
/// lock, so that clients that wait for the lock know the daemon.
fn report_of(started: &mut Started, limits: Limits, lock: &File) -> io::Result<String> {
    let mut owed = Owed::new(limits);
    let mut named = false;
    loop {
        let patience = owed.patience();
        if let Some(report) = started.report_within(patience)? {
            if named {
                // An older pid in the lock delays other clients by a minute at most.
                let _ = lock.set_len(0);
            }
            return Ok(report);
        }
        if let Some(pid) = started.pid().filter(|_| !named) {
            // A full disk must not prevent the start.
            named = lock.write_all_at(format!("{pid}\n").as_bytes(), 0).is_ok();
        }
        // A process without a pid has not run yet, because it waits for a processor.
        let doing = || started.pid().map_or(Activity::Busy, |pid| activity(Some(pid)));
        if owed.grow(patience, doing) {
            let pid = started.pid().map_or_else(String::new, |pid| format!("pid {pid} "));
            let time = stated(Duration::from_secs(owed.silent().as_secs()));
            let text = format!("{pid}is not ready after {time}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
}

/// The activity of the daemon that is starting: the one that has the instance lock, or the one that
/// the holder of the start lock `left` waits for.
pub(crate) fn activity_of_coming(place: &Place, left: Option<&Path>) -> Activity {
    let pids = [recorded_pid(place), left.and_then(pid_in)];
    let busy = pids.into_iter().flatten().any(|pid| activity(Some(pid)) == Activity::Busy);
    if busy { Activity::Busy } else { Activity::Idle }
}

/// The start lock to take after waiting for `waited`. A client moves to the next lock each time a
/// holder has used up its time to start a daemon, which is half of the time that a daemon may take
/// to answer.
fn lock_path(place: &Place, answer: Duration, waited: Duration) -> PathBuf {
    let each_ms = (answer.as_millis() / 2).max(1);
    match (waited.as_millis() / each_ms).min(LOCKS_MAX - 1) {
        0 => place.dir.join("start.lock"),
        number => place.dir.join(format!("start.lock.{number}")),
    }
}

fn argv(place: &Place) -> Vec<OsString> {
    let mut argv: Vec<OsString> = program::ARGV.map(OsString::from).into();
    // Even for a user's own daemon, because `/run/canal` may have been created since the client
    // looked for it.
    if place.rule != Rule::Shared {
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
    use std::time::Instant;

    use nix::sys::signal::Signal;

    use super::*;
    use crate::client::Start;
    use canal_sys::pidfd::Pidfd;
    use canal_sys::rerun::{BOUND, wait_for_lines, wait_until};

    fn place(rule: Rule) -> Place {
        let dir = PathBuf::from("/d");
        Place { socket: dir.join("s"), dir, rule, uid: 0.into(), stores: OnceLock::new() }
    }

    #[test]
    fn the_socket_is_passed_to_the_daemon() {
        for rule in [Rule::PerUser, Rule::Given] {
            let argv = argv(&place(rule));
            assert_eq!(argv, ["canal", "daemon", "--on-demand", "--socket", "/d/s"], "{rule:?}");
        }
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
    fn no_daemon_is_started_where_one_listens_by_now() {
        let dir = tempfile::tempdir().unwrap();
        let dir_path = dir.path().to_owned();
        let place = Place { socket: dir_path.join("s"), dir: dir_path, ..place(Rule::Given) };
        let _daemon = std::os::unix::net::UnixListener::bind(&place.socket).unwrap();
        let program = Some("/nonexistent/canal".into());
        let options = Options { program, ..Options::from(Start::IfNeeded) };
        let attempt = attempt(&place, &options, Duration::ZERO, &mut Starts::default());
        assert!(matches!(attempt, Ok(Attempt::Connected(_))), "{:?}", attempt.err());
    }

    #[test]
    fn the_environment_holds_nothing_of_the_callers_but_switches() {
        for (name, _) in environment() {
            let name = name.into_string().unwrap();
            assert!(name == "PATH" || PASSED_ON.contains(&name.as_str()), "{name}");
        }
    }

    /// Starts a shell in place of a daemon. The argument is `$0` in its script. It may sleep for a
    /// short time and work for a long one.
    fn bring_up(script: &str, argument: &Path, lock: &Path) -> io::Result<String> {
        let limits = Limits::of(Duration::from_millis(100), BOUND);
        let argv = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), argument.as_os_str()];
        let argv = argv.map(OsString::from);
        let mut started = detach::start(Path::new("/bin/sh"), &argv, &[], None)?;
        report_of(&mut started, limits, &open_lock(lock)?)
    }

    #[test]
    fn a_daemon_that_works_is_waited_for_and_named_in_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, up) = (dir.path().join("start.lock"), dir.path().join("up"));
        let starter = thread::spawn({
            let (lock, up) = (lock.clone(), up.clone());
            move || bring_up("while ! [ -e \"$0\" ]; do :; done; echo $$ >&3", &up, &lock)
        });
        // The lock names the daemon once the time of a sleeping one is over.
        let named = wait_for_lines(&lock, 1);
        std::fs::write(&up, "").unwrap();
        assert_eq!(starter.join().unwrap().unwrap(), named);
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), "");
    }

    #[test]
    fn a_daemon_that_sleeps_as_it_comes_up_is_given_up_soon() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("start.lock");
        let before = Instant::now();
        let error = bring_up("exec sleep 600", dir.path(), &lock).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(before.elapsed() < BOUND);
        let daemon = Pidfd::open(pid_in(&lock).unwrap()).unwrap();
        daemon.signal(Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_client_that_waits_for_others_to_start_a_daemon_sees_it_work() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir: dir.path().to_owned(), ..place(Rule::Given) };
        let left = dir.path().join("start.lock");
        let seen = || activity_of_coming(&place, Some(&left));
        assert_eq!(seen(), Activity::Idle);
        let mut daemon = std::process::Command::new("/bin/sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        for name in ["start.lock", "lock"] {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("{}\n", daemon.id())).unwrap();
            wait_until("it is seen", || seen() == Activity::Busy);
            std::fs::remove_file(path).unwrap();
        }
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
}
