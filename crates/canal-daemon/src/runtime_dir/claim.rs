//! The daemon's files. Ensures that one daemon owns them, and that they stay in place.
//!
//! Invariant: while this daemon runs, no other daemon gets past [`Claim::new`] for the same place,
//! whatever happens to the files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, Inotify};

use crate::config::sections_and_defaults::SocketAccess;
use crate::net::listen::Listener;
use crate::runtime_dir::bind_socket::bind;
use crate::runtime_dir::instance_lock::{self, ClaimError, InstanceGuard, is_at};
use canal_protocol::paths::{Place, USUAL_SOCKET};
use canal_sys::private_dir::{self, IfMissing, make_private, open_lock, open_private};
use canal_sys::process::user::geteuid;

/// How often to check files that cannot be watched.
pub(crate) const FILES_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// How long to wait after a removal before files are restored: a running `rm -r` must find nothing
/// new.
pub(crate) const RESTORE_AFTER: Duration = Duration::from_millis(20);

/// How long to wait before files are restored again after a failure.
pub(crate) const RESTORE_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A place that this daemon has claimed, but not opened to clients yet.
#[derive(Debug)]
pub(crate) struct Claim {
    place: Place,
    /// The directory, with a shared lock that makes clean-up programs leave it alone.
    dir: File,
    /// The instance lock.
    lock: File,
    guard: InstanceGuard,
    /// The lock of the state directory, if daemons elsewhere could use it, too.
    state: Option<File>,
    access: SocketAccess,
}

/// The daemon's files, open to clients.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    claim: Claim,
    pub listener: Listener,
    /// The socket's file. `None` if the service manager created it.
    socket: Option<File>,
    watch: Option<Inotify>,
    /// Whether files were removed and could not be created again yet.
    pub restore_failed: bool,
}

/// The file that is locked in the meantime.
const REPLACE: &str = "replace";

/// Marks that the daemon of a place is being replaced. In the meantime, a daemon that a client
/// starts does not take the place.
#[derive(Clone, Debug)]
pub struct Replacing(Arc<File>);

impl Replacing {
    /// Waits until no other process replaces the daemon.
    pub fn begin(place: &Place) -> Result<Self, ClaimError> {
        open_dir(place)?;
        let path = place.dir.join(REPLACE);
        let file = open_lock(&path).map_err(ClaimError::at(&path))?;
        fs2::FileExt::lock_exclusive(&file).map_err(|error| ClaimError::Lock { path, error })?;
        Ok(Self(Arc::new(file)))
    }

    /// Whether a process replaces the daemon.
    fn is_under_way(place: &Place) -> bool {
        let Ok(file) = File::open(place.dir.join(REPLACE)) else { return false };
        let held = fs2::lock_contended_error().kind();
        fs2::FileExt::try_lock_shared(&file).is_err_and(|error| error.kind() == held)
    }

    /// Whether the place is without a daemon. Even then, a daemon that a client starts does not
    /// take it.
    pub fn is_free(&self, place: &Place) -> bool {
        take_lock(place).is_ok()
    }

    /// Releases the mark, after this process has claimed the place or has failed to.
    pub fn end(&self) {
        let _ = fs2::FileExt::unlock(&*self.0);
    }
}

impl Claim {
    /// Claims the place. A daemon that a client started gets it only while no daemon is being
    /// replaced.
    pub(crate) fn new(place: &Place, is_on_demand: bool) -> Result<Self, ClaimError> {
        let dir = open_dir(place)?;
        // Several daemons may share the lock on the directory: it means "in use".
        let not_locked = |error| ClaimError::Lock { path: place.dir.clone(), error };
        fs2::FileExt::try_lock_shared(&dir).map_err(not_locked)?;
        let lock = take_lock(place)?;
        // A replacement begins before the old daemon releases its lock, so this check cannot miss
        // it.
        if is_on_demand && Replacing::is_under_way(place) {
            return Err(ClaimError::Running { socket: place.socket.clone(), pid: None });
        }
        let guard = InstanceGuard::raise(place)?;
        let state =
            instance_lock::take_state(place, &guard.name).map_err(ClaimError::at(&place.dir))?;
        let access = SocketAccess::default();
        let mut claim = Self { place: place.clone(), dir, lock, guard, state, access };
        claim.sign().map_err(ClaimError::at(&lock_path(place)))?;
        Ok(claim)
    }

