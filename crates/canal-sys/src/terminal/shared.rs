//! Processes that wait on one terminal elect one of them, which draws for all. They lock single
//! bytes of the terminal's own device (`F_OFD_SETLK`, Linux 3.15): one for the drawer, one while
//! its line is on the screen, and one for each process that waits. The kernel drops the locks of a
//! process that ends, and another takes over; a stop by the terminal (Ctrl-Z) releases them too. No
//! file remains, and users and daemons share the scheme.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, c_short, off_t};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

use crate::process::{RunState, run_state};

/// The most processes that are counted.
const COUNTED_MAX: usize = 999;

/// The largest pid.
const PID_MAX: off_t = 1 << 22;

/// The number of places for drawers. A process that SIGSTOP stops, or that is frozen, keeps its
/// locks. So a drawer also locks a byte that states its pid, and while it is stopped, another
/// process draws in its place.
const DRAWERS: off_t = 4;

/// The bytes, counted from [`SharedTerminal::first`]: one for the drawer and for each of its
/// substitutes, then one for the line on the screen, then one for each process, from pid 0 on.
const LINE: off_t = DRAWERS;
const PROCESSES: off_t = DRAWERS + 1;

/// The byte by which process 0 would state that it has this drawer's byte.
const fn name_of(drawer: off_t) -> off_t {
    PROCESSES + (drawer + 1) * (PID_MAX + 1)
}

/// The descriptor of the device, for [`let_go`]; -1 if there is none.
static DEVICE: AtomicI32 = AtomicI32::new(-1);

/// One process among those that wait on a terminal. Dropping it leaves the others.
#[derive(Debug)]
pub struct SharedTerminal {
    /// The device, reopened: the locks belong to this description.
    device: File,
    /// The first byte of this terminal.
    first: off_t,
    /// The pid of the process.
    pid: off_t,
    /// The drawer that it is, if any.
    drawer: Cell<Option<off_t>>,
}

impl SharedTerminal {
    /// Joins the processes that wait on a terminal.
    ///
    /// # Errors
    /// The descriptor is no terminal that could be opened again.
    pub fn join(terminal: impl AsFd) -> io::Result<Self> {
        let fd = terminal.as_fd();
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let (device, first) = match open(&again) {
            Ok(device) => (device, 0),
            // It belongs to another user, as after su(1). All terminals have this device in common.
            // Its number is cut to what fits above the bytes of processes.
            Err(_) => (open("/dev/tty")?, ((fstat(fd)?.st_rdev & 0x3fff_ffff) as off_t) << 32),
        };
        let pid = off_t::from(std::process::id());
        let shared = Self { device, first, pid, drawer: Cell::new(None) };
        DEVICE.store(shared.device.as_raw_fd(), Ordering::Relaxed);
        shared.count();
        Ok(shared)
    }

    /// Whether this process draws. It does from the first time that no other process draws, or that
    /// all that do are stopped, until one of them continues. If the kernel does not lock this
    /// device, each process draws.
    pub fn draws(&self) -> bool {
        // It may have released its byte meanwhile. Locking a byte that it still has changes
        // nothing.
        self.count();
        let place = self.place();
        if let Some(before) = self.drawer.replace(place).filter(|before| Some(*before) != place) {
            for byte in [name_of(before) + self.pid.min(PID_MAX), before] {
                let _ = self.set(byte, libc::F_UNLCK);
            }
        }
        place.is_some()
    }

    /// The first drawer's place that this process has or can take, if the processes in all places
    /// before it are stopped.
    fn place(&self) -> Option<off_t> {
        for drawer in 0..DRAWERS {
            if !matches!(self.lock(drawer), Err(Errno::EAGAIN | Errno::EACCES)) {
                let _ = self.lock(name_of(drawer) + self.pid.min(PID_MAX));
                return Some(drawer);
            }
            // Whether the process that has this place is stopped. One that has not stated its pid
            // yet does not count as stopped.
            let start = name_of(drawer);
            let pid = self.locked(start, PID_MAX + 1).and_then(|at| u32::try_from(at - start).ok());
            let is_stopped = |pid| matches!(run_state(pid), RunState::Stopped | RunState::Frozen);
            if !pid.is_some_and(is_stopped) {
                return None;
            }
        }
        None
    }

    /// Shows the others whether the line of this process is on the screen.
    pub fn set_drawn(&self, is_drawn: bool) {
        let _ = if is_drawn { self.lock(LINE) } else { self.set(LINE, libc::F_UNLCK) };
    }

    /// Whether the line of another process is on the screen.
    pub fn is_drawn_by_other(&self) -> bool {
        self.locked(LINE, 1).is_some()
    }

    /// How many processes wait on this terminal, including this one.
    pub fn waiting(&self) -> usize {
        let mut found = 1;
        let mut unseen = vec![(PROCESSES, PID_MAX + 1)];
        while let Some((start, length)) = unseen.pop() {
            let Some(at) = self.locked(start, length) else { continue };
            found += 1;
            if found == COUNTED_MAX {
                break;
            }
            let behind = start + length - (at + 1);
            let parts = [(start, at - start), (at + 1, behind)];
            // A length of 0 would reach to the end of the file.
            unseen.extend(parts.into_iter().filter(|(_, length)| *length > 0));
        }
        found
    }

    /// Counts this process among those that wait.
    fn count(&self) {
        // If another pid namespace has this number here, one of the two is not counted.
        let _ = self.lock(PROCESSES + self.pid.min(PID_MAX));
    }

    fn lock(&self, at: off_t) -> Result<(), Errno> {
        self.set(at, libc::F_WRLCK)
    }

