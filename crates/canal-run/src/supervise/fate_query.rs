//! Asks the host's next daemon what happened to a hold, after the daemon that wrote the deadline
//! page has gone. The next daemon may have taken over the hold.
//!
//! A separate process asks, so that a slow, stopped or missing daemon never keeps the supervisor
//! from acting in time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::Pid;

use canal_lock::client::Fate;
use canal_sys::deadline::{Reader, Why};
use canal_sys::fds;
use canal_sys::process::child::{Reap, end_with_parent, ended, fork};

/// The bounds of the pause before each attempt: a restarted daemon is soon there.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// A query that is repeated until it is answered.
#[derive(Debug, Default)]
pub(super) struct FateQuery {
    /// The process that currently asks, and this side's end of the channel to it.
    process: Option<(Pid, OwnedFd)>,
    /// When the next query starts.
    next: Option<Instant>,
}

impl FateQuery {
    /// Starts a query if one is due. `sure` is how long the hold is safe by the present page.
    pub(super) fn ask(&mut self, sure: Duration, ask: &dyn Fn() -> Option<Fate>) {
        if self.process.is_some() {
            return;
        }
        let now = Instant::now();
        let pause = (sure / 16).clamp(PAUSE_MIN, PAUSE_MAX);
        // Spreads the queries of a host's supervisors.
        let next = *self.next.get_or_insert(now + pause + pause * (std::process::id() % 8) / 8);
        if now < next {
            return;
        }
        // If no query can start now (for example, there are too many processes), one may later.
        self.next = None;
        self.process = start(ask).ok();
    }

    /// The answer, if there is one.
    pub(super) fn receive(&mut self) -> Option<Fate> {
        let (pid, channel) = self.process.as_ref()?;
        let mut received = Vec::new();
        let flags = libc::MSG_DONTWAIT;
        let mut word = [0; 1];
        match fds::receive(channel.as_fd(), &mut word, &mut received, flags) {
            Ok(1) if received.len() == 2 => {
                let (line, page) = (received.remove(1), received.remove(0));
                Reader::open(page, line).ok().map(Fate::Held)
            }
            Ok(1) => Some(Fate::Lost(Why::from_number(word[0].into()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            // Its end.
            Ok(_) | Err(_) => {
                if !matches!(ended(*pid, Reap::Now), Ok(None)) {
                    self.process = None;
                }
                None
            }
        }
    }

    /// Whether this is the process that asks.
    pub(super) fn is(&self, pid: Pid) -> bool {
        self.process.as_ref().is_some_and(|(fate_query, _)| *fate_query == pid)
    }

    /// The time until the next query.
    pub(super) fn due(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// The descriptor that wakes the supervisor at the end of the query.
    pub(super) fn polled(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|(_, channel)| channel.as_fd())
    }
}

fn start(ask: &dyn Fn() -> Option<Fate>) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    if let Some(pid) = fork()? {
        return Ok((pid, ours));
    }
    drop(ours);
    if end_with_parent(theirs.as_fd()).is_err() {
        std::process::exit(0);
    }
    let _ = match ask() {
        Some(Fate::Held(page)) => fds::send(theirs.as_fd(), b"p", &page.descriptors(), 0),
        Some(Fate::Lost(why)) => fds::send(theirs.as_fd(), &[why as u8], &[], 0),
        None => Ok(0),
    };
    std::process::exit(0);
}

impl Drop for FateQuery {
    fn drop(&mut self) {
        if let Some((pid, _)) = &self.process {
            let _ = kill(*pid, Signal::SIGKILL);
            let _ = ended(*pid, Reap::Now);
        }
    }
}