    /// Writes our pid into the instance lock, for messages, and the name of our socket if it is not
    /// the usual one.
    fn sign(&mut self) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        let mut text = format!("{}\n", std::process::id()).into_bytes();
        let name = self.place.socket.file_name().unwrap_or_default();
        if name != USUAL_SOCKET {
            text.extend([name.as_bytes(), b"\n"].concat());
        }
        self.lock.write_all(&text)
    }

    /// Opens the place to clients, through a new socket or through a socket from the service
    /// manager. A new socket gets this group and mode.
    pub(crate) fn open(
        mut self,
        given: Option<UnixListener>,
        access: SocketAccess,
    ) -> Result<RuntimeDir, ClaimError> {
        self.access = access;
        let (listener, socket) = match given {
            Some(listener) => (listener, None),
            None => bind(&self.place, &self.dir, &self.access).map(|it| (it.0, Some(it.1)))?,
        };
        let listener = Listener::new(listener).map_err(ClaimError::at(&self.place.socket))?;
        let watch = private_dir::inotify().and_then(|it| self.add_watches(&it).map(|()| it));
        if let Err(error) = &watch {
            tracing::warn!(%error, "cannot watch the daemon's directory; checking it every second");
        }
        Ok(RuntimeDir { claim: self, listener, socket, watch: watch.ok(), restore_failed: false })
    }

    /// Reports removals from our directories.
    fn add_watches(&self, inotify: &Inotify) -> io::Result<()> {
        let gone = AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        inotify.add_watch(&self.place.dir, gone)?;
        if self.state.is_some() {
            inotify.add_watch(&self.place.stores().state_dir, gone)?;
        }
        Ok(())
    }
}

impl RuntimeDir {
    /// Becomes readable when something in our directories was removed.
    pub(crate) fn watch(&self) -> Option<impl AsFd> {
        self.watch.as_ref()
    }

