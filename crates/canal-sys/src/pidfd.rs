//! Process descriptors.
//!
//! A [`Pidfd`] always refers to a whole process, never to a single thread, and only to the process
//! for which it was opened.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use nix::sys::statfs::{FsType, fstatfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::fds::{events_now, wait_readable};
#[cfg(any(test, feature = "sim"))]
use super::kernel::simulated::Descriptor;
use super::kernel::{Feature, allows, field};

/// `PID_FS_MAGIC` of linux/magic.h: the file system of pidfds since Linux 6.9.
const PID_FS_MAGIC: FsType = FsType(0x5049_4446);

/// `PIDFD_THREAD` of linux/pidfd.h, a file status flag of a pidfd (Linux 6.9).
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// The device number of pidfs, once found.
static PIDFS_DEVICE: AtomicU64 = AtomicU64::new(0);

/// A namespace of a process, with the ioctl(2) request number that opens it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Namespace {
    /// `PIDFD_GET_PID_NAMESPACE`.
    Pid = 0xFF05,
    /// `PIDFD_GET_TIME_NAMESPACE`.
    Time = 0xFF07,
}

/// A descriptor that refers to the same process for its whole life (Linux 5.3).
#[derive(Debug)]
pub struct Pidfd(pub(super) OwnedFd);

