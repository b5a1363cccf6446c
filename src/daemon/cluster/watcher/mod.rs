//! The watcher: a process that outlives the daemon, over an engine.
//!
//! What `canal acquire --pid` acquired for, and what a killed `canal run` left, is ended in time by the
//! daemon alone. A daemon that is a member keeps one watcher process, which sleeps until the daemon
//! has ended. Then it starts the next daemon, as a client would, and if none takes the holds over
//! before the deadline, it ends the processes of the record itself.
//!
//! Invariant: as long as the record names the duty of a watcher ([`WatchId`](crate::daemon::processes::holder::WatchId)) and
//! a process, this watcher runs, unless it was killed itself.

mod keep;
pub(super) mod link;
pub(super) mod process;

use std::os::fd::RawFd;

pub(crate) use crate::daemon::cluster::watcher::link::Watcher;
pub use crate::daemon::cluster::watcher::process::watch;

/// Where the watcher finds its end of the channel to the daemon.
const CHANNEL: RawFd = 0;

/// Says: this is the page of the daemon's membership; with its two descriptors, and followed by the
/// eight bytes of the duty's name.
const PAGE: u8 = b'p';

/// Says: the daemon was told to end, so that nobody is to start another one.
const TOLD_TO_END: u8 = b'e';
