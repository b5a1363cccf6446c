//! The processes that run under a hold, apart from its owner: holds that last while they live, and
//! the end of those whose hold is lost.
//!
//! A hold that lasts while descendants live has a named FIFO whose write end the descendants
//! inherit.
//!
//! If a hold is lost, `canal run` ends everything that its command started. If `canal run` itself
//! was killed, the daemon finds the processes by what they inherited: `CANAL_HOLD` in the
//! environment, and the write end of the hold's FIFO. A process that has dropped both is found only
//! through its parent. These marks stay when a process leaves its group, as daemons do. A cgroup
//! would need rights that most users lack.
//!
//! Invariants: a FIFO's file exists while its hold does, so that a restarted daemon finds it,
//! unless a user removes it. A removed FIFO cannot be opened again, and a new one would have no
//! writers. So the next daemon finds the processes of such a hold by what they inherited. The
//! daemon signals a process only if it had one of these marks after its pidfd was opened, or was
//! then a child of a process that is signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, fstat};

use crate::processes::watch_owners::{Owners, WatchId};
use canal_core::{Tag, Token};
use canal_protocol::HOLD_VARIABLE;
use canal_sys::fds::events_now;
use canal_sys::pidfd::Pidfd;
use canal_sys::private_dir::{if_there, make_fifo, open_path, remove_if_there};
use canal_sys::process::{self, OwnProgram};

/// The most bytes read at once from the FIFO of a hold to find out whether it has writers. A FIFO
/// with the usual limits contains at most this many.
const FIFO_BYTES_AT_ONCE: usize = 64 * 1024;

/// The name of the directory in the daemon's directory.
pub(crate) const NAME: &str = "children";

/// The FIFOs of the holds that last while descendants live.
#[derive(Debug)]
pub(crate) struct Children {
    dir: PathBuf,
    holds: BTreeMap<Token, Kept>,
    /// The holds whose FIFO may have writers, or whose last writer cannot be watched yet. The
    /// daemon tries these again.
    pub unsure: BTreeSet<Token>,
}

/// How the daemon finds out whether descendants keep a hold.
#[derive(Debug)]
enum Kept {
    ByFifo(Fifo),
    /// This daemon did not find the FIFO of the hold with this tag.
    ByMarks(Tag),
}

#[derive(Debug)]
struct Fifo {
    path: PathBuf,
    read_end: OwnedFd,
    /// The id under which the end of the last writer is watched, if it is watched.
    awaited: Option<WatchId>,
}

/// Whether a process has a write end of a FIFO open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    None,
    Some,
    /// This cannot be determined now.
    Unsure,
}

