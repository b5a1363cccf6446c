//! The daemon's limits on everything that it accepts. A client over a limit gets a named error.
//! Clients within the limits are not affected.

use std::time::Duration;

/// The most calls that a client may send before it receives the reply to an earlier call.
pub(crate) const CALLS_AHEAD_MAX: usize = 256;

/// The most bytes of replies that a client may leave unread. If more are unread when the next reply
/// is due, the daemon closes the connection.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// A user with this many bytes of unread reports gets no further report.
pub(crate) const UNREAD_BYTES_PER_USER: usize = OUTPUT_BYTES_MAX;

/// The same limit for all users together.
pub(crate) const UNREAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long a connection may read nothing of its report while other connections wait for the room
/// that the report takes.
pub(crate) const UNREAD_TIME: Duration = Duration::from_secs(2);

/// After spending this much time on reports in a turn, the daemon serves other calls.
pub(crate) const REPORT_TIME_PER_TURN: Duration = Duration::from_millis(5);

/// The most keys in one reply to a client that completes a command line.
pub(crate) const NAMES_MAX: usize = 10_000;

/// The most bytes read from one connection before the other connections are read.
pub(crate) const READ_BYTES_PER_TURN: usize = 128 * 1024;

/// The most connections accepted in a turn, so that the open connections are served, too.
pub(crate) const ACCEPTS_PER_TURN: usize = 256;

/// How long the daemon stops accepting connections if it has no descriptor left to refuse one with.
pub(crate) const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The most bytes per turn that are read and discarded from clients that are refused immediately.
pub(crate) const REFUSED_BYTES_PER_TURN: usize = 256 * 1024;

/// How often the daemon tries again to watch for the last descendant of a hold.
pub(crate) const UNSURE_EVERY: Duration = Duration::from_millis(250);

/// How many connections over the limit stay open until their client has received the error.
pub(crate) fn turned_away_max(connections_max: usize) -> usize {
    (connections_max / 32).min(64)
}

/// How long a connection may take to read its last reply before the daemon closes it.
pub(crate) const CLOSING_TIME: Duration = Duration::from_secs(5);

/// The most items of one request.
pub(crate) const ITEMS_MAX: usize = 64;

/// The most slots of one request. Replies and reports list the number of every slot.
pub(crate) const SLOTS_MAX: u64 = 65_536;

/// The largest size of a lock, and the largest number in a size. The JSON of every language
/// represents numbers up to this exactly.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The most bytes of a command that are kept for display.
pub(crate) const COMMAND_BYTES_MAX: usize = 1024;

/// One in this many descriptors is reserved for grants, because a grant takes a second descriptor
/// until the client has read it and disconnects.
///
/// The same share of the connections is reserved for root and the user that runs the daemon.
pub(crate) const KEPT_FOR_GRANTS: usize = 16;

/// A user may have this many times as many connections as are still left for all users. That is
/// three quarters of all connections if no other user has any.
pub(crate) const SHARE_OF_WHAT_IS_LEFT: usize = 3;

/// The minimum time between two searches for idle connections.
pub(crate) const IDLE_LOOKED_FOR_EVERY: Duration = Duration::from_secs(1);

/// How long a request with `-n` waits for a holder whose process is exiting.
pub(crate) const EXITING_TIME: Duration = Duration::from_millis(100);

/// How often the daemon checks whether stopped waiters run again.
pub(crate) const STOPPED_EVERY: Duration = Duration::from_millis(250);

/// How often the daemon searches for stopped waiters that are ahead of other waiters.
pub(crate) const AHEAD_EVERY: Duration = Duration::from_secs(1);

/// The most processes that are checked at once because a request waits behind them.
pub(crate) const AHEAD_LOOKED_AT_MAX: usize = 64;

/// The most waiters that are checked at once for other waiters ahead of them.
pub(crate) const WAITERS_LOOKED_AT_MAX: usize = 256;

/// How long the waiters of the previous daemon may take to come back.
pub(crate) const COME_BACK_TIME: Duration = Duration::from_secs(5);

/// How long they may take in total if their process is busy. On an overloaded machine, it may be
/// ready to run for a long time before it runs.
pub(crate) const COME_BACK_TIME_IF_BUSY: Duration = Duration::from_secs(30);

/// How often the daemon checks whether the process of such a waiter is still busy.
pub(crate) const COME_BACK_EVERY: Duration = Duration::from_secs(1);

/// The minimum time between two progress messages to a waiter.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The minimum time between two reports to a client that watches the status.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(250);

/// How long the last replies may take when the daemon ends.
pub(crate) const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// The most processes whose state is read at once: those of holders when a request that may not
/// wait is refused or a status is built, those of detached waiters when the daemon starts, and
/// those of waiters that are about to be given up.
pub(crate) const PROCESSES_LOOKED_AT_MAX: usize = 500;

/// How many ancestors of a process are searched for the process whose frame encloses it.
pub(crate) const ANCESTORS_MAX: usize = 256;

/// The most waiting requests that a report lists with their blockers.
pub(crate) const WAITS_SHOWN_MAX: usize = 1000;

/// The approximate maximum number of blockers of waiting requests that are examined for such a
/// report.
pub(crate) const BLOCKERS_LOOKED_AT_MAX: usize = 100_000;

/// The most holds and waiting requests that are listed for a client that wants to end their
/// processes.
pub(crate) const KILL_TARGETS_MAX: usize = 200;

/// The most calls served in a turn. The others are served in the next turn. Users take turns again
/// there, so a later call of a user with fewer calls may be served first.
pub(crate) const CALLS_PER_TURN: usize = 1024;
