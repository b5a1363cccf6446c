//! Forks without exec, starts programs apart from this process, and finds out how children end.

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{
    ForkResult, Gid, Pid, Uid, User, getgrouplist, setgroups, setresgid, setresuid, setsid,
};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::state::parent;
use crate::{fds, kernel};

/// Forks. Returns `Some` with the child's pid in the parent, and `None` in the child.
///
/// A multithreaded process's child may only do what is safe in a signal handler. So this fails
/// (`Unsupported`) if /proc shows several threads.
pub fn fork() -> io::Result<Option<Pid>> {
    refuse_threads()?;
    // SAFETY: with a single thread, the child is a full copy: no lock of another thread can stay
    // locked in it forever.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

fn refuse_threads() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        let text = "cannot fork: this process has several threads";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// Forks a process into its own session. The process does not lead the session, so it cannot get a
/// controlling terminal, and it is not a child of the caller. Returns whether this is the new
/// process.
///
/// # Errors
/// The same as for [`fork`].
pub fn fork_apart() -> io::Result<bool> {
    refuse_threads()?;
    // SAFETY: as in `fork`.
    Ok(unsafe { fork_twice() }?)
}

/// Like [`fork_apart`], for a process that may have several threads.
///
/// # Safety
/// If it has, the new process may only do what is safe in a signal handler.
pub(super) unsafe fn fork_twice() -> nix::Result<bool> {
    // SAFETY: the child calls only functions that are safe in a signal handler.
    let ForkResult::Parent { child: between } = (unsafe { nix::unistd::fork() })? else {
        // This cannot fail: a new process leads no process group.
        let _ = setsid();
        // SAFETY: the caller keeps the rule for the new process.
        match unsafe { nix::unistd::fork() } {
            Ok(ForkResult::Child) => return Ok(true),
            Ok(ForkResult::Parent { .. }) => exit(0),
            Err(error) => exit(error as i32),
        }
    };
    loop {
        match waitpid(between, None) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::Exited(_, error)) if error != 0 => return Err(Errno::from_raw(error)),
            // ECHILD: SIGCHLD is ignored, or another thread waits for all children.
            Ok(_) | Err(Errno::ECHILD) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Ends this process without its exit handlers: those of the parent must not run in its child.
/// Async-signal-safe.
pub(super) fn exit(status: i32) -> ! {
    // SAFETY: the call takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Makes the kernel kill this process, which [`fork`] made, when its parent ends. `channel` is a
/// socket or a pipe whose other end only the parent has.
///
/// For the kernel, the parent is the thread that forked. `fork` checks that the parent has no other
/// thread.
///
/// # Errors
/// The parent has already ended.
pub fn end_with_parent(channel: BorrowedFd<'_>) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The kernel sends no signal if the parent ended before this line. The parent's pid does not
    // show that: it is 0 if the parent is in another pid namespace, alive or not.
    match fds::events_now(channel, PollFlags::empty()).is_empty() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the parent has ended")),
    }
}

/// Undoes [`end_with_parent`]. A later end of the parent has no effect on this process.
///
/// A command runs without that signal, because it does not lose its lock when its supervisor is
/// killed. The kernel also sends the signal when a thread ends, and a setuid exec clears it.
pub fn outlive_parent() -> io::Result<()> {
    Ok(prctl::set_pdeathsig(None)?)
}

/// Drops most of what this process inherited from the daemon that started it: all descriptors but
/// the standard ones, its session and its folder. Returns the channel to the daemon, which is one
/// of the standard descriptors.
///
/// # Errors
/// The channel is not open.
pub fn leave_parent(channel: RawFd) -> io::Result<OwnedFd> {
    let channel = fds::adopt(channel)?;
    fds::close_except(&[]);
    // A signal to the job of a daemon in the foreground must not end this process.
    setsid()?;
    std::env::set_current_dir("/")?;
    // The kernel took the process name from the file that was executed, which has another name.
    let _ = prctl::set_name(c"canal");
    Ok(channel)
}

/// Makes orphaned descendants of this process its children (PR_SET_CHILD_SUBREAPER, Linux 3.4). The
/// setting survives exec, and children do not inherit it.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// The ids of another user, for a child to take on.
#[derive(Clone, Debug)]
pub struct UserIds {
    /// The user.
    pub uid: Uid,
    /// The primary group.
    pub gid: Gid,
    /// All groups.
    pub groups: Vec<Gid>,
}

impl UserIds {
    /// Looks up the groups of a user. The lookup may wait for a directory service.
    pub fn of(user: &User) -> nix::Result<Self> {
        let name = CString::new(user.name.as_str()).map_err(|_| Errno::EINVAL)?;
        Ok(Self { uid: user.uid, gid: user.gid, groups: getgrouplist(&name, user.gid)? })
    }

    /// Makes this process one of the user.
    pub(super) fn take_on(&self) -> io::Result<()> {
        setgroups(&self.groups)?;
        setresgid(self.gid, self.gid, self.gid)?;
        Ok(setresuid(self.uid, self.uid, self.uid)?)
    }
}

/// Starts a program in its own session and process group, as another user if one is given. The
/// number of the group is the child's pid. If this thread ends, the kernel kills the child.
///
/// # Errors
/// The program cannot be started, or this process may not become that user.
pub fn spawn_apart(command: &mut Command, user: Option<UserIds>) -> io::Result<Child> {
    let enter = move || -> io::Result<()> {
        setsid()?;
        user.as_ref().map_or(Ok(()), UserIds::take_on)?;
        // A change of user clears it, so it comes last.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls. It neither allocates nor takes a lock.
    unsafe { command.pre_exec(enter) };
    command.spawn()
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exited(u8),
    /// This signal killed it (also a real-time signal, for which nix has no name).
    Killed(i32),
}

/// What happens to the pid of a child that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reap {
    /// Release the pid: another process may get it.
    Now,
    /// Keep the pid reserved, so that the child and its process group can still be named safely.
    Later,
}

/// How a child ended. `None` if it lives. Never blocks. `ECHILD` means that there is no such child.
pub fn ended(child: Pid, reap: Reap) -> io::Result<Option<End>> {
    let keep = if reap == Reap::Later { WaitIdOptions::NOWAIT } else { WaitIdOptions::empty() };
    Ok(wait(child, WaitIdOptions::EXITED | keep)?.and_then(|status| {
        let code = status.exit_status().map(|code| End::Exited(code.to_le_bytes()[0]));
        code.or_else(|| status.terminating_signal().map(End::Killed))
    }))
}

/// The signal that stopped a child, reported once per stop. `None` if nothing has stopped it since.
pub fn stopped(child: Pid) -> io::Result<Option<i32>> {
    match wait(child, WaitIdOptions::STOPPED) {
        // The kernel finds no child that could still stop, so it has ended.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        waited => Ok(waited?.and_then(|status| status.stopping_signal())),
    }
}

/// The result of waitid(2), if something happened.
fn wait(child: Pid, options: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    let child =
        rustix::process::Pid::from_raw(child.as_raw()).ok_or(io::ErrorKind::InvalidInput)?;
    let ask = || waitid(WaitId::Pid(child), options | WaitIdOptions::NOHANG);
    Ok(rustix::io::retry_on_intr(ask)?)
}

/// The visible children of all threads of a process, including adopted children and those that have
/// ended but were not reaped. May miss children that appear, end or are adopted at the same time.
/// Misses no child of this process if it has a single thread and only the caller reaps.
///
/// `/proc/PID/task/TID/children` (Linux 3.5, CONFIG_PROC_CHILDREN) skips children only when others
/// leave the list at the same time. Without this file, reads the parent of every process.
pub fn children_of(pid: Pid) -> io::Result<Vec<Pid>> {
    simulated!(|kernel| {
        let children = kernel.children(pid.as_raw().unsigned_abs()).into_iter();
        Ok(children.map(|pid| Pid::from_raw(pid.cast_signed())).collect())
    });
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return children_by_parent(pid);
    };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(text) => {
                let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
                children.extend(pids.map(Pid::from_raw));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && thread.path().exists() => {
                return children_by_parent(pid);
            }
            // The thread has ended.
            Err(_) => {}
        }
    }
    Ok(children)
}

