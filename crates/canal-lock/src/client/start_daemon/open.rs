//! Finds the daemon of a place, or starts it.
//!
//! Invariant: the client sends nothing to a socket in a directory that another user could have
//! created.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use canal_sys::process::user::geteuid;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};

use canal_protocol::place::{Place, Rule};
use canal_sys::dir::{
    DirError, IfMissing, is_closed_to_others, is_private, make_private, open_private,
};
use canal_text::duration::stated;

use super::attempt::{self, Attempt};
use super::service_manager::may_start;
use super::starts::Starts;
use crate::client::connection::connect::{connect_if_free, connect_if_running};
use crate::client::connection::silence::{Limits, Owed};
use crate::client::connection::stream::Connection;
use crate::client::{ClientError, Options, Result, Start};

/// The first pause between two attempts while a daemon starts, which takes about 20 ms.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The longest pause. Thousands of waiters that lost their daemon must leave the next one room to
/// start.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// A connection, and whether this client started its daemon.
#[derive(Debug)]
pub(crate) struct Opened {
    pub connection: Connection,
    /// Whether this client started the daemon.
    pub has_started: bool,
}

/// Connects without waiting; `None` if no daemon listens, or if its queue of connections is full.
pub(crate) fn connect_at_once(place: &Place) -> Result<Option<OwnedFd>> {
    match check_dir(place, IfMissing::Fail)? {
        Dir::Missing => Ok(None),
        Dir::Ready => connect_if_free(place),
    }
}

/// Connects for the first time.
pub(crate) fn connect_first(
    place: &Place,
    options: &Options,
    starts: &mut Starts,
) -> Result<Opened> {
    // A daemon that others manage may be restarting.
    let wait = if place.rule == Rule::Shared { options.answer } else { Duration::ZERO };
    connect_within(place, options, wait, starts)
}

/// Connects again, after a daemon that had answered went away.
pub(crate) fn connect_again(
    place: &Place,
    options: &Options,
    starts: &mut Starts,
) -> Result<Connection> {
    connect_within(place, options, options.answer, starts).map(|opened| opened.connection)
}

fn connect_within(
    place: &Place,
    options: &Options,
    wait: Duration,
    starts: &mut Starts,
) -> Result<Opened> {
    match look_in(place, options)? {
        Some(connection) => Ok(Opened { connection, has_started: false }),
        None => wait_for_one(place, options, wait, starts),
    }
}

/// Starts a daemon if allowed, and connects as soon as one listens.
fn wait_for_one(
    place: &Place,
    options: &Options,
    wait: Duration,
    starts: &mut Starts,
) -> Result<Opened> {
    let may_start = options.start == Start::IfNeeded && may_start(place);
    if !may_start && wait.is_zero() {
        return Err(ClientError::NoDaemon(place.socket.clone()));
    }
    let idle = if may_start { options.up } else { wait };
    let mut owed = Owed::new(Limits { idle, ..Limits::from(options) });
    let begun = Instant::now();
    let mut pause = PAUSE_MIN;
    let (mut left, mut has_started) = (None, false);
    loop {
        let round = Instant::now();
        if may_start && check_dir(place, IfMissing::Create)? == Dir::Ready {
            match attempt::attempt(place, options, begun.elapsed(), starts)? {
                Attempt::Connected(connection) => return Ok(Opened { connection, has_started }),
                Attempt::Up(connection) => return Ok(Opened { connection, has_started: true }),
                Attempt::Started => (left, has_started) = (None, true),
                Attempt::Left(lock) => left = Some(lock),
            }
        }
        // The pauses differ, or all clients would connect at the same time.
        let pause_of_own = pause + pause * (std::process::id() % 8) / 8;
        let waited = round.elapsed() + pause_of_own;
        if owed.grow(waited, || attempt::activity_of_coming(place, left.as_deref())) {
            return Err(match may_start {
                true => never_up(place, owed.silent(), left.as_deref()),
                false => ClientError::NoDaemon(place.socket.clone()),
            });
        }
        thread::sleep(pause_of_own);
        pause = (pause * 3 / 2).min(PAUSE_MAX);
        if let Some(connection) = look_in(place, options)? {
            return Ok(Opened { connection, has_started });
        }
    }
}

/// Connects if a process listens.
fn look_in(place: &Place, options: &Options) -> Result<Option<Connection>> {
    if check_dir(place, IfMissing::Fail)? == Dir::Missing {
        return Ok(None);
    }
    connect_if_running(place, options)
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

/// Whether the directory of a place exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dir {
    Ready,
    Missing,
}

fn check_dir(place: &Place, missing: IfMissing) -> Result<Dir> {
    let checked = match place.rule {
        Rule::Shared if is_closed_to_others(&place.dir) => return Ok(Dir::Ready),
        Rule::Shared => check_shared(&place.dir),
        Rule::Given | Rule::PerUser => {
            let uid = geteuid().as_raw();
            if is_private(&place.dir, uid) {
                return Ok(Dir::Ready);
            }
            check_other(place, uid, missing)
        }
    };
    match checked {
        Ok(()) => Ok(Dir::Ready),
        // A daemon never ran.
        Err(DirError::Missing(_)) if missing == IfMissing::Fail => Ok(Dir::Missing),
        Err(error) => Err(ClientError::Place(error.to_string())),
    }
}

/// The error for a directory that is not private. The user's own directory, which canal created, is
/// made private again.
fn check_other(place: &Place, uid: u32, missing: IfMissing) -> Result<(), DirError> {
    if place.is_users_own() {
        make_private(&place.dir, uid)?;
    }
    match open_private(&place.dir, uid, missing) {
        // Every user has to trust root: this is the directory of a service.
        Err(DirError::Foreign(_, 0, _)) if place.rule == Rule::Given => check_shared(&place.dir),
        other => other.map(drop),
    }
}

/// Checks the directory of a daemon that another user runs. The client cannot know which user to
/// expect (root or a service's user), but refuses a directory in which any user can create another
/// socket.
fn check_shared(path: &Path) -> Result<(), DirError> {
    let owned = || path.to_owned();
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::ENOENT => DirError::Missing(owned()),
        Errno::ELOOP => DirError::Symlink(owned()),
        Errno::ENOTDIR => DirError::NotADirectory(owned()),
        other => DirError::Io(owned(), other.into()),
    })?;
    let stat = fstat(&dir).map_err(|error| DirError::Io(owned(), error.into()))?;
    let mode = stat.st_mode & !SFlag::S_IFMT.bits();
    if mode & Mode::S_IWOTH.bits() != 0 {
        return Err(DirError::Open(owned(), mode));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

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
}
