//! Forking without exec.

use std::io;

use nix::unistd::{ForkResult, Pid};

/// Forks. `Some` is the child's number in the parent, `None` is the child.
///
/// The child of a process with several threads may only do what is safe in a signal handler; so
/// this refuses (`Unsupported`) where /proc tells that there are several.
pub fn fork() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        let text = "cannot fork: this process has several threads";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    // SAFETY: with a single thread, the child is a full copy: no lock of another thread can be
    // held in it for ever.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}
