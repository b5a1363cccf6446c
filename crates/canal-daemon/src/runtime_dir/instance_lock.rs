//! The locks that keep other daemons away from the daemon's files, and why a daemon does not get
//! them.
//!
//! An abstract socket keeps a second daemon out, even when all files of the first daemon were
//! removed. The state directory of a user has its own lock. It is in the home, which daemons in
//! several /tmp and on several machines can share.
//!
//! Invariants: the abstract socket is bound and never listens. Any process can connect to an
//! abstract socket that listens: other users could fill its queue of connections, and the daemon
//! would have to empty it. A daemon that does not have the lock of the state directory keeps its
//! state next to its socket.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::{AccessFlags, access};

use crate::store::node_identity::machine_name;
use canal_log::disk::leads_to;
use canal_protocol::paths::{BESIDE_SOCKET, Place};
use canal_sys::abstract_socket;
use canal_sys::private_dir::{open_lock, remove_if_there};

/// The errors of a claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another daemon has the place. Its pid may be unknown.
    #[error("a daemon is already running at \
             {socket}{}", .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running { socket: PathBuf, pid: Option<u32> },
    /// The daemon of this directory listens at another socket in it, `theirs`.
    #[error(
        "the daemon in {dir} is listening at {theirs}{}, and a directory can have only one daemon",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    OtherSocket { dir: PathBuf, theirs: PathBuf, pid: Option<u32> },
    /// The socket cannot have the group or the mode that the configuration names.
    #[error("cannot give {socket} {what}: {error}")]
    Access { socket: PathBuf, what: String, error: io::Error },
    /// The file system, or a system call filter, does not support the lock of this file or
    /// directory.
    #[error("{path}: flock(2): {error}")]
    Lock { path: PathBuf, error: io::Error },
    /// The directory cannot be used.
    #[error("{0}")]
    Dir(#[from] canal_sys::private_dir::DirError),
    /// A system call failed at this file.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

impl ClaimError {
    /// Names the file at which a system call failed.
    pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        |error| Self::Io { path: path.to_owned(), error }
    }
}

/// Whether this is still the file at a path.
pub(super) fn is_at(path: &Path, file: &File) -> bool {
    leads_to(path, file).unwrap_or(false)
}

/// The abstract socket.
#[derive(Debug)]
pub(crate) struct InstanceGuard {
    pub name: String,
    /// `None` if another user has the name.
    pub socket: Option<OwnedFd>,
}

impl InstanceGuard {
    /// The name for a user and a place. The directory itself may be removed and created again, so
    /// the name contains its parent and its file name. The parent is given by device and inode
    /// number, because another mount namespace may have another directory under the same path.
    pub(crate) fn name(place: &Place) -> io::Result<String> {
        Self::name_for(place, canal_sys::process::user::geteuid().as_raw())
    }

    fn name_for(place: &Place, uid: u32) -> io::Result<String> {
        let above = place.dir.parent().unwrap_or(Path::new("/"));
        let above = fs::metadata(above)?;
        let mut hash = crc32fast::Hasher::new();
        hash.update(place.dir.file_name().unwrap_or_default().as_encoded_bytes());
        let (device, inode, name) = (above.dev(), above.ino(), hash.finalize());
        Ok(format!("canal-{uid}-{device:x}-{inode:x}-{name:08x}"))
    }

