//! Finds the daemon of a place, or starts one where none runs.
//!
//! Of all clients that find no daemon, the holder of `start.lock` starts one; the kernel frees the
//! lock if the holder dies. It only prevents a herd of daemons: the daemon's own instance lock
//! ensures that just one runs. Because a holder may be stopped, clients that have waited for a
//! while take the next lock (`start.lock.1` …).
//!
//! Invariants: the client sends nothing to a socket in a directory that another user could have
//! created. It starts at most [`STARTS_MAX`] daemons in a row that do not answer it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use canal_protocol::paths::{Place, Rule};
use canal_sys::pidfd::Pidfd;
use canal_sys::private_dir::{
    DirError, IfMissing, check_closed_to_others, is_private, make_private, open_lock, open_private,
};
use canal_sys::process::Activity;
use canal_sys::process::detach::{self, GAVE_WAY, Started};
use canal_sys::process::user::{FilesOf, geteuid};
use canal_text::duration::stated;
use canal_text::safe_text::one_line;

use super::daemon_program::{self, may_start};
use super::options::{Options, Start};
use super::stream::{
    Connection, activity, connect_if_free, connect_if_running, pid_in, recorded_pid,
};
use super::time_limits::{Limits, Owed};
use crate::client::error::{ClientError, Result};

/// The first pause between two attempts while a daemon starts, which takes about 20 ms.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The longest pause. Thousands of waiters that lost their daemon must leave the next one room to
/// start.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Connects without waiting; `None` if no daemon listens, or if its queue of connections is full.
pub(crate) fn connect_at_once(place: &Place) -> Result<Option<OwnedFd>> {
    if check_dir(place, IfMissing::Fail)? { connect_if_free(place) } else { Ok(None) }
}

/// Connects, and starts a daemon if necessary. `again`: whether a daemon that had answered went
/// away.
pub(crate) fn connect(
    place: &Place,
    options: &Options,
    again: bool,
    starts: &mut Starts,
) -> Result<Connection> {
    if let Some(connection) = look_in(place, options)? {
        return Ok(connection);
    }
    // A daemon that others manage may be restarting.
    let may_restart = again || place.rule == Rule::Shared;
    let wait = if may_restart { options.limits.idle } else { Duration::ZERO };
    let may_start = options.start == Start::IfNeeded && may_start(place);
    if !may_start && wait.is_zero() {
        return Err(ClientError::NoDaemon(place.clone().into()));
    }
    let idle = if may_start { options.up } else { wait };
    let mut owed = Owed::new(Limits { idle, ..options.limits });
    let begun = Instant::now();
    let mut pause = PAUSE_MIN;
    let mut left = None;
    loop {
        let round = Instant::now();
        if may_start && check_dir(place, IfMissing::Create)? {
            let waited = begun.elapsed();
            if let Some(connection) = attempt(place, options, waited, starts, &mut left)? {
                return Ok(connection);
            }
        }
        // The pauses differ, or all clients would connect at the same time.
        let pause_of_own = pause + pause * (std::process::id() % 8) / 8;
        let waited = round.elapsed() + pause_of_own;
        if owed.grow(waited, || activity_of_coming(place, left.as_deref())) {
            return Err(match may_start {
                true => never_up(place, owed.silent, left.as_deref()),
                false => ClientError::NoDaemon(place.clone().into()),
            });
        }
        thread::sleep(pause_of_own);
        pause = (pause * 3 / 2).min(PAUSE_MAX);
        if let Some(connection) = look_in(place, options)? {
            return Ok(connection);
        }
    }
}

/// Connects if a process listens.
fn look_in(place: &Place, options: &Options) -> Result<Option<Connection>> {
    if check_dir(place, IfMissing::Fail)? { connect_if_running(place, options) } else { Ok(None) }
}

/// The error after this time. `left` is the lock of another client that was supposed to start a
/// daemon.
fn never_up(place: &Place, after: Duration, left: Option<&Path>) -> ClientError {
    let time = stated(Duration::from_secs(after.as_secs()));
    let socket = place.socket.display();
    ClientError::Start(match left {
        None => {
            format!("the daemon started, but nothing is listening at {socket} after {time}")
        }
        Some(lock) => format!(
            "nothing is listening at {socket} after {time}: another client is starting a daemon \
             and still holds {}",
            lock.display()
        ),
    })
}