impl Children {
    /// Uses the FIFOs in `children/` of the daemon's directory.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.join(NAME), holds: BTreeMap::new(), unsure: BTreeSet::new() }
    }

    /// Creates the FIFO of a hold, or uses the existing FIFO. Returns a write end that the owner
    /// passes on.
    pub(crate) fn make(&mut self, token: Token, tag: Tag) -> io::Result<OwnedFd> {
        let path = self.open(token, tag)?;
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        Ok(open(&path, flags, Mode::empty())?)
    }

    /// Creates the FIFO of a hold, or uses the existing FIFO, and keeps its read end open.
    fn open(&mut self, token: Token, tag: Tag) -> io::Result<PathBuf> {
        if let Some(Kept::ByFifo(fifo)) = self.holds.get(&token) {
            return Ok(fifo.path.clone());
        }
        let path = self.dir.join(tag.to_string());
        make_fifo(&path)?;
        // If the FIFO was removed, its client asks again, so no process runs under the hold yet.
        self.open_existing(token, path.clone())?;
        Ok(path)
    }

    fn open_existing(&mut self, token: Token, path: PathBuf) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let read_end = open(&path, flags, Mode::empty())?;
        self.holds.insert(token, Kept::ByFifo(Fifo { path, read_end, awaited: None }));
        Ok(())
    }

    /// Opens the FIFO that an earlier daemon created for a hold, and keeps its read end open. If
    /// the FIFO was removed, [`Self::await_end`] searches for the processes of the hold.
    ///
    /// # Errors
    /// The FIFO exists and cannot be opened.
    pub(crate) fn take_over(&mut self, token: Token, tag: Tag) -> io::Result<()> {
        if let Some(Kept::ByFifo(_)) = self.holds.get(&token) {
            return Ok(());
        }
        let opened = self.open_existing(token, self.dir.join(tag.to_string()));
        if if_there(opened)?.is_none() {
            tracing::warn!(token = token.0, "its FIFO is gone: searching for its processes");
            self.holds.insert(token, Kept::ByMarks(tag));
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.holds.len()
    }

    /// The device and the inode of a hold's FIFO.
    pub(crate) fn fifo_id(&self, token: Token) -> Option<(u64, u64)> {
        let Kept::ByFifo(fifo) = self.holds.get(&token)? else { return None };
        let stat = fstat(&fifo.read_end).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    /// Whether a process has a write end of the hold's FIFO open.
    fn look(&self, token: Token) -> Writers {
        let fifo = match self.holds.get(&token) {
            None => return Writers::None,
            Some(Kept::ByFifo(fifo)) => fifo,
            // No event reports the end of its processes.
            Some(Kept::ByMarks(tag)) => {
                // The second pass finds a process that another process started during the first
                // pass before it ended.
                let is_over = (0..2).all(|_| matches!(is_seen_under(*tag), Ok(false)));
                return if is_over { Writers::None } else { Writers::Unsure };
            }
        };
        if events_now(&fifo.read_end, PollFlags::empty()).contains(PollFlags::POLLHUP) {
            return Writers::None;
        }
        // After a FIFO was opened again, poll(2) does not report that all writers have closed it.
        // Only read(2) does: it returns 0 if there are no writers, and EAGAIN if there are writers.
        // It first returns data that was written, and a process may keep writing, so the amount is
        // limited.
        let mut buffer = [0; 4096];
        for _ in 0..FIFO_BYTES_AT_ONCE / buffer.len() {
            match nix::unistd::read(&fifo.read_end, &mut buffer) {
                Ok(0) => return Writers::None,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Writers::Some,
                Err(_) => return Writers::Unsure,
            }
        }
        Writers::Unsure
    }

    /// Starts to watch the last writer of a hold's FIFO. Returns whether there is, or may be, a
    /// writer.
    pub(crate) fn await_end(&mut self, token: Token, tag: Tag, owners: &mut Owners) -> bool {
        let is_new = self.unsure.insert(token);
        if let Err(error) = self.watch_writers(token, tag, owners) {
            if is_new {
                tracing::warn!(%error, token = token.0, "cannot watch its FIFO yet");
            }
            return true;
        }
        // The kernel reports an end that comes after this check.
        let writers = self.look(token);
        if writers != Writers::Unsure {
            self.unsure.remove(&token);
        }
        writers != Writers::None
    }

    fn watch_writers(&mut self, token: Token, tag: Tag, owners: &mut Owners) -> io::Result<()> {
        if !self.holds.contains_key(&token) {
            self.open(token, tag)?;
        }
        if let Some(Kept::ByFifo(fifo)) = self.holds.get_mut(&token)
            && fifo.awaited.is_none()
        {
            fifo.awaited = Some(owners.await_writers(token, &fifo.read_end)?);
        }
        Ok(())
    }

    /// Removes the FIFO of a hold that has ended.
    pub(crate) fn remove(&mut self, token: Token, owners: &mut Owners) {
        self.unsure.remove(&token);
        let Some(Kept::ByFifo(fifo)) = self.holds.remove(&token) else { return };
        if let Some(id) = fifo.awaited {
            owners.forget_writers(id, &fifo.read_end);
        }
        if let Err(error) = remove_if_there(&fifo.path) {
            tracing::warn!(path = %fifo.path.display(), %error, "cannot remove a FIFO");
        }
    }

    /// Removes the FIFOs of all holds, which have all ended.
    pub(crate) fn remove_all(&mut self, owners: &mut Owners) {
        let tokens: Vec<Token> = self.holds.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.remove(token, owners));
    }

    /// Removes FIFOs that earlier daemons left for holds that have ended.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_its = |kept: &Kept| matches!(kept, Kept::ByFifo(fifo) if fifo.path == path);
            if !self.holds.values().any(is_its) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// The marks that identify the processes of a hold.
#[derive(Debug)]
pub(crate) struct Trace {
    pub tag: Tag,
    /// While this is open, no other file can have its inode number and be mistaken for it.
    fifo: Option<File>,
}

impl Trace {
    /// The trace of a hold. `dir` is the directory of the daemon's files.
    pub(crate) fn of(tag: Tag, dir: &Path) -> Self {
        Self { tag, fifo: open_path(&dir.join(NAME).join(tag.to_string())).ok().map(File::from) }
    }
}

/// Kills the processes that run under these holds, except canal's own processes. Returns the tags
/// of the holds for which it found a process that had not ended. The caller repeats this until
/// nothing is found, because a process that is started at the same time may be missed.
pub(crate) fn kill(traces: &[&Trace]) -> BTreeSet<Tag> {
    let mut left = BTreeSet::new();
    if traces.is_empty() {
        return left;
    }
    let pids = match process::visible() {
        Ok(pids) => pids,
        Err(error) => {
            tracing::error!(%error, "cannot search for processes that commands started");
            return left;
        }
    };
    // A `canal run` ends by itself, and reports why.
    let own = OwnProgram::find();
    let mut found: Vec<(u32, Pidfd)> = Vec::new();
    for pid in pids.into_iter().filter(|pid| *pid != std::process::id()) {
        // Most processes have no mark. A process with a mark is checked again once its pidfd is
        // open, because from then on a reuse of its pid would be noticed.
        if tags_of(pid, traces).is_empty() || own.is_of(pid) {
            continue;
        }
        let Ok(pidfd) = Pidfd::open(pid) else { continue };
        let tags = tags_of(pid, traces);
        if !tags.is_empty() && pidfd.pid() == Some(pid) && !pidfd.has_ended() {
            left.extend(tags);
            found.push((pid, pidfd));
        }
    }
    // Adds descendants that have dropped all marks.
    process::add_descendants(&mut found, |pid| own.is_of(pid));
    for (pid, pidfd) in found {
        // The kernel may refuse the signal, because the process may have changed its user since it
        // began.
        let signal = Signal::SIGKILL;
        if pidfd.signal(signal).is_ok() {
            tracing::warn!(pid, "the lock of the command that started it is lost: sent {signal}");
        }
    }
    left
}

/// Whether a process visibly runs under a hold whose FIFO was removed: it has the removed FIFO
/// open, or names the hold in its environment and is not canal itself. (A daemon may have been
/// started under the hold, but does not belong to it.)
///
/// # Errors
/// /proc belongs to another namespace, so that nothing is known.
fn is_seen_under(tag: Tag) -> io::Result<bool> {
    let (own, fifo) = (OwnProgram::find(), tag.to_string());
    let is_under = |pid: &u32| {
        process::has_named(*pid, &fifo) || tags_named(*pid).contains(&tag) && !own.is_of(*pid)
    };
    let pids = process::visible()?;
    Ok(pids.iter().filter(|pid| **pid != std::process::id()).any(is_under))
}

/// The holds, among these, that the process runs under.
fn tags_of(pid: u32, traces: &[&Trace]) -> BTreeSet<Tag> {
    let named = tags_named(pid);
    let mut tags: BTreeSet<Tag> =
        traces.iter().map(|trace| trace.tag).filter(|tag| named.contains(tag)).collect();
    let with_fifo = traces.iter().filter_map(|trace| Some((trace.tag, trace.fifo.as_ref()?)));
    let (with_fifo, fifos): (Vec<Tag>, Vec<&File>) = with_fifo.unzip();
    let open = process::has_open(pid, &fifos).into_iter();
    tags.extend(open.filter_map(|at| with_fifo.get(at)));
    tags
}

/// The holds that the environment of a process names.
fn tags_named(pid: u32) -> Vec<Tag> {
    let variable = process::variable(pid, HOLD_VARIABLE).unwrap_or_default();
    let named = variable.to_str().unwrap_or_default().split(' ');
    named.filter_map(|it| it.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nix::unistd::Pid;

    use super::*;
    use canal_protocol::HOLD_VARIABLE;
    use canal_sys::process::child::children_of;
    use canal_sys::rerun::wait_until;

    impl Children {
        /// Whether a process has, or may have, a write end of the hold's FIFO open.
        pub(crate) fn has_writers(&self, token: Token) -> bool {
            self.look(token) != Writers::None
        }
    }

    fn children() -> (tempfile::TempDir, Children) {
        let dir = tempfile::tempdir().unwrap();
        let children = Children::new(dir.path());
        (dir, children)
    }

    /// A process that another test starts has a copy of each descriptor until it executes its
    /// program.
    #[track_caller]
    fn until_no_writers(children: &mut Children, token: u64) {
        wait_until("nobody writes", || !children.has_writers(Token(token)));
    }

    #[test]
    fn there_are_writers_until_the_last_write_end_is_closed() {
        let (_dir, mut children) = children();
        let first = children.make(Token(1), Tag(1)).unwrap();
        let second = children.make(Token(1), Tag(1)).unwrap();
        assert!(children.has_writers(Token(1)));
        nix::unistd::write(&first, b"noise").unwrap();
        drop(first);
        assert!(children.has_writers(Token(1)));
        drop(second);
        until_no_writers(&mut children, 1);
    }

    #[test]
    fn a_descendant_that_keeps_writing_is_found_in_bounded_time() {
        let (dir, mut before) = children();
        let write_end = before.make(Token(1), Tag(1)).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = nix::unistd::write(&write_end, &[0; 4096]);
                }
            });
            let mut after = Children::new(dir.path());
            after.take_over(Token(1), Tag(1)).unwrap();
            assert!((0..100).all(|_| after.has_writers(Token(1))));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_daemon_that_opens_the_fifo_anew_sees_the_writers_of_before() {
        let (dir, mut before) = children();
        let write_end = before.make(Token(1), Tag(1)).unwrap();
        drop(before);
        let mut after = Children::new(dir.path());
        after.take_over(Token(1), Tag(1)).unwrap();
        assert!(after.has_writers(Token(1)));
        drop(write_end);
        until_no_writers(&mut after, 1);

        let mut later = Children::new(dir.path());
        later.take_over(Token(1), Tag(1)).unwrap();
        until_no_writers(&mut later, 1);
    }

    #[test]
    fn a_daemon_that_finds_no_fifo_looks_for_the_processes_of_the_hold() {
        let (dir, mut before) = children();
        let (with_fifo, with_variable) = (Tag(0xf1f0), Tag(0x0e17));
        let fd = before.make(Token(1), with_fifo).unwrap();
        // One has dropped its environment, and one the FIFO.
        let mut one = Command::new("/bin/sleep").arg("60").env_clear().stdin(fd).spawn().unwrap();
        let mut named = Command::new("/bin/sleep");
        named.arg("60").env(HOLD_VARIABLE, format!("{} {with_variable}", Tag(7)));
        let mut other = named.spawn().unwrap();
        before.make(Token(2), with_variable).unwrap();
        drop(before);
        std::fs::remove_dir_all(dir.path().join(NAME)).unwrap();

        let mut after = Children::new(dir.path());
        let mut owners = Owners::new().unwrap();
        for (token, tag) in [(Token(1), with_fifo), (Token(2), with_variable), (Token(3), Tag(3))] {
            after.take_over(token, tag).unwrap();
        }
        wait_until("both have been executed", || {
            after.has_writers(Token(1)) && after.has_writers(Token(2))
        });
        assert!(!after.has_writers(Token(3)), "nothing runs under it");
        assert!(after.await_end(Token(1), with_fifo, &mut owners));
        assert_eq!(after.unsure, BTreeSet::from([Token(1)]), "it is looked for again");
        for (token, tag, child) in
            [(Token(1), with_fifo, &mut one), (Token(2), with_variable, &mut other)]
        {
            child.kill().unwrap();
            child.wait().unwrap();
            wait_until("nothing runs under it", || !after.await_end(token, tag, &mut owners));
        }
        assert!(after.unsure.is_empty());
        let again = after.make(Token(3), Tag(3)).unwrap();
        assert!(
            after.has_writers(Token(3)),
            "the client creates it again, because it got no grant"
        );
        drop(again);
        until_no_writers(&mut after, 3);
    }

    #[test]
    fn fifos_of_no_hold_are_removed() {
        let (dir, mut children) = children();
        children.open(Token(1), Tag(1)).unwrap();
        children.open(Token(2), Tag(2)).unwrap();
        children.holds.remove(&Token(2));
        children.sweep();
        let left: Vec<_> = std::fs::read_dir(dir.path().join("children"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(left, [Tag(1).to_string()]);
    }

    fn under(value: &str, script: &str) -> Child {
        let mut shell = Command::new("/bin/sh");
        let child = shell.env(HOLD_VARIABLE, value).args(["-c", script]).spawn().unwrap();
        wait_until("it was started", || process::variable(child.id(), HOLD_VARIABLE).is_some());
        child
    }

    fn trace(bits: u128) -> Trace {
        Trace { tag: Tag(bits), fifo: None }
    }

    fn killed_by(child: &mut Child) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap())
    }

    #[test]
    fn a_command_is_killed_with_its_descendants_and_nothing_else() {
        let (lost, other) = (0x1057_u128, 0x07e4_u128);
        let mut inner = under(&format!("{} {}", Tag(lost), Tag(other)), "exec sleep 60");
        let mut stranger = under(&Tag(other).to_string(), "exec sleep 60");
        let mut parent = under(&Tag(lost).to_string(), "env -i sleep 60 & wait");
        let parent_pid = Pid::from_raw(parent.id().cast_signed());
        wait_until("it has a child", || !children_of(parent_pid).unwrap().is_empty());
        let child =
            Pidfd::open(children_of(parent_pid).unwrap()[0].as_raw().unsigned_abs()).unwrap();
        assert_eq!(kill(&[&trace(lost), &trace(1)]), [Tag(lost)].into());
        assert_eq!((killed_by(&mut inner), killed_by(&mut parent)), (Some(9), Some(9)));
        wait_until("its child is dead", || child.has_ended());
        assert!(kill(&[&trace(lost)]).is_empty());
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
