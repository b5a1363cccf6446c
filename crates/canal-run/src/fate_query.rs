//! Asks the host's next daemon what happened to a hold, after the daemon that wrote the deadline
//! page has gone. The next daemon may have taken over the hold.
//!
//! A separate process asks, so that a slow, stopped or missing daemon never keeps the supervisor
//! from acting in time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use canal_lock::client::Fate;
use canal_lock::client::channel::{End, Received, channel};
use canal_sys::deadline_page::{Reader, Why};
use canal_sys::process::child::{Reap, end_with_parent, ended, fork};

/// A query that is repeated until it is answered.
#[derive(Debug, Default)]
pub(super) struct FateQuery {
    /// The process that currently asks, and this side's end of the channel to it.
    process: Option<(Pid, End)>,
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
        let pause = Fate::pause(sure);
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
        match channel.receive() {
            Received::Message(Some(why), _) => Some(Fate::Lost(Why::from_number(why))),
            Received::Message(None, descriptors) => {
                let [page, line] = descriptors.try_into().ok()?;
                Reader::open(page, line).ok().map(Fate::Held)
            }
            Received::Nothing => None,
            Received::End => {
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

fn start(ask: &dyn Fn() -> Option<Fate>) -> io::Result<(Pid, End)> {
    let (ours, theirs) = channel()?;
    if let Some(pid) = fork()? {
        return Ok((pid, ours));
    }
    drop(ours);
    if end_with_parent(theirs.as_fd()).is_err() {
        std::process::exit(0);
    }
    // The answer is the number of the reason for a loss. Without one, the hold is held, and the
    // descriptors are its deadline page.
    match ask() {
        Some(Fate::Held(page)) => _ = theirs.send(&None::<u64>, &page.descriptors()),
        Some(Fate::Lost(why)) => _ = theirs.send(&Some(why as u64), &[]),
        None => {}
    }
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