/// Whether the directory of a place exists. It is an error if it cannot be trusted.
///
/// The client cannot know which user to expect as the owner of a shared one (root or a service's
/// user), but refuses a directory in which any user can create another socket.
fn check_dir(place: &Place, missing: IfMissing) -> Result<bool> {
    let checked = match place.rule {
        Rule::Shared => check_closed_to_others(&place.dir),
        Rule::Given | Rule::PerUser => {
            let uid = geteuid().as_raw();
            if is_private(&place.dir, uid) {
                return Ok(true);
            }
            // The user's own directory, which canal created, is made private again.
            let made = if place.is_users_own() { make_private(&place.dir, uid) } else { Ok(()) };
            match made.and_then(|()| open_private(&place.dir, uid, missing)) {
                // Every user has to trust root: this is the directory of a service.
                Err(DirError::Foreign(_, 0, _)) if place.rule == Rule::Given => {
                    check_closed_to_others(&place.dir)
                }
                other => other.map(drop),
            }
        }
    };
    match checked {
        Ok(()) => Ok(true),
        // A daemon never ran.
        Err(DirError::Missing(_)) if missing == IfMissing::Fail => Ok(false),
        Err(error) => Err(ClientError::Place(error.to_string())),
    }
}

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

/// Starts a daemon unless another client is doing so, and connects to it. The caller has `waited`
/// for other clients to start one, and learns which lock is left to another client that will.
/// `None` if no daemon listens yet.
pub(crate) fn attempt(
    place: &Place,
    options: &Options,
    waited: Duration,
    starts: &mut Starts,
    left: &mut Option<PathBuf>,
) -> Result<Option<Connection>> {
    let _files = FilesOf::owner_of(&place.dir);
    let path = lock_path(place, options.limits.idle, waited);
    let lock = open_lock(&path)
        .map_err(|error| ClientError::Place(format!("{}: {error}", path.display())))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            *left = Some(path);
            return Ok(None);
        }
        Err(error) => {
            return Err(ClientError::Place(format!("{}: flock(2): {error}", path.display())));
        }
    }
    // The previous holder of the lock may have started a daemon since the first attempt.
    if let Some(connection) = connect_if_running(place, options)? {
        return Ok(Some(connection));
    }
    *left = None;
    let program = daemon_program::find(options.program.as_deref())?;
    let log = log_of(place);
    starts.begin(place)?;
    let limits = Limits { idle: options.up, ..options.limits };
    let reported = detach::start(&program, &argv(place), &environment(), Some(&log))
        .and_then(|mut started| {
            let reported = report_of(&mut started, limits, &lock);
            starts.last = started.process;
            reported
        })
        .map_err(|error| {
            ClientError::Start(format!("cannot start {}: {error}", program.display()))
        })?;
    match reported.trim() {
        "" => {}
        // It left the place to another daemon, which is not a failure.
        GAVE_WAY => starts.count -= 1,
        error => return Err(ClientError::Start(error.to_owned())),
    }
    let connected = connect_if_running(place, options)?;
    if connected.is_none() {
        thread::sleep(LOST_PAUSE);
    }
    Ok(connected)
}

