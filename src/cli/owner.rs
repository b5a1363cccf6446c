//! Finds the owner of a lock that `canal acquire` takes and `canal release` releases.

use std::io;
use std::os::unix::process::parent_id;

use nix::libc;

use crate::cli::{Failed, Result};
use crate::sys::pidfd::{FORBIDDEN_HINT, Pidfd};
use crate::sys::process;

const HINT: &str = "in a script, name its own process with --pid $$";

/// The process that owns, or will own, a lock.
#[derive(Debug)]
pub(crate) struct Owner {
    /// Refers to the process even after its pid is reused.
    pub(crate) pidfd: Pidfd,
    /// The pid of the process.
    pub(crate) pid: u32,
    /// Whether this is the parent process because the user named none.
    pub(crate) by_default: bool,
}

impl Owner {
    /// The process with that pid, or the parent process.
    pub(crate) fn find(pid: Option<u32>) -> Result<Self> {
        let (pid, by_default) = (pid.unwrap_or_else(parent_id), pid.is_none());
        let is_init = pid == 0 || is_init_of_machine(pid);
        if !by_default && pid == std::process::id() {
            return Err(unfit(format!("--pid {pid} is canal itself, which ends immediately")));
        }
        if !by_default && is_init {
            return Err(unfit("process 1 never ends, so its lock would never end either"));
        }
        // The first process of a container may be the script itself.
        if is_init {
            let message = format!("no process can own the lock: the parent process is pid {pid}");
            return Err(unfit(message));
        }
        let pidfd = open(pid)?;
        // If the parent had already ended, its pid could belong to another process.
        if by_default && parent_id() != pid {
            return Err(unfit(format!("the parent process, pid {pid}, has ended")));
        }
        Ok(Self { pidfd, pid, by_default })
    }

    /// `pid 812 (bash)`.
    pub(crate) fn shown(&self) -> String {
        let name = process::name(self.pid).map(|name| format!(" ({name})"));
        format!("pid {}{}", self.pid, name.unwrap_or_default())
    }
}

/// Whether a process is the machine's own init. If that is unknown, the daemon decides.
fn is_init_of_machine(pid: u32) -> bool {
    pid == 1 && process::Origin::read().is_ok_and(|origin| origin.is_init_of_machine(pid))
}

/// The failure for a process that cannot own a lock.
fn unfit(message: impl Into<String>) -> Failed {
    Failed::new(message).hint(HINT)
}

fn open(pid: u32) -> Result<Pidfd> {
    Pidfd::open(pid).map_err(|error| match error.raw_os_error() {
        Some(libc::ESRCH) => unfit(format!("there is no process {pid}")),
        // The number belongs to a thread, or to a process that is being reaped.
        Some(libc::EINVAL | libc::ENOENT) => unfit(format!("{pid} is not a running process")),
        None => Failed::new(error.to_string()).hint(FORBIDDEN_HINT),
        _ => Failed::new(format!("process {pid}: {}", io::Error::other(error))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_the_owner_unless_another_is_named() {
        let owner = Owner::find(None).unwrap();
        assert!(owner.by_default);
        assert_eq!(owner.pid, parent_id());
        assert!(owner.shown().starts_with(&format!("pid {} (", owner.pid)));
    }

    #[test]
    fn canal_cannot_own_a_lock_that_it_acquires_for_others() {
        let failed = Owner::find(Some(std::process::id())).unwrap_err();
        assert!(failed.message.contains("canal itself"));
        assert_eq!(failed.hint.as_deref(), Some(HINT));
    }

    #[test]
    fn the_init_of_the_machine_owns_no_lock() {
        let origin = process::Origin::read().unwrap();
        let first =
            process::Origin { pid_namespace: process::FIRST_PID_NAMESPACE, ..origin.clone() };
        let container = process::Origin { pid_namespace: 4_026_532_000, ..origin.clone() };
        assert!(first.is_init_of_machine(1) && !first.is_init_of_machine(2));
        assert!(!container.is_init_of_machine(1));
        if origin.is_init_of_machine(1) {
            let failed = Owner::find(Some(1)).unwrap_err();
            assert_eq!(failed.message, "process 1 never ends, so its lock would never end either");
        } else {
            assert_eq!(Owner::find(Some(1)).unwrap().pid, 1);
        }
    }

    #[test]
    fn a_number_without_a_process_is_an_error() {
        // Above the largest possible pid_max.
        let failed = Owner::find(Some(0x0040_0001)).unwrap_err();
        assert_eq!(failed.message, "there is no process 4194305");
    }
}