fn children_by_parent(of: Pid) -> io::Result<Vec<Pid>> {
    let mut children = kernel::pids()?;
    children.retain(|pid| parent(*pid) == Some(of.as_raw().unsigned_abs()));
    Ok(children.into_iter().map(|pid| Pid::from_raw(pid.cast_signed())).collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use crate::process::user::geteuid;
    use crate::process::{RunState, run_state};
    use nix::sys::signal::{kill, killpg};
    use nix::unistd::{getpgid, getsid};

    use super::*;
    use crate::rerun;

    fn shell(script: &str) -> Child {
        Command::new("/bin/sh").args(["-c", script]).spawn().unwrap()
    }

    fn pid(child: &Child) -> Pid {
        Pid::from_raw(i32::try_from(child.id()).unwrap())
    }

    fn next<T>(mut ask: impl FnMut() -> io::Result<Option<T>>) -> T {
        let mut told = None;
        rerun::wait_until("the child changes", || {
            told = ask().unwrap();
            told.is_some()
        });
        told.unwrap()
    }

    #[test]
    fn a_stop_is_told_once_and_an_end_until_it_is_reaped() {
        let child = pid(&shell("kill -STOP $$; exit 7"));
        assert_eq!(next(|| stopped(child)), libc::SIGSTOP);
        assert_eq!(stopped(child).unwrap(), None);
        assert_eq!(ended(child, Reap::Now).unwrap(), None);
        kill(child, Signal::SIGCONT).unwrap();
        assert_eq!(next(|| ended(child, Reap::Later)), End::Exited(7));
        assert_eq!(stopped(child).unwrap(), None);
        assert_eq!(next(|| ended(child, Reap::Now)), End::Exited(7));
        let gone = ended(child, Reap::Now).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ECHILD));
    }

    #[test]
    fn the_children_of_another_process_are_those_of_all_its_threads() {
        let mut shell = shell("sleep 60 & sleep 60 & wait");
        let shell_pid = pid(&shell);
        rerun::wait_until("both are there", || children_of(shell_pid).unwrap().len() == 2);
        let mut found = children_of(shell_pid).unwrap();
        let mut by_parent = children_by_parent(shell_pid).unwrap();
        found.sort_unstable();
        by_parent.sort_unstable();
        assert_eq!(found, by_parent);
        // Children of a thread other than the first are included: this thread made the shell.
        assert!(children_of(Pid::this()).unwrap().contains(&shell_pid));
        for sleep in found {
            kill(sleep, Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(children_of(shell_pid).unwrap().is_empty());
    }

    #[test]
    fn a_death_is_told_with_its_signal_also_a_real_time_one() {
        let child = pid(&shell("kill -9 $$"));
        assert_eq!(next(|| ended(child, Reap::Now)), End::Killed(9));
        let signal = libc::SIGRTMIN() + 3;
        let child = pid(&shell(&format!("kill -{signal} $$")));
        assert_eq!(next(|| ended(child, Reap::Now)), End::Killed(signal));
    }

    #[test]
    fn a_program_that_is_started_apart_leads_a_group_that_can_be_killed() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "sleep 600 & sleep 600 & wait"]);
        let mut shell = spawn_apart(&mut shell, None).unwrap();
        let leader = pid(&shell);
        assert_eq!(getpgid(Some(leader)).unwrap(), leader);
        assert_eq!(getsid(Some(leader)).unwrap(), leader);
        rerun::wait_until("both are there", || children_of(leader).unwrap().len() == 2);
        let found = children_of(leader).unwrap();
        killpg(leader, Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        // There may be no process to reap them.
        let has_ended = |pid: &Pid| {
            matches!(run_state(pid.as_raw().unsigned_abs()), RunState::Gone | RunState::Exiting)
        };
        rerun::wait_until("all have ended", || found.iter().all(has_ended));
    }

    #[test]
    fn a_program_is_started_as_another_user_with_its_groups_only_by_root() {
        let ids = |uid: u32| UserIds {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(uid),
            groups: vec![Gid::from_raw(uid), Gid::from_raw(12399)],
        };
        let mut id = Command::new("/bin/sh");
        id.args(["-c", "id -u; id -g; id -G"]).stdout(std::process::Stdio::piped());
        let started = spawn_apart(&mut id, Some(ids(12345)));
        if !geteuid().is_root() {
            assert_eq!(started.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            return;
        }
        let output = started.unwrap().wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "12345\n12345\n12345 12399\n");
        assert!(geteuid().is_root(), "only the child is another user");
    }

    #[test]
    fn a_process_whose_parent_ended_before_it_looked_notices_that() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        end_with_parent(theirs.as_fd()).unwrap();
        drop(ours);
        // A child that another test forks has a copy of `ours` until it executes its program.
        let mut noticed = Ok(());
        rerun::wait_until("the end is noticed", || {
            noticed = end_with_parent(theirs.as_fd());
            noticed.is_err()
        });
        outlive_parent().unwrap();
        assert_eq!(noticed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(prctl::get_pdeathsig().unwrap(), None);
    }

    #[test]
    fn a_process_with_threads_is_not_forked() {
        let (told, tell) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || tell.recv());
        let error = fork().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        drop(told);
        assert!(thread.join().unwrap().is_err());
    }
}
