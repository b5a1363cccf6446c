//! What is due at some time.

use std::time::Instant;

/// When things are due that have one time for all.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Waiters of the daemon before this one are given up.
    pub(crate) come_back: Option<Instant>,
    /// Waiters of the daemon before this one are looked at that have not come back.
    pub(crate) detached: Option<Instant>,
    /// Stopped waiters are looked at.
    pub(crate) stopped: Option<Instant>,
    /// A connection took too long to read its last words.
    pub(crate) closing: Option<Instant>,
    /// Those who wait are told what changed.
    pub(crate) progress: Option<Instant>,
    /// Those who watch the status are told what changed.
    pub(crate) watch: Option<Instant>,
    /// Reports are built, or those looked at that were not read.
    pub(crate) reports: Option<Instant>,
    /// Somebody may watch the status.
    pub(crate) watched: bool,
    /// Our files are looked after.
    pub(crate) home: Option<Instant>,
    /// Processes of which it could not be told whether they live are looked for again.
    pub(crate) verify: Option<Instant>,
    /// It is tried again to wait for the last descendant of a hold.
    pub(crate) unsure: Option<Instant>,
    /// The daemon ends, because nobody needs it.
    pub(crate) idle: Option<Instant>,
}

/// Whether a time has come; it is then taken away.
pub(crate) fn is_due(due: &mut Option<Instant>, now: Instant) -> bool {
    due.take_if(|at| *at <= now).is_some()
}
