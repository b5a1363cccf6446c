//! A simulated machine: its clock, its processes and their sockets. It is the kernel of the daemon
//! that runs there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::errno::Errno;
use nix::sys::inotify::Inotify;
use nix::sys::signal::Signal;
use nix::sys::socket::{UnixAddr, getpeername};

use canal_protocol::HOLD_VARIABLE;
use canal_sys::kernel::simulated::{Descriptor, Kernel, Stat};
use canal_sys::peer::Credentials;
use canal_sys::process::{Origin, is_link_to};
use canal_sys::{fds, private_dir, rerun};

/// The panic that kills a daemon in the middle of a turn.
#[derive(Debug)]
pub(super) struct Killed;

/// Identifies a process for the whole run, because pids are reused.
pub(super) type Serial = u64;

/// A simulated process, as its kernel knows it.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    started: u64,
    /// The pid of its parent.
    parent: u32,
    /// `R`, `T` or `Z`.
    pub(super) state: char,
    /// The value of `CANAL_HOLD` in its environment.
    pub(super) hold: String,
    /// The descriptors that it inherited: the write ends of the FIFOs of holds.
    pub(super) fifos: Vec<OwnedFd>,
    /// Whether it runs canal rather than a command.
    pub(super) is_canal: bool,
    /// Whether it received TERM.
    pub(super) is_asked_to_end: bool,
    /// Both ends of the pipe that simulates its pidfd.
    ended: (OwnedFd, OwnedFd),
}

/// The mutable part of a machine.
#[derive(Debug)]
struct State {
    now_ms: u64,
    /// CLOCK_BOOTTIME at the beginning of this boot, and the true time of that.
    booted: (u64, u64),
    boots: u64,
    /// The processes that have not been reaped.
    processes: BTreeMap<Serial, Process>,
    /// The current process of each pid.
    pids: BTreeMap<u32, Serial>,
    /// The process of each pidfd ever issued.
    descriptors: BTreeMap<Descriptor, Serial>,
    /// The process and pid behind each socket that a client bound.
    sockets: BTreeMap<Vec<u8>, (Serial, u32)>,
    /// The true time at which each process ended.
    ended_at: BTreeMap<Serial, u64>,
    last_serial: Serial,
    /// The source of random numbers.
    rng: Rng,
    /// How many kernel calls the daemon has made.
    calls: u64,
    /// The daemon is killed after this many kernel calls.
    kill_after: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Machine {
    state: RefCell<State>,
    inotify: Inotify,
    base: Instant,
    number: usize,
    /// The speed of its clock, in thousandths of the true speed.
    rate: u64,
    is_wrong_time: bool,
    uid: u32,
}

/// The pids of simulated processes start here, so that none is that of the test itself.
const FIRST_PID: u32 = 10_000_000;

/// The parent of orphans.
const INIT: u32 = 1;

impl Machine {
    pub(super) fn new(
        number: usize,
        base: Instant,
        (clock_ms, rate): (u64, u64),
        is_wrong_time: bool,
    ) -> Self {
        let state = State {
            now_ms: 0,
            booted: (clock_ms, 0),
            boots: 1,
            processes: BTreeMap::new(),
            pids: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            sockets: BTreeMap::new(),
            ended_at: BTreeMap::new(),
            last_serial: 0,
            rng: Rng::with_seed(number as u64),
            calls: 0,
            kill_after: None,
        };
        let (state, inotify) = (RefCell::new(state), inotify());
        let uid = canal_sys::process::user::geteuid().as_raw();
        Self { state, inotify, base, number, rate, is_wrong_time, uid }
    }

    /// Sets the true time, in milliseconds since the run began.
    pub(super) fn set_time(&self, now_ms: u64) {
        self.state.borrow_mut().now_ms = now_ms;
    }

    /// CLOCK_BOOTTIME, in milliseconds.
    pub(super) fn clock(&self) -> u64 {
        let state = self.state.borrow();
        state.booted.0 + (state.now_ms - state.booted.1) * self.rate / 1000
    }

