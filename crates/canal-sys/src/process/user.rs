//! The users of processes and the owners of files, as the kernel knows them, and the capabilities
//! of this process.
//!
//! A preloaded library (LD_PRELOAD) can replace any function of the C library. That of fakeroot(1)
//! reports that every user is root and owns every file; canal would then look for the user's locks
//! where root's are. So these functions call the kernel without the C library.

use std::path::Path;
use std::{fmt, fs, io};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::{Gid, Pid, Uid, User, setfsgid, setfsuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::child::UserIds;
use crate::kernel::field;
use crate::pidfd::Pidfd;

// The effective and the real user and group.
pub use rustix::process::{getegid, geteuid, getgid, getuid};

/// The result of a lookup of a user or a group by name. In a chroot without /etc/passwd or
/// /etc/group, musl reports ENOENT, which getpwnam(3) and getgrnam(3) list as one of the errors
/// for a name that does not exist.
///
/// # Errors
/// The lookup failed, so it is unknown whether the name exists.
pub fn found<T>(looked_up: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match looked_up {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        other => other,
    }
}

/// While this lives, this thread of root uses and creates files as the owner of a directory would.
#[derive(Debug)]
pub struct FilesOf {
    before: (Uid, Gid),
}

impl FilesOf {
    /// Switches to the owner of the directory. `None` if this process is not root, the directory is
    /// root's, or there is none.
    #[must_use]
    pub fn owner_of(dir: &Path) -> Option<Self> {
        let found = stat(dir).ok().filter(|found| geteuid().is_root() && found.st_uid != 0)?;
        // A change of the user also gives up root's power over files, so the group comes first.
        let gid = setfsgid(Gid::from_raw(found.st_gid));
        Some(Self { before: (setfsuid(Uid::from_raw(found.st_uid)), gid) })
    }
}

impl Drop for FilesOf {
    fn drop(&mut self) {
        setfsuid(self.before.0);
        setfsgid(self.before.1);
    }
}

// Owner and mode of a file, and the other fields of stat(2).
pub use rustix::fs::{Stat, fstat, lstat, stat};

/// Whether this describes a directory.
pub fn is_dir(stat: &Stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

/// Whether this process has both capabilities for reading the environment and the open files of any
/// process: CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH for the modes of the files in /proc.
pub fn may_look_into_others() -> bool {
    let needed = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

/// Makes this process of root a process of another user for good. Of root's capabilities, it and
/// the programs that it executes keep CAP_KILL.
///
/// # Errors
/// This process may not become that user.
pub fn become_user(user: &UserIds) -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // A kernel that does not know a capability cannot give it.
        if capability.bits().count_ones() == 1 && capability != CapabilitySet::KILL {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    prctl::set_keepcaps(true)?;
    user.take_on()?;
    let kill = CapabilitySet::KILL;
    set_capabilities(None, CapabilitySets { effective: kill, permitted: kill, inheritable: kill })?;
    configure_capability_in_ambient_set(kill, true)?;
    prctl::set_no_new_privs()?;
    // A change of user clears it, and gives the files of this process in /proc to root.
    prctl::set_dumpable(true)?;
    Ok(())
}

/// The real user of the process of a pidfd. `None` if the process was reaped or is not visible from
/// here.
pub fn uid_of(pidfd: &Pidfd) -> Option<u32> {
    pidfd.real_uid().or_else(|| uid_by_status(pidfd))
}

/// Reads /proc, for kernels without `PIDFD_GET_INFO`.
pub(super) fn uid_by_status(pidfd: &Pidfd) -> Option<u32> {
    let pid = pidfd.pid().filter(|&pid| pid != 0)?;
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    // The process is not reaped yet, so the pid belonged to it all the time.
    if pidfd.pid() != Some(pid) {
        return None;
    }
    let status = String::from_utf8_lossy(&status);
    field(&status, "Uid:")?.split_whitespace().next()?.parse().ok()
}

/// A process that this one may not signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalRefused {
    /// Its pid.
    pub pid: Pid,
    /// The user that it runs as, if this is known and is the reason.
    pub uid: Option<u32>,
}

impl SignalRefused {
    /// The refusal that the result of a signal shows: EPERM for a process that has not ended.
    pub fn by(result: &io::Result<()>, pid: Pid) -> Option<Self> {
        let is_refused = |error: &io::Error| error.raw_os_error() == Some(libc::EPERM);
        if !result.as_ref().is_err_and(is_refused) {
            return None;
        }
        // It is gone, or another process may have its pid by now.
        let process = Pidfd::open(pid.as_raw().unsigned_abs()).ok().filter(|it| !it.has_ended())?;
        let uid = uid_of(&process).filter(|uid| *uid != getuid().as_raw());
        Some(Self { pid, uid })
    }
}

impl fmt::Display for SignalRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot signal pid {}: ", self.pid)?;
        let Some(uid) = self.uid else { return f.write_str("the system forbids it") };
        match User::from_uid(Uid::from_raw(uid)) {
            Ok(Some(user)) => write!(f, "it runs as {}", user.name),
            Ok(None) | Err(_) => write!(f, "it runs as user {uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_list_of_names_has_no_names() {
        assert_eq!(found::<u32>(Err(Errno::ENOENT)), Ok(None));
        assert_eq!(found::<u32>(Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(found(Ok(Some(1))), Ok(Some(1)));
    }

    #[test]
    fn a_refusal_names_the_user_where_that_is_the_reason() {
        let text = |uid| SignalRefused { pid: Pid::from_raw(12), uid }.to_string();
        assert_eq!(text(Some(0)), "cannot signal pid 12: it runs as root");
        assert_eq!(text(Some(3_999_999_999)), "cannot signal pid 12: it runs as user 3999999999");
        assert_eq!(text(None), "cannot signal pid 12: the system forbids it");
    }
}
