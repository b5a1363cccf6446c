//! When the daemon's periodic and delayed work is due.

use std::time::Instant;

use crate::boottime_timer::BoottimeTimer;
use crate::waiters::check_ahead::CheckAhead;

/// Deadlines of work that covers all its subjects at once, and the timer that wakes the daemon for
/// them.
#[derive(Debug)]
pub(crate) struct Due {
    /// Gives up the waiters of the previous daemon that have not come back.
    pub come_back: Option<Instant>,
    /// Gives up those whose process is busy, too.
    pub come_back_if_busy: Option<Instant>,
    /// Checks the waiters of the previous daemon that have not come back.
    pub detached: Option<Instant>,
    /// Checks stopped waiters.
    pub stopped: Option<Instant>,
    /// Closes a connection that took too long to read its last reply.
    pub closing: Option<Instant>,
    /// Sends the changes to waiters.
    pub progress: Option<Instant>,
    /// Sends the changes to clients that watch the status.
    pub watch: Option<Instant>,
    /// Whether a client may be watching the status.
    pub watched: bool,
    /// Reports the next leader to the clients that watch one.
    pub leaders: DueLeaders,
    /// Checks the daemon's files.
    pub home: Option<Instant>,
    /// Searches again for processes of which the daemon could not find out whether they live.
    pub verify: Option<Instant>,
    /// Tries again to watch for the last descendant of a hold.
    pub unsure: Option<Instant>,
    /// The time at which every lease over nodes that the daemon may not know has ended. The daemon
    /// is not woken for it: the next turn after it notes that.
    pub node_settled: Option<Instant>,
    /// Ends the daemon because it is unused.
    pub idle: Option<Instant>,
    /// The check of waiters that are behind others.
    pub check_ahead: CheckAhead,
    /// Whether anything has changed since updates to waiters and watchers were last scheduled.
    pub changed: bool,
    /// Wakes the daemon for deadlines that also pass while the machine is suspended.
    pub timer: BoottimeTimer,
}

impl Due {
    pub(crate) fn new(timer: BoottimeTimer) -> Self {
        Self {
            come_back: None,
            come_back_if_busy: None,
            detached: None,
            stopped: None,
            closing: None,
            progress: None,
            watch: None,
            watched: false,
            leaders: DueLeaders::default(),
            home: None,
            verify: None,
            unsure: None,
            node_settled: None,
            idle: None,
            check_ahead: CheckAhead::default(),
            changed: false,
            timer,
        }
    }
}

/// When to report the next leader to the clients that watch one.
#[derive(Debug, Default)]
pub(crate) struct DueLeaders {
    /// Whether a client may be watching a leader.
    pub are_watched: bool,
    /// When to check the leaders.
    pub look: Option<Instant>,
    /// The earliest time for the next check.
    pub rest_until: Option<Instant>,
}

impl DueLeaders {
    /// Notes a change: schedules the next check of the leaders as early as allowed.
    pub(crate) fn changed(&mut self, now: Instant) {
        if self.are_watched {
            let soon = self.rest_until.map_or(now, |rested| rested.max(now));
            self.look = Some(self.look.map_or(soon, |look| look.min(soon)));
        }
    }
}

/// Whether a time has come. If so, clears it.
pub(crate) fn is_due(due: &mut Option<Instant>, now: Instant) -> bool {
    due.take_if(|at| *at <= now).is_some()
}