impl Pidfd {
    /// Opens the process that has this pid now.
    ///
    /// # Errors
    /// If [`is_gone`] holds, there is no such process. `PermissionDenied` means that no process can
    /// be opened: the kernel is too old, or a filter of system calls forbids it.
    pub fn open(pid: u32) -> io::Result<Self> {
        simulated!(|kernel| kernel.open(pid).map(Self));
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::ESRCH)?;
        let opened = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
        opened.map(Self).map_err(|error| match error.raw_os_error() {
            // Every attempt would meet this error: the process is not its cause.
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                io::Error::new(io::ErrorKind::PermissionDenied, format!("pidfd_open(2): {error}"))
            }
            _ => error,
        })
    }

    /// Takes over a descriptor that a client sent.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a pidfd, or if it is the pidfd of a single thread (Linux 6.9),
    /// which can end before the process.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        simulated!(|_| Ok(Self(fd)));
        // No file can have this link: a link to a file in /proc/self/fd begins with a slash.
        let link = || std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let is_linked = || link().is_ok_and(|link| link.as_os_str() == "anon_inode:[pidfd]");
        if !is_on_pidfs(fd.as_fd()) && !is_linked() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a pidfd"));
        }
        let flags = nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_GETFL)?;
        if flags & PIDFD_THREAD != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the pidfd of a thread"));
        }
        Ok(Self(fd))
    }

    /// Another descriptor of the same process.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Whether the whole process has ended (a zombie has ended). Never blocks. An end counts only
    /// if a second poll confirms it: one poll can be wrong while a thread other than the leader
    /// executes a program.
    pub fn has_ended(&self) -> bool {
        self.is_readable() && self.is_readable()
    }

    /// Waits up to `patience` for the process to end. Returns whether it has ended.
    pub fn wait_end(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let _ = wait_readable([self.0.as_fd()], Some(left));
            if self.has_ended() {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Sends a signal (`pidfd_send_signal`, Linux 5.1).
    ///
    /// # Errors
    /// [`is_gone`] if its parent reaped the process. EPERM if this process may not signal it.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        simulated!(|kernel| kernel.signal(Descriptor::of(&self.0), signal));
        let signal = rustix::process::Signal::from_named_raw(signal as i32).ok_or(Errno::EINVAL)?;
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// The pid in our pid namespace. 0 if the process has none here, `None` after its parent reaped
    /// it.
    pub fn pid(&self) -> Option<u32> {
        simulated!(|kernel| kernel.pid(Descriptor::of(&self.0)));
        match self.info(libc::PIDFD_INFO_PID) {
            Ok(info) => Some(info.pid),
            Err(Errno::ESRCH) => None,
            // The process is in a pid namespace that is not below ours.
            Err(Errno::EREMOTE) => Some(0),
            Err(_) => self.pid_by_fdinfo(),
        }
    }

    /// The inode that identifies the process within this boot. 0 if the kernel has no pidfs.
    pub fn inode(&self) -> u64 {
        simulated!(|kernel| kernel.inode(Descriptor::of(&self.0)));
        if !allows(Feature::PIDFS) {
            return 0;
        }
        let Ok(stat) = nix::sys::stat::fstat(&self.0) else { return 0 };
        // There is one pidfs, so one lookup of its device is enough.
        let known = PIDFS_DEVICE.load(Ordering::Relaxed);
        if known != stat.st_dev {
            if !is_on_pidfs(self.as_fd()) {
                return 0;
            }
            PIDFS_DEVICE.store(stat.st_dev, Ordering::Relaxed);
        }
        stat.st_ino
    }

    /// The real user (`PIDFD_GET_INFO`), if the kernel reports it.
    pub(super) fn real_uid(&self) -> Option<u32> {
        simulated!(|kernel| kernel.uid(Descriptor::of(&self.0)));
        self.info(libc::PIDFD_INFO_CREDS).ok().map(|info| info.ruid)
    }

    /// How the process ended, once its parent has reaped it (`PIDFD_GET_INFO`, Linux 6.15): the
    /// status of wait(2). `None` before that, and on kernels that do not report it.
    pub fn wait_status(&self) -> Option<i32> {
        simulated!(|_| None);
        self.info(libc::PIDFD_INFO_EXIT).ok().map(|info| info.exit_code)
    }

    fn is_readable(&self) -> bool {
        events_now(&self.0, PollFlags::POLLIN).contains(PollFlags::POLLIN)
    }

    /// The inode of a namespace of the process (Linux 6.11). Only tried on kernels with
    /// `PIDFD_GET_INFO`, because on others a process has no pid here if /proc is missing.
    pub(crate) fn namespace(&self, namespace: Namespace) -> io::Result<u64> {
        if !allows(Feature::PIDFD_INFO) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the call takes integers, and returns a descriptor that no other code has.
        let fd = unsafe { libc::ioctl(self.0.as_raw_fd(), namespace as libc::Ioctl, 0) };
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(Errno::result(fd)?) };
        Ok(nix::sys::stat::fstat(&fd)?.st_ino)
    }

    /// `PIDFD_GET_INFO` (Linux 6.13). Returns ESRCH for a reaped process, EREMOTE for a process
    /// outside our pid namespace, ENOTTY or EINVAL on older kernels, and ENODATA if the kernel
    /// reports something else than what `mask` names.
    fn info(&self, mask: u32) -> Result<libc::pidfd_info, Errno> {
        if !allows(Feature::PIDFD_INFO) {
            return Err(Errno::ENOTTY);
        }
        // SAFETY: the structure is all integers, for which zeros are a value.
        let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
        info.mask = mask.into();
        // SAFETY: the request number contains the size of the structure, which outlives the call.
        let got = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        Errno::result(got)?;
        if info.mask & u64::from(mask) == 0 {
            return Err(Errno::ENODATA);
        }
        Ok(info)
    }

    /// `Pid:` of fdinfo (Linux 5.3). It is -1 after the process was reaped.
    fn pid_by_fdinfo(&self) -> Option<u32> {
        let path = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        field(&text, "Pid:")?.parse().ok()
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What to do about a `PermissionDenied` of [`Pidfd::open`].
pub const FORBIDDEN_HINT: &str =
    "canal needs Linux 5.3 or later, and a container whose seccomp profile allows pidfd_open(2)";

/// Whether an error of [`Pidfd::open`] or [`Pidfd::signal`] means that the process is gone: ESRCH,
/// EINVAL for a dying process or for a thread, ENOENT for a thread (Linux 6.16).
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL | libc::ENOENT))
}

fn is_on_pidfs(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|stat| stat.filesystem_type() == PID_FS_MAGIC)
}

#[cfg(test)]
mod tests;