    fn set(&self, at: off_t, kind: c_int) -> Result<(), Errno> {
        let byte = bytes(self.first + at, 1, kind);
        fcntl(&self.device, FcntlArg::F_OFD_SETLK(&byte)).map(drop)
    }

    /// One of these bytes that another process has locked.
    fn locked(&self, start: off_t, length: off_t) -> Option<off_t> {
        let mut found = bytes(self.first + start, length, libc::F_WRLCK);
        fcntl(&self.device, FcntlArg::F_OFD_GETLK(&mut found)).ok()?;
        let is_locked = c_int::from(found.l_type) != libc::F_UNLCK;
        is_locked.then(|| (found.l_start - self.first).max(start))
    }
}

impl Drop for SharedTerminal {
    fn drop(&mut self) {
        DEVICE.store(-1, Ordering::Relaxed);
    }
}

/// Releases all bytes that this process has locked. Async-signal-safe.
pub(super) fn let_go() {
    let all = bytes(0, 0, libc::F_UNLCK);
    // SAFETY: the structure outlives the call. Without a descriptor the call fails and does
    // nothing.
    unsafe { libc::fcntl(DEVICE.load(Ordering::Relaxed), libc::F_OFD_SETLK, &raw const all) };
}

fn open(device: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open(device)
}

fn bytes(start: off_t, length: off_t, kind: c_int) -> libc::flock {
    let (l_type, l_whence) = (kind as c_short, libc::SEEK_SET as c_short);
    libc::flock { l_type, l_whence, l_start: start, l_len: length, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::pty::openpty;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::process::state_letter;
    use crate::rerun::wait_until;

    /// Joins as another process would.
    fn join_as(terminal: &impl AsFd, pid: off_t) -> SharedTerminal {
        let device = open(&format!("/proc/self/fd/{}", terminal.as_fd().as_raw_fd())).unwrap();
        let shared = SharedTerminal { device, first: 0, pid, drawer: Cell::new(None) };
        shared.count();
        shared
    }

    /// A process that another test starts has a copy of the locks of one that has left, until it
    /// executes its program.
    #[track_caller]
    fn until_draws(shared: &SharedTerminal) {
        wait_until("the locks of the process that left are free", || shared.draws());
    }

    #[test]
    fn one_draws_and_the_next_takes_over_when_it_leaves() {
        // Without its master the terminal could not be opened again.
        let pty = openpty(None, None).unwrap();
        let terminal = &pty.slave;
        let one = join_as(terminal, 5);
        assert_eq!((one.draws(), one.waiting()), (true, 1));
        let two = join_as(terminal, 6);
        let three = join_as(terminal, 3 * PID_MAX);
        let own = SharedTerminal::join(terminal).unwrap();
        assert_eq!([two.draws(), three.draws(), own.draws()], [false; 3]);
        assert!(one.draws(), "it goes on");
        assert_eq!([one.waiting(), two.waiting(), own.waiting()], [4; 3]);
        drop(one);
        until_draws(&three);
        assert!(!two.draws() && !own.draws());
        assert_eq!(three.waiting(), 3);
    }

    #[test]
    fn another_one_draws_in_the_place_of_one_that_is_stopped() {
        let pty = openpty(None, None).unwrap();
        let stoppable = || Command::new("sleep").arg("1000").spawn().unwrap();
        let mut children = [stoppable(), stoppable()];
        let pids = children.each_ref().map(|child| Pid::from_raw(child.id().cast_signed()));
        let [one, two] = pids.map(|pid| join_as(&pty.slave, pid.as_raw().into()));
        let three = join_as(&pty.slave, 3 * PID_MAX);
        let draw = || [&one, &two, &three].map(SharedTerminal::draws);
        let stop = |pid: Pid| {
            kill(pid, Signal::SIGSTOP).unwrap();
            wait_until("it is stopped", || state_letter(pid.as_raw().cast_unsigned()) == Some('T'));
        };
        let go_on = |pid: Pid| {
            kill(pid, Signal::SIGCONT).unwrap();
            wait_until("it goes on", || state_letter(pid.as_raw().cast_unsigned()) != Some('T'));
        };
        assert_eq!(draw(), [true, false, false]);
        stop(pids[0]);
        assert_eq!(draw()[1..], [true, false]);
        stop(pids[1]);
        assert!(three.draws(), "in the place of both");
        go_on(pids[1]);
        assert_eq!(draw()[1..], [true, false], "{:?}", three.drawer);
        go_on(pids[0]);
        assert_eq!(draw(), [true, false, false]);
        stop(pids[0]);
        drop(two);
        until_draws(&three);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_line_is_known_to_the_others_until_it_or_its_process_is_gone() {
        let pty = openpty(None, None).unwrap();
        let [one, two] = [5, 6].map(|pid| join_as(&pty.slave, pid));
        one.set_drawn(true);
        assert!(two.is_drawn_by_other() && !one.is_drawn_by_other());
        one.set_drawn(false);
        assert!(!two.is_drawn_by_other());
        one.set_drawn(true);
        drop(one);
        wait_until("nothing has its lock", || !two.is_drawn_by_other());
    }

    #[test]
    fn each_terminal_has_its_own() {
        let [one, two] = [0; 2].map(|_| openpty(None, None).unwrap());
        assert!(SharedTerminal::join(&one.slave).unwrap().draws());
        let first = SharedTerminal::join(&one.slave).unwrap();
        let other = SharedTerminal::join(&two.slave).unwrap();
        until_draws(&first);
        assert!(other.draws());
        assert_eq!(other.waiting(), 1);
    }
}