    /// Kills the daemon after this number of further kernel calls. `None` cancels that.
    pub(super) fn kill_daemon_after(&self, questions: Option<u64>) {
        self.state.borrow_mut().kill_after = questions;
    }

    /// Makes kernel calls for a process other than the daemon.
    pub(super) fn spare_daemon<T>(&self, work: impl FnOnce() -> T) -> T {
        let kill_after = self.state.borrow_mut().kill_after.take();
        let done = work();
        self.state.borrow_mut().kill_after = kill_after;
        done
    }

    /// Starts a process with the inheritance of its parent. `None` is a shell or cron.
    pub(super) fn start(&self, parent: Option<Serial>, is_canal: bool) -> Serial {
        let mut state = self.state.borrow_mut();
        let pid = state.free_pid();
        state.last_serial += 1;
        let serial = state.last_serial;
        let parent = parent.and_then(|parent| state.processes.get(&parent));
        let process = Process {
            pid,
            started: state.now_ms / 10 + 1,
            parent: parent.map_or(INIT, |parent| parent.pid),
            state: 'R',
            hold: parent.map(|parent| parent.hold.clone()).unwrap_or_default(),
            fifos: parent.map_or_else(Vec::new, Process::copies_of_fifos),
            is_canal,
            is_asked_to_end: false,
            ended: fds::pipe().unwrap(),
        };
        state.descriptors.insert(Descriptor::of(&process.ended.0), serial);
        state.pids.insert(pid, serial);
        state.processes.insert(serial, process);
        serial
    }

    /// Changes a process if it has not been reaped.
    pub(super) fn with<T>(
        &self,
        serial: Serial,
        change: impl FnOnce(&mut Process) -> T,
    ) -> Option<T> {
        self.state.borrow_mut().processes.get_mut(&serial).map(change)
    }

    /// Changes the process that has this pid now.
    fn with_pid<T>(&self, pid: u32, change: impl FnOnce(&mut Process) -> T) -> Option<T> {
        let serial = self.state.borrow().pids.get(&pid).copied()?;
        self.with(serial, change)
    }

    /// Whether a process runs or is stopped.
    pub(super) fn lives(&self, serial: Serial) -> bool {
        !self.state.borrow().ended_at.contains_key(&serial)
    }

    /// Whether a process runs and is not stopped.
    pub(super) fn runs(&self, serial: Serial) -> bool {
        self.with(serial, |process| process.state == 'R').unwrap_or(false)
    }

    /// Whether a process lives, or ended less than two steps ago.
    pub(super) fn lived_lately(&self, serial: Serial, now_ms: u64) -> bool {
        let state = self.state.borrow();
        let ended_at = state.ended_at.get(&serial);
        ended_at.is_none_or(|at| at + 20 >= now_ms)
    }

    /// The history of a process, for messages.
    pub(super) fn story(&self, serial: Serial) -> String {
        let state = self.state.borrow();
        let process = state.processes.get(&serial);
        format!("ended at {:?}, {process:?}", state.ended_at.get(&serial))
    }

    /// Ends a process, which becomes a zombie.
    pub(super) fn end(&self, serial: Serial) {
        self.state.borrow_mut().end(serial);
    }

    /// Reaps the ended processes.
    pub(super) fn reap(&self) {
        let State { processes, pids, .. } = &mut *self.state.borrow_mut();
        processes.retain(|_, process| process.state != 'Z');
        pids.retain(|_, serial| processes.contains_key(serial));
    }

    /// All processes that have not ended.
    pub(super) fn alive(&self) -> Vec<Serial> {
        let state = self.state.borrow();
        let alive = state.processes.iter().filter(|(_, process)| process.state != 'Z');
        alive.map(|(serial, _)| *serial).collect()
    }

