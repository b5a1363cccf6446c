//! The supervisor's calls to its caller.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::unistd::Pid;

use crate::client::{Client, ClientError, Options};
use crate::protocol::place::Place;
use crate::protocol::{DeadlinePageQuery, ErrorName, Tag};
use crate::run::LostHold;
use crate::sys::deadline::{Reader, Why};
use crate::sys::signals::SignalRefused;

/// The supervisor's calls to its caller while the command runs.
pub trait SupervisorHooks {
    /// Whether it is already known that the hold can be lost.
    fn can_be_lost(&self) -> bool {
        false
    }

    /// Reports that the lock is lost, or may be lost from now on. Called once for each loss, before
    /// the supervisor acts on the command.
    fn lost(&mut self, lost: &LostHold);

    /// Reports that the kernel refuses to signal the command, or a process that it started. Called
    /// once for each process.
    fn refused(&mut self, refused: &SignalRefused);

    /// Whether a process is a daemon that a client started. It also serves other clients, so the
    /// supervisor neither waits for it nor ends it.
    fn is_daemon(&self, pid: Pid) -> bool;

    /// Called when the command has ended, before its process is reaped. Until then, the daemon can
    /// read its exit status on every kernel.
    fn ended(&mut self) {}

    /// Asks the present daemon what happened to the hold with this token. Called in a process that
    /// may block.
    fn ask(&self, token: u64) -> Option<Fate>;

    /// The descriptors that the caller needs while the command runs.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The descriptor to poll for the caller.
    fn polled(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The longest time until [`Self::turn`] must be called.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Called whenever the supervisor wakes. `command` is the child, until it has ended.
    fn turn(&mut self, _command: Option<Pid>) {}
}

/// What happened to a hold whose deadline page has lost its writer.
#[derive(Debug)]
pub enum Fate {
    /// The present daemon has taken it over, and writes this page.
    Held(Reader),
    /// It is lost.
    Lost(Why),
}

impl Fate {
    /// Asks the present daemon of a place what happened to a request that was granted with this
    /// token. `None` if no daemon knows yet.
    #[must_use]
    pub fn ask(place: &Place, options: Options, tag: Tag, token: u64) -> Option<Self> {
        let query = DeadlinePageQuery { tag, token: Some(token) };
        match Client::connect(place, options).ok()?.page(&query) {
            Ok(page) => Some(Self::Held(page)),
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
                Some(Self::Lost(Why::of_word(failure.reason.as_deref().unwrap_or_default())))
            }
            Err(_) => None,
        }
    }
}