    /// Notes for operators.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        let InstanceGuard { name, socket } = &self.claim.guard;
        let of_guard = socket.is_none().then(|| {
            format!("another user has the abstract socket `{name}`, which belongs to this daemon")
        });
        of_guard.into_iter().chain(instance_lock::state_note(&self.claim.place))
    }

    /// Whether one of our files is missing, except for the journal.
    pub(crate) fn is_damaged(&self) -> bool {
        if let Some(watch) = &self.watch {
            // The kind of event does not matter.
            while watch.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
        let Claim { place, lock, state, .. } = &self.claim;
        let state = state.as_ref().is_some_and(|lock| !instance_lock::has_state(place, lock));
        self.has_lost_socket() || state || !is_at(&lock_path(place), lock)
    }

    fn has_lost_socket(&self) -> bool {
        self.socket.as_ref().is_some_and(|ours| !is_at(&self.claim.place.socket, ours))
    }

    /// Restores the missing files, except for the socket: clients must not connect before the
    /// journal exists.
    pub(crate) fn restore(&mut self) -> Result<(), ClaimError> {
        let place = self.claim.place.clone();
        let dir = open_dir(&place)?;
        let failed = ClaimError::at(&place.dir);
        if !is_at(&place.dir, &self.claim.dir) {
            fs2::FileExt::try_lock_shared(&dir).map_err(&failed)?;
            self.claim.dir = dir;
            if InstanceGuard::name(&place).map_err(&failed)? != self.claim.guard.name {
                self.claim.guard = InstanceGuard::raise(&place)?;
            }
        }
        if !is_at(&lock_path(&place), &self.claim.lock) {
            self.claim.lock = take_lock(&place)?;
            self.claim.sign().map_err(ClaimError::at(&lock_path(&place)))?;
        }
        let Claim { guard, state: Some(lock), .. } = &mut self.claim else { return Ok(()) };
        instance_lock::restore_state(&place, &guard.name, lock)
            .map_err(ClaimError::at(&place.stores().state_dir))
    }

    /// Opens the place to clients again, after [`Self::restore`].
    pub(crate) fn reopen(&mut self) -> Result<(), ClaimError> {
        let failed = ClaimError::at(&self.claim.place.socket);
        if self.has_lost_socket() {
            let Claim { place, dir, access, .. } = &self.claim;
            let (listener, socket) = bind(place, dir, access)?;
            self.listener = Listener::new(listener).map_err(&failed)?;
            self.socket = Some(socket);
        }
        if let Some(inotify) = &self.watch {
            self.claim.add_watches(inotify).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes our socket, so that clients do not try to connect to it.
    pub(crate) fn close(&self) {
        if self.socket.is_some() && !self.has_lost_socket() {
            let _ = std::fs::remove_file(&self.claim.place.socket);
        }
    }
}

/// Opens the directory of a place, and creates it if it is missing. If it is the user's own
/// directory, which canal created, makes it private.
fn open_dir(place: &Place) -> Result<File, ClaimError> {
    let uid = geteuid().as_raw();
    if place.is_users_own() {
        make_private(&place.dir, uid)?;
    }
    Ok(File::from(open_private(&place.dir, uid, IfMissing::Create)?))
}

fn lock_path(place: &Place) -> PathBuf {
    place.dir.join("lock")
}

/// Takes the instance lock.
fn take_lock(place: &Place) -> Result<File, ClaimError> {
    let path = lock_path(place);
    loop {
        let mut lock = open_lock(&path).map_err(ClaimError::at(&path))?;
        if let Err(error) = fs2::FileExt::try_lock_exclusive(&lock) {
            if error.kind() != fs2::lock_contended_error().kind() {
                return Err(ClaimError::Lock { path, error });
            }
            let mut text = Vec::new();
            let _ = lock.read_to_end(&mut text);
            return Err(running(place, &text));
        }
        // Another process may have removed the file between the open and the lock.
        if is_at(&path, &lock) {
            return Ok(lock);
        }
    }
}

/// The error for a place whose daemon wrote this text into the instance lock: its pid, and the name
/// of its socket.
fn running(place: &Place, signed: &[u8]) -> ClaimError {
    let mut lines = signed.split(|byte| *byte == b'\n');
    let pid = lines.next().and_then(|pid| std::str::from_utf8(pid).ok()?.trim().parse().ok());
    let name = lines.next().filter(|name| !name.is_empty());
    let name = name.map_or(OsStr::new(USUAL_SOCKET), OsStr::from_bytes);
    // The socket of a daemon that has not signed yet may have any name.
    if pid.is_some() && place.socket.file_name() != Some(name) {
        let theirs = place.dir.join(name);
        return ClaimError::OtherSocket { dir: place.dir.clone(), theirs, pid };
    }
    ClaimError::Running { socket: place.socket.clone(), pid }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::config::permissions::Group;
    use canal_sys::rerun::wait_until;

    /// Claims a place whose claim was dropped. A process that another test starts has a copy of the
    /// claim until it executes its program.
    #[track_caller]
    fn claim_again(place: &Place, is_on_demand: bool) -> Claim {
        let mut claimed = Claim::new(place, is_on_demand);
        wait_until("nothing has the dropped claim", || {
            if matches!(claimed, Err(ClaimError::Running { .. })) {
                claimed = Claim::new(place, is_on_demand);
            }
            !matches!(claimed, Err(ClaimError::Running { .. }))
        });
        claimed.unwrap()
    }

    fn place(dir: &Path) -> Place {
        Place::find(Some(&dir.join("d/canal.sock")), 0).unwrap()
    }

    #[test]
    fn a_second_claim_names_the_first_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let _first = Claim::new(&place, false).unwrap();
        let Err(ClaimError::Running { pid, .. }) = Claim::new(&place, false) else {
            panic!("a second claim was granted");
        };
        assert_eq!(pid, Some(std::process::id()));
    }

    #[test]
    fn a_second_socket_in_a_directory_is_refused_by_the_name_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let _first = Claim::new(&place, false).unwrap();
        let other = Place::find(Some(&dir.path().join("d/other.sock")), 0).unwrap();
        for claimed in [Claim::new(&other, false), Claim::new(&other, true)] {
            let Err(ClaimError::OtherSocket { theirs, pid, .. }) = claimed else {
                panic!("{claimed:?}");
            };
            assert_eq!((theirs, pid), (place.socket.clone(), Some(std::process::id())));
        }
    }

    #[test]
    fn a_new_socket_has_the_mode_and_the_group_that_are_configured() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let gid = canal_sys::process::user::getegid().as_raw();
        let group = Group { gid, called: "ours".to_owned() };
        let access = SocketAccess { group: Some(group), mode: Some(0o660) };
        let home = Claim::new(&place, false).unwrap().open(None, access).unwrap();
        let found = std::fs::symlink_metadata(&place.socket).unwrap();
        assert_eq!((found.mode() & 0o7777, found.gid()), (0o660, gid));
        drop(home);
        let home = claim_again(&place, false).open(None, SocketAccess::default()).unwrap();
        let found = std::fs::symlink_metadata(&place.socket).unwrap();
        assert_eq!(found.mode() & 0o7777, 0o600);
        drop(home);
    }

    #[test]
    fn a_daemon_that_a_client_starts_gives_way_to_one_that_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let old = Claim::new(&place, true).unwrap();
        let replacing = Replacing::begin(&place).unwrap();
        assert!(!replacing.is_free(&place));
        drop(old);
        assert!(matches!(Claim::new(&place, true), Err(ClaimError::Running { .. })));
        wait_until("nothing has the dropped claim", || replacing.is_free(&place));
        let new = claim_again(&place, false);
        replacing.end();
        drop(new);
        claim_again(&place, true);
    }

    #[test]
    fn a_claim_outlives_the_removal_of_all_files() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let first = Claim::new(&place, false).unwrap();
        std::fs::remove_dir_all(&place.dir).unwrap();
        assert!(matches!(Claim::new(&place, false), Err(ClaimError::Running { .. })));
        drop(first);
        claim_again(&place, false);
    }
}