    /// Cuts the power: all running processes are gone.
    pub(super) fn reboot(&self, clock_ms: u64) {
        let mut state = self.state.borrow_mut();
        state.boots += 1;
        state.booted = (clock_ms, state.now_ms);
        let all: Vec<Serial> = state.processes.keys().copied().collect();
        all.into_iter().for_each(|serial| state.end(serial));
        state.processes.clear();
        state.pids.clear();
    }

    /// Notes that a process has bound a socket to this name.
    pub(super) fn bound(&self, name: &[u8], serial: Serial) {
        let mut state = self.state.borrow_mut();
        let pid = state.processes.get(&serial).map_or(0, |process| process.pid);
        state.sockets.insert(name.to_vec(), (serial, pid));
    }

    /// A copy of the pidfd of a process.
    ///
    /// # Errors
    /// ESRCH: the process was reaped.
    pub(super) fn pidfd(&self, serial: Serial) -> io::Result<OwnedFd> {
        let state = self.state.borrow();
        state.processes.get(&serial).ok_or(Errno::ESRCH)?.ended.0.try_clone()
    }

    /// The process that bound the other end of a socket, and its pid.
    fn bound_by(&self, socket: BorrowedFd<'_>) -> io::Result<(Serial, u32)> {
        self.asked();
        let address: UnixAddr = getpeername(socket.as_raw_fd())?;
        let name = address.as_abstract().ok_or(Errno::ENODATA)?;
        self.state.borrow().sockets.get(name).copied().ok_or_else(|| Errno::ENODATA.into())
    }

    /// How many kernel calls the daemons have made.
    pub(super) fn calls(&self) -> u64 {
        self.state.borrow().calls
    }

    /// Counts a kernel call of the daemon, and kills the daemon if its time is up.
    fn asked(&self) {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        let Some(left) = state.kill_after else { return };
        state.kill_after = left.checked_sub(1);
        let is_killed = state.kill_after.is_none();
        drop(state);
        if is_killed && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    fn found<T>(
        &self,
        descriptor: Descriptor,
        get: impl FnOnce(Serial, &mut Process) -> T,
    ) -> Option<T> {
        self.asked();
        let serial = *self.state.borrow().descriptors.get(&descriptor)?;
        self.with(serial, |process| get(serial, process))
    }
}

impl Process {
    fn copies_of_fifos(&self) -> Vec<OwnedFd> {
        self.fifos.iter().map(|fd| fd.try_clone().unwrap()).collect()
    }
}

impl State {
    /// An unused pid. Linux assigns pids in turn; here the lowest free one is reused, and therefore
    /// sooner.
    fn free_pid(&self) -> u32 {
        (FIRST_PID..).find(|pid| !self.pids.contains_key(pid)).unwrap_or(FIRST_PID)
    }

    fn end(&mut self, serial: Serial) {
        let alive = self.processes.get_mut(&serial).filter(|process| process.state != 'Z');
        let Some(process) = alive else { return };
        process.state = 'Z';
        process.fifos.clear();
        nix::unistd::write(&process.ended.1, b"x").unwrap();
        let pid = process.pid;
        self.ended_at.insert(serial, self.now_ms);
        for child in self.processes.values_mut().filter(|child| child.parent == pid) {
            child.parent = INIT;
        }
    }
}

/// The inotify instance of a machine. The system has few of them, which other tests use, too. A
/// daemon can do without, but then it does something else, which no seed decided.
fn inotify() -> Inotify {
    let mut made = None;
    rerun::wait_until("an inotify instance is free (fs.inotify.max_user_instances)", || {
        made = private_dir::inotify().ok();
        made.is_some()
    });
    made.unwrap()
}

/// The wall clock of every machine.
pub(super) fn unix_ms(now_ms: u64, is_wrong_time: bool) -> u64 {
    if is_wrong_time { 1 } else { 1_700_000_000_000 + now_ms }
}

impl Kernel for Machine {
    fn boottime_ms(&self) -> u64 {
        self.asked();
        self.clock()
    }