/// Starts a daemon in the background, with these arguments, that replaces the running one. Waits
/// until the new daemon serves or has ended.
///
/// # Errors
/// The new daemon could not replace the running one, which still runs unless the error states
/// otherwise.
pub fn replace_daemon(place: &Place, program: &Path, arguments: Vec<OsString>) -> Result<()> {
    let program = daemon_program::find(Some(program))?;
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
            let time = stated(Duration::from_secs(owed.silent.as_secs()));
            let text = format!("{pid}is not ready after {time}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
}

/// The activity of the daemon that is starting: the one that has the instance lock, or the one that
/// the holder of the start lock `left` waits for.
fn activity_of_coming(place: &Place, left: Option<&Path>) -> Activity {
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
    let mut argv: Vec<OsString> = daemon_program::ARGV.map(OsString::from).into();
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

/// Chance may kill one daemon, and even the one after it. A third death has a cause that would kill
/// a fourth daemon too.
const STARTS_MAX: u32 = 3;

/// How many bytes from the end of a log are read.
const LOG_BYTES_MAX: u64 = 16 * 1024;

const HINT: &str = "find the reason with `canal doctor`, or run the daemon in the foreground with \
                    `canal daemon -v`";

/// The daemons that a client has started since one last answered it.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    pub(crate) count: u32,
    /// The size of the log before the last start.
    log_bytes: u64,
    last: Option<Pidfd>,
}

impl Starts {
    /// Counts a start that is about to happen.
    ///
    /// # Errors
    /// [`STARTS_MAX`] daemons have died without an answer. The error contains the reason of the
    /// last one.
    fn begin(&mut self, place: &Place) -> Result<()> {
        let log = log_of(place);
        if self.count == STARTS_MAX {
            let how = self.last.as_ref().and_then(Pidfd::wait_status).and_then(ended);
            let how = how.map(|how| format!(" ({how})")).unwrap_or_default();
            let path = log.display();
            let last = match last_line(&log, self.log_bytes) {
                Some(line) => format!("wrote this last line to {path}: {line}"),
                None => format!("wrote nothing to {path}"),
            };
            return Err(ClientError::Start(format!(
                "{STARTS_MAX} daemons started, and each died before it answered; the last \
                 one{how} {last}\nhint: {HINT}"
            )));
        }
        self.count += 1;
        self.log_bytes = log.metadata().map_or(0, |found| found.len());
        self.last = None;
        Ok(())
    }

    /// Records that a daemon has answered this client.
    pub(crate) fn daemon_answered(&mut self) {
        *self = Self::default();
    }
}

/// The log file of a daemon that a client starts.
fn log_of(place: &Place) -> PathBuf {
    place.dir.join("daemon.log")
}

/// The last line in the log of the daemons that clients start at a place.
pub fn last_line_of_log(place: &Place) -> Option<String> {
    last_line(&log_of(place), 0)
}

/// The last line that a daemon wrote to a log after its first `from` bytes. Lines that begin with
/// `hint:` or `note:` explain the line before them, so they do not count.
fn last_line(log: &Path, from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let bytes = file.metadata().ok()?.len();
    // A log that is shorter than before has been restarted.
    let from = if from > bytes { 0 } else { from };
    file.seek(SeekFrom::Start(from.max(bytes.saturating_sub(LOG_BYTES_MAX)))).ok()?;
    let mut text = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().map(one_line).rev();
    lines
        .find(|line| !line.is_empty() && !line.starts_with("hint: ") && !line.starts_with("note: "))
}

/// How a process ended, by its wait status.
fn ended(status: i32) -> Option<String> {
    match WaitStatus::from_raw(Pid::from_raw(0), status).ok()? {
        WaitStatus::Exited(_, code) => Some(format!("exit code {code}")),
        WaitStatus::Signaled(_, signal, _) => Some(format!("killed by {}", Signal::as_str(signal))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Instant;

    use nix::sys::signal::Signal;

    use super::*;
    use crate::client::Start;
    use canal_sys::rerun::{BOUND, wait_for_lines, wait_until};

    #[test]
    fn whoever_started_no_daemon_does_not_say_that_one_was_started() {
        let dir = Path::new("/d");
        let socket = dir.join("s");
        let (dir, rule, stores) = (dir.into(), Rule::Given, OnceLock::new());
        let place = Place { socket, dir, rule, uid: 0.into(), stores };
        let said = |left: Option<&str>| {
            never_up(&place, Duration::from_millis(10_123), left.map(Path::new)).to_string()
        };
        assert_eq!(said(None), "the daemon started, but nothing is listening at /d/s after 10s");
        assert_eq!(
            said(Some("/d/start.lock.4")),
            "nothing is listening at /d/s after 10s: another client is starting a daemon and \
             still holds /d/start.lock.4"
        );
    }

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
        let attempt = attempt(&place, &options, Duration::ZERO, &mut Starts::default(), &mut None);
        assert!(matches!(attempt, Ok(Some(_))), "{:?}", attempt.err());
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
