//! The watcher: a process that outlives a daemon with an engine.
//!
//! Only the daemon ends the owners of `canal acquire --pid`, and the commands of a killed `canal
//! run`, in time. So a member keeps one watcher process, which starts the next daemon when this one
//! has ended. If no daemon takes the holds over before the deadline, the watcher ends the recorded
//! processes itself.
//!
//! A watcher does not replace a daemon that is stopped: to notice one, it would have to wake at
//! each renewal.
//!
//! Invariant: while the record contains the id of a watcher
//! ([`WatchId`](crate::processes::holder_record::WatchId)) and a process, this watcher runs,
//! unless the watcher itself was killed.

use std::os::fd::RawFd;

mod keep;
pub(super) mod link;
pub(super) mod process;

pub(crate) use crate::cluster::watcher::link::Watcher;
pub use crate::cluster::watcher::process::watch;
#[cfg(test)]
pub(crate) use crate::cluster::watcher::process::{Alone, Duty};

/// The descriptor of the watcher's end of the channel to the daemon.
const CHANNEL: RawFd = 0;

/// Message: the deadline page of the daemon's membership. Its two descriptors come with the
/// message, and the eight bytes of the [`WatchId`](crate::processes::holder_record::WatchId)
/// follow.
const PAGE: u8 = b'p';

/// Message: the daemon ends on purpose, so the watcher must not start another daemon.
const TOLD_TO_END: u8 = b'e';