    fn unix_ms(&self) -> u64 {
        self.asked();
        unix_ms(self.state.borrow().now_ms, self.is_wrong_time)
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_millis(self.clock())
    }

    fn random(&self) -> u128 {
        self.state.borrow_mut().rng.u128(..)
    }

    fn inotify(&self) -> io::Result<OwnedFd> {
        // A daemon reads no events of its predecessor.
        while self.inotify.read_events().is_ok() {}
        self.inotify.as_fd().try_clone_to_owned()
    }

    fn origin(&self) -> Origin {
        let boots = self.state.borrow().boots;
        let boot_id = format!("boot-{}-{boots}", self.number);
        Origin { boot_id, pid_namespace: 4_026_531_836, time_namespace: 0 }
    }

    fn open(&self, pid: u32) -> io::Result<OwnedFd> {
        self.asked();
        let serial = self.state.borrow().pids.get(&pid).copied();
        self.pidfd(serial.ok_or(Errno::ESRCH)?)
    }

    fn pid(&self, process: Descriptor) -> Option<u32> {
        self.found(process, |_, process| process.pid)
    }

    fn inode(&self, process: Descriptor) -> u64 {
        let state = self.state.borrow();
        state.descriptors.get(&process).map_or(0, |serial| serial + 1_000)
    }

    fn uid(&self, process: Descriptor) -> Option<u32> {
        self.found(process, |_, _| self.uid)
    }

    fn signal(&self, process: Descriptor, signal: Signal) -> io::Result<()> {
        let serial = self.found(process, |serial, process| {
            process.is_asked_to_end = true;
            serial
        });
        let serial = serial.ok_or(Errno::ESRCH)?;
        if signal == Signal::SIGKILL {
            self.end(serial);
        }
        Ok(())
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        self.asked();
        self.with_pid(pid, |process| {
            let Process { state, parent, started, .. } = *process;
            let mut stat = Stat::default();
            (stat.state, stat.parent, stat.started) = (state, parent, started);
            stat
        })
    }

    fn pids(&self) -> Vec<u32> {
        self.state.borrow().pids.keys().copied().collect()
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let state = self.state.borrow();
        let children = state.processes.values().filter(|process| process.parent == pid);
        children.map(|process| process.pid).collect()
    }

    fn variable(&self, pid: u32, name: &str) -> Option<OsString> {
        // A zombie has no environment.
        let living = |process: &mut Process| (process.state != 'Z').then(|| process.hold.clone());
        let hold = self.with_pid(pid, living)??;
        (name == HOLD_VARIABLE && !hold.is_empty()).then(|| hold.into())
    }

    fn has_open(&self, pid: u32, files: &[&File]) -> Vec<usize> {
        let id = |fd: BorrowedFd<'_>| {
            nix::sys::stat::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap()
        };
        let ids: Vec<_> = files.iter().map(|file| id(file.as_fd())).collect();
        let open = self.with_pid(pid, |process| {
            process.fifos.iter().map(|fd| id(fd.as_fd())).collect::<Vec<_>>()
        });
        let open = open.unwrap_or_default();
        (0..ids.len()).filter(|at| open.contains(&ids[*at])).collect()
    }

    fn has_named(&self, pid: u32, name: &str) -> bool {
        let is =
            |fd: &OwnedFd| is_link_to(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_ref(), name);
        self.with_pid(pid, |process| process.fifos.iter().any(is)).unwrap_or(false)
    }

    fn is_canal(&self, pid: u32) -> bool {
        self.with_pid(pid, |process| process.is_canal).unwrap_or(false)
    }

    fn peer(&self, socket: BorrowedFd<'_>) -> io::Result<Credentials> {
        let (_, pid) = self.bound_by(socket)?;
        Ok(Credentials { pid, uid: self.uid, gid: self.uid })
    }

    fn peer_pidfd(&self, socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let (serial, _) = self.bound_by(socket)?;
        match self.pidfd(serial) {
            Ok(pidfd) => Ok(Some(pidfd)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