    /// Takes the name, unless a daemon of this user has it.
    pub(crate) fn raise(place: &Place) -> Result<Self, ClaimError> {
        let name = Self::name(place).map_err(ClaimError::at(&place.dir))?;
        for _ in 0..LOOKS {
            match abstract_socket::take(&name) {
                Ok(socket) => return Ok(Self { name, socket: Some(socket) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(ClaimError::at(&place.dir)(error)),
            }
            match abstract_socket::user_of(&name) {
                Ok(Some(uid)) if uid == canal_sys::process::user::geteuid().as_raw() => {
                    return Err(ClaimError::Running { socket: place.socket.clone(), pid: None });
                }
                Ok(Some(_)) => break,
                // The other process has just released the name.
                Ok(None) => std::thread::sleep(LOOK_AGAIN_AFTER),
                Err(error) => {
                    tracing::warn!(%error, name, "cannot find the user of this abstract socket");
                    break;
                }
            }
        }
        // Abstract names have no owner: any user may have taken this name to keep the daemon out.
        Ok(Self { name, socket: None })
    }
}

/// Whether a daemon of this user runs at a place, as far as this network namespace shows. Does not
/// contact the daemon. The name is in no directory, so no user can redirect the check to another
/// place.
pub fn runs(place: &Place, uid: u32) -> bool {
    let user = InstanceGuard::name_for(place, uid).and_then(|it| abstract_socket::user_of(&it));
    user.is_ok_and(|user| user == Some(uid))
}

/// How often the owner of the name is checked.
const LOOKS: u32 = 10;

/// The time between two checks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// The name of the lock. The file contains the machine, the place and the pid of its last owner.
const NAME: &str = "daemon.lock";

/// How long to wait for the previous daemon of this place to exit.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// The time between two attempts.
const ATTEMPT_EVERY: Duration = Duration::from_millis(10);

/// Takes the lock, or marks the place as one whose state is next to the socket. `here` is the name
/// of the place among all places of the machine. Returns `None` without a lock.
///
/// # Errors
/// The directory may contain state that this daemon cannot use now, or the mark cannot be created.
pub(super) fn take_state(place: &Place, here: &str) -> io::Result<Option<File>> {
    let dir = &place.stores().state_dir;
    if !place.is_users_own() || *dir == place.dir {
        return Ok(None);
    }
    let beside = place.dir.join(BESIDE_SOCKET);
    match attempt_usual(place, here)? {
        Ok(lock) => remove_if_there(&beside).map(|_| Some(lock)),
        Err(reason) => {
            // The file counts even without the reason, which may not fit on a full disk.
            let _ = File::create(&beside)?.write_all(reason.as_bytes());
            Ok(None)
        }
    }
}

/// Takes the lock again if the directory or the file of the lock was removed.
///
/// # Errors
/// Another daemon was faster, or the directory cannot be created.
pub(super) fn restore_state(place: &Place, here: &str, lock: &mut File) -> io::Result<()> {
    if !has_state(place, lock) {
        *lock = attempt_usual(place, here)?.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Whether the file of the lock is where other daemons find it.
pub(super) fn has_state(place: &Place, lock: &File) -> bool {
    is_at(&place.stores().state_dir.join(NAME), lock)
}

/// An attempt for the usual state directory of a place.
fn attempt_usual(place: &Place, here: &str) -> io::Result<Result<File, String>> {
    let dir = &place.stores().state_dir;
    attempt(dir, here, machine_name().as_deref(), fs2::FileExt::try_lock_exclusive)
}

/// The lock, or the reason why this daemon cannot have the directory.
fn attempt(
    dir: &Path,
    here: &str,
    machine: Option<&str>,
    lock: fn(&File) -> io::Result<()>,
) -> io::Result<Result<File, String>> {
    let (path, shown) = (dir.join(NAME), dir.display());
    let machine = machine.unwrap_or_default();
    let gives_up = Instant::now() + EXIT_MAX;
    loop {
        let mut file = match writable(dir).and_then(|()| open_lock(&path)) {
            Ok(file) => file,
            Err(error) if is_unusable(&error) => {
                return Ok(Err(format!("cannot use {shown} ({error})")));
            }
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        let locked = lock(&file);
        file.read_to_string(&mut text)?;
        let mut lines = text.lines();
        let mut next = || lines.next().unwrap_or_default();
        let (their_machine, there, pid) = (next(), next(), next());
        let is_other = !their_machine.is_empty() && !machine.is_empty() && their_machine != machine;
        match locked {
            Ok(()) if is_other => {
                return Ok(Err(format!(
                    "{shown} belongs to your daemon on another machine (if that machine is gone, \
                     remove {NAME} in that directory)"
                )));
            }
            // Another process may have removed the file between the open and the lock.
            Ok(()) if !is_at(&path, &file) => {}
            Ok(()) => {
                // Overwrites in place, so that it succeeds on a full disk. The lock counts even if
                // it fails.
                let signed = format!("{machine}\n{here}\n{}\n", std::process::id());
                let written = file.write_all_at(signed.as_bytes(), 0);
                let _ = written.and_then(|()| file.set_len(signed.len() as u64));
                return Ok(Ok(file));
            }
            // A home on a network may have no locks. Several daemons could then use the directory.
            Err(error) if error.kind() != fs2::lock_contended_error().kind() => {
                return Ok(Err(format!("cannot lock {} ({error})", path.display())));
            }
            // The previous daemon of this place is about to exit.
            Err(_) if !is_other && there == here && Instant::now() < gives_up => {
                std::thread::sleep(ATTEMPT_EVERY);
            }
            Err(_) => {
                return Ok(Err(format!("another daemon of yours (pid {pid}) is using {shown}")));
            }
        }
    }
}

/// Creates the directory if it is missing, and checks that files can be created there.
fn writable(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    Ok(access(dir, AccessFlags::W_OK | AccessFlags::X_OK)?)
}

/// Whether no daemon of this user can use the directory. After any other error, it may contain
/// sizes and leases that this daemon must not ignore.
fn is_unusable(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), ReadOnlyFilesystem | PermissionDenied | NotFound | NotADirectory)
}

/// The note for operators, if the state is next to the socket.
pub(super) fn state_note(place: &Place) -> Option<String> {
    let reason = fs::read_to_string(place.dir.join(BESIDE_SOCKET)).ok()?;
    let reason = if reason.is_empty() { "its usual directory is not available" } else { &reason };
    let dir = place.dir.display();
    Some(format!(
        "its state is in {dir}, so stored sizes and leases do not survive a reboot: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use super::*;
    use canal_protocol::paths::{Rule, Stores, USUAL_SOCKET};
    use canal_sys::rerun;

    fn place(dir: &Path) -> Place {
        Place::find(Some(&dir.join("d/canal.sock")), 0).unwrap()
    }

    #[test]
    fn the_name_of_a_daemon_of_this_user_keeps_a_second_one_out() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let guard = InstanceGuard::raise(&place).unwrap();
        assert!(matches!(InstanceGuard::raise(&place), Err(ClaimError::Running { .. })));
        let own = canal_sys::process::user::geteuid().as_raw();
        assert!(runs(&place, own));
        assert!(!runs(&place, own + 1));
        drop(guard);
        // A parallel test that starts a program has a copy of the socket until its exec.
        rerun::wait_until("its name is free", || !runs(&place, own));
    }

    /// An attempt on a file system with locks.
    fn attempt(dir: &Path, here: &str, machine: Option<&str>) -> Result<File, String> {
        super::attempt(dir, here, machine, fs2::FileExt::try_lock_exclusive).unwrap()
    }

    /// The place of a user's own daemon whose state is usually in another directory.
    fn place_with(dir: &Path, state_dir: PathBuf) -> Place {
        let stores = Stores { state_dir, config: Vec::new() };
        let dir = dir.join("tmp");
        fs::create_dir_all(&dir).unwrap();
        Place {
            socket: dir.join(USUAL_SOCKET),
            dir,
            rule: Rule::PerUser,
            uid: 0.into(),
            stores: OnceLock::from(stores),
        }
    }

    #[test]
    fn one_place_of_one_machine_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let attempt = |here, machine| attempt(dir.path(), here, machine);
        let first = attempt("canal-1-a", Some("m")).unwrap();
        let reason = attempt("canal-1-b", Some("m")).unwrap_err();
        assert!(reason.starts_with("another daemon of yours (pid "), "{reason}");
        drop(first);
        let later = |machine| rerun::wait_for("the lock", || attempt("canal-1-b", machine).ok());
        drop(later(Some("m")));
        rerun::wait_until("the reason names the other machine", || {
            let reason = attempt("canal-1-b", Some("other")).unwrap_err();
            reason.contains("belongs to your daemon on another machine")
        });
        // A container may have no id.
        drop(later(None));
        drop(later(Some("other")));
    }

    #[test]
    fn a_daemon_waits_for_the_exit_of_the_one_that_it_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let first = attempt(dir.path(), "here", None).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| attempt(dir.path(), "here", None).is_ok());
            std::thread::sleep(Duration::from_millis(30));
            drop(first);
            assert!(next.join().unwrap());
        });
    }

    #[test]
    fn a_directory_without_locks_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let without = |_: &File| Err(io::Error::from_raw_os_error(libc::ENOLCK));
        let reason = super::attempt(dir.path(), "here", None, without).unwrap().unwrap_err();
        assert!(reason.starts_with("cannot lock /"), "{reason}");
        assert!(reason.contains("daemon.lock (No locks available"), "{reason}");
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let away = place_with(dir.path(), "/proc/nothing/can/be/made/here".into());
        assert!(take_state(&away, "here").unwrap().is_none());
        assert_eq!(away.state_dir(), away.dir);
        let note = state_note(&away).unwrap();
        assert!(note.contains(": cannot use /proc/nothing/"), "{note}");
        let back = place_with(dir.path(), home.clone());
        assert!(take_state(&back, "here").unwrap().is_some());
        assert_eq!(back.state_dir(), home);
        assert_eq!(state_note(&back), None);
        fs::remove_dir_all(&home).unwrap();
        fs::write(&home, "").unwrap();
        assert!(take_state(&back, "here").is_err(), "a file is in its place");
    }

    #[test]
    fn a_mark_that_a_full_disk_has_no_room_for_counts() {
        let dir = tempfile::tempdir().unwrap();
        let place = place_with(dir.path(), dir.path().join("home"));
        fs::write(place.dir.join(BESIDE_SOCKET), "").unwrap();
        assert_eq!(place.state_dir(), place.dir);
        assert!(state_note(&place).unwrap().ends_with(": its usual directory is not available"));
    }

    #[test]
    fn a_lock_whose_directory_was_removed_is_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = place_with(dir.path(), dir.path().join("home"));
        let mut lock = take_state(&place, "here").unwrap().unwrap();
        fs::remove_dir_all(&place.stores().state_dir).unwrap();
        assert!(!has_state(&place, &lock));
        restore_state(&place, "here", &mut lock).unwrap();
        assert!(has_state(&place, &lock));
        let reason = attempt(&place.stores().state_dir, "elsewhere", None).unwrap_err();
        assert!(reason.starts_with("another daemon of yours"), "{reason}");
        fs::remove_dir_all(&place.stores().state_dir).unwrap();
        let _other = {
            fs::create_dir(&place.stores().state_dir).unwrap();
            attempt(&place.stores().state_dir, "elsewhere", None).unwrap()
        };
        let error = restore_state(&place, "here", &mut lock).unwrap_err();
        assert!(error.to_string().starts_with("another daemon of yours"), "{error}");
    }
}
