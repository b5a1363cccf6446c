//! When the daemon's periodic and delayed work is due.

use std::time::Instant;

use crate::daemon::boottime_timer::BoottimeTimer;
use crate::daemon::waiters::look_ahead::LookAhead;

/// Deadlines of work that is done for all its subjects at once, and what wakes the daemon for them.
#[derive(Debug)]
pub(crate) struct Due {
    /// Waiters of the previous daemon that have not come back are given up.
    pub(crate) come_back: Option<Instant>,
    /// Those whose process is busy are given up, too.
    pub(crate) come_back_if_busy: Option<Instant>,
    /// Waiters of the previous daemon that have not come back are checked.
    pub(crate) detached: Option<Instant>,
    /// Stopped waiters are checked.
    pub(crate) stopped: Option<Instant>,
    /// A closing connection took too long to read its last reply.
    pub(crate) closing: Option<Instant>,
    /// Waiters are sent what changed.
    pub(crate) progress: Option<Instant>,
    /// Clients that watch the status are sent what changed.
    pub(crate) watch: Option<Instant>,
    /// Reports are built, or connections that have not read their report are checked.
    pub(crate) reports: Option<Instant>,
    /// Whether a client may be watching the status.
    pub(crate) watched: bool,
    /// Clients that watch a leader are told of the next one.
    pub(crate) leaders: DueLeaders,
    /// The daemon's files are checked.
    pub(crate) home: Option<Instant>,
    /// The daemon looks again for processes of which it could not find out whether they live.
    pub(crate) verify: Option<Instant>,
    /// The daemon tries again to watch for the last descendant of a hold.
    pub(crate) unsure: Option<Instant>,
    /// Every lease over nodes has ended of which the daemon may not know. The daemon is not woken for
    /// it: the next turn after it notes that.
    pub(crate) node_settled: Option<Instant>,
    /// The daemon ends because nothing uses it.
    pub(crate) idle: Option<Instant>,
    /// The check of waiters that stand behind others.
    pub(crate) look_ahead: LookAhead,
    /// Whether something changed since updates to waiters and watchers were scheduled last.
    pub(crate) changed: bool,
    /// Wakes the daemon for deadlines that also pass while the machine is suspended.
    pub(crate) timer: BoottimeTimer,
}

impl Due {
    /// Nothing is due yet.
    pub(crate) fn new(timer: BoottimeTimer) -> Self {
        Self {
            come_back: None,
            come_back_if_busy: None,
            detached: None,
            stopped: None,
            closing: None,
            progress: None,
            watch: None,
            reports: None,
            watched: false,
            leaders: DueLeaders::default(),
            home: None,
            verify: None,
            unsure: None,
            node_settled: None,
            idle: None,
            look_ahead: LookAhead::default(),
            changed: false,
            timer,
        }
    }
}

/// When clients that watch a leader are told of the next one.
#[derive(Debug, Default)]
pub(crate) struct DueLeaders {
    /// Whether a client may be watching a leader.
    pub(crate) are_watched: bool,
    /// When the leaders are looked at.
    pub(crate) look: Option<Instant>,
    /// They are not looked at again before this time.
    pub(crate) rest_until: Option<Instant>,
}

impl DueLeaders {
    /// Something changed: the leaders are looked at as soon as that may be.
    pub(crate) fn changed(&mut self, now: Instant) {
        if self.are_watched {
            let soon = self.rest_until.map_or(now, |rested| rested.max(now));
            self.look = Some(self.look.map_or(soon, |look| look.min(soon)));
        }
    }
}

/// Whether a time has come. If so, it is cleared.
pub(crate) fn is_due(due: &mut Option<Instant>, now: Instant) -> bool {
    due.take_if(|at| *at <= now).is_some()
}
