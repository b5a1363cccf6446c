//! How much of everything the daemon takes. What is over a limit is refused by name; what is
//! within stays undisturbed.

use std::time::Duration;

/// Calls that a peer may send ahead of the answer to an earlier one.
pub(crate) const CALLS_AHEAD_MAX: usize = 256;

/// The most bytes that wait for a peer to read them before it gets another reply; a peer that lets
/// more come together is closed.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// About the most bytes of a report on the table. What does not fit is left out and counted.
pub(crate) const REPORT_BYTES_MAX: usize = 24 * 1024 * 1024;

/// How many bytes of reports a user has not read, at which it gets no other one.
pub(crate) const UNREAD_BYTES_PER_USER: usize = OUTPUT_BYTES_MAX;

/// As above, of all users together.
pub(crate) const UNREAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long a connection may read nothing of its report while others wait for the room that it takes.
pub(crate) const UNREAD_TIME: Duration = Duration::from_secs(2);

/// After so much time with reports, the calls of others are served.
pub(crate) const REPORT_TIME_PER_TURN: Duration = Duration::from_millis(5);

/// The most keys that are named at once to one who completes a command line.
pub(crate) const NAMES_MAX: usize = 10_000;

/// The most bytes read from one connection before the others have their turn.
pub(crate) const READ_BYTES_PER_TURN: usize = 128 * 1024;

/// The most connections accepted before those that there are have their turn.
pub(crate) const ACCEPTS_PER_TURN: usize = 256;

/// How long nobody is accepted where there is no descriptor to refuse a connection with.
pub(crate) const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The most bytes read at once from the FIFO of a hold to find out whether it has writers: no less than
/// one holds of which the limits are usual.
pub(crate) const FIFO_BYTES_AT_ONCE: usize = 64 * 1024;

/// The most bytes thrown away in a turn that were sent by peers who are turned away at once.
pub(crate) const REFUSED_BYTES_PER_TURN: usize = 256 * 1024;

/// How often it is tried again to wait for the last descendant of a hold.
pub(crate) const UNSURE_EVERY: Duration = Duration::from_millis(250);

/// How many connections over the limit are kept long enough to be told so.
pub(crate) fn turned_away_max(connections_max: usize) -> usize {
    (connections_max / 32).min(64)
}

/// How long a connection may take to read its last reply before it is closed all the same.
pub(crate) const CLOSING_TIME: Duration = Duration::from_secs(5);

/// The most items of one request.
pub(crate) const ITEMS_MAX: usize = 64;

/// The most slots of one request, whose numbers are all told and shown.
pub(crate) const SLOTS_MAX: u64 = 65_536;

/// The largest size of a lock, and the largest number in a view: numbers up to this are exact in
/// every language's JSON.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The shortest TTL of a lease. Who renews it starts a process for that, and does so in time also on
/// a machine that is busy.
pub(crate) const LEASE_MS_MIN: u64 = 1000;

/// The longest TTL of a lease, 30 days. One that is needed for longer is renewed; one that is
/// forgotten is not in the way for ever.
pub(crate) const LEASE_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;

/// The most bytes of a command that are kept to show it.
pub(crate) const COMMAND_BYTES_MAX: usize = 1024;

/// How many requests of one user may wait, if the configuration does not say.
pub(crate) const WAITERS_PER_USER: usize = 20_000;

/// How many leases one user may hold, if the configuration does not say.
pub(crate) const LEASES_PER_USER: usize = 10_000;

/// How much room the keys may take that one user holds and waits for, if the configuration does not
/// say.
pub(crate) const KEY_BYTES_PER_USER: usize = 32 * 1024 * 1024;

/// Descriptors that are not for connections: the journal, the listener, epoll instances, what is
/// opened for a moment.
const DESCRIPTORS_OF_OUR_OWN: u64 = 32;

/// With fewer descriptors a daemon could serve hardly any client, not even `canal daemon --stop`.
pub(crate) const DESCRIPTORS_MIN: u64 = 64;

/// One in so many descriptors is kept for those who wait: a grant takes a second one, until the
/// client has read it and goes.
///
/// The same share of the connections is kept for root and the user whose daemon it is.
pub(crate) const KEPT_FOR_GRANTS: usize = 16;

/// A user may have this many times the connections that are still left for all users: three quarters
/// of all connections if no other user has any.
pub(crate) const SHARE_OF_WHAT_IS_LEFT: usize = 3;

/// For how long a connection may be idle when others need its room, if the configuration does not
/// say.
pub(crate) const CONNECTION_IDLE: Duration = Duration::from_secs(60);

/// The least time between two looks for connections that are idle.
pub(crate) const IDLE_LOOKED_FOR_EVERY: Duration = Duration::from_secs(1);

/// How many connections fit when there are `descriptors` and owners take so many of them.
pub(crate) fn connections_max(descriptors: u64, owners: usize) -> usize {
    let left = descriptors.saturating_sub(DESCRIPTORS_OF_OUR_OWN).saturating_sub(owners as u64);
    usize::try_from(left - left.div_ceil(KEPT_FOR_GRANTS as u64)).unwrap_or(usize::MAX)
}

/// How long `-n` waits for the end of a holder that is on its way out.
pub(crate) const EXITING_TIME: Duration = Duration::from_millis(100);

/// How often stopped waiters are looked at.
pub(crate) const STOPPED_EVERY: Duration = Duration::from_millis(250);

/// How often those are looked at who may wait behind a stopped waiter.
pub(crate) const AHEAD_EVERY: Duration = Duration::from_secs(1);

/// The most processes that are looked at in one go because somebody waits behind them.
pub(crate) const AHEAD_LOOKED_AT_MAX: usize = 64;

/// The most waiters of which it is found out in one go whether they are behind another one.
pub(crate) const WAITERS_LOOKED_AT_MAX: usize = 256;

/// How long waiters of the daemon before this one may take to come back.
pub(crate) const COME_BACK_TIME: Duration = Duration::from_secs(5);

/// The least time between two words of progress to a waiter.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The least time between two reports to one who watches the status.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(250);

/// How long the last replies may take when the daemon ends.
pub(crate) const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// The most holders of a key whose process is looked at when one who may not wait is refused, or
/// when the status is told.
pub(crate) const PROCESSES_LOOKED_AT_MAX: usize = 500;

/// The most holds that are looked at to tell who keeps a request.
pub(crate) const HOLDERS_LOOKED_AT_MAX: usize = 500;

/// The most keys below a key that are looked at for holds that are in the way of one of it.
pub(crate) const KEYS_LOOKED_AT_MAX: usize = 1000;

/// How far up the ancestors of a process are followed to the one whose frame encloses it.
pub(crate) const ANCESTORS_MAX: usize = 256;

/// The most waiting requests that are told with those who keep them.
pub(crate) const WAITS_SHOWN_MAX: usize = 1000;

/// The most of those who keep waiting requests that are looked at to tell that.
pub(crate) const BLOCKERS_LOOKED_AT_MAX: usize = 100_000;

/// The size at which the log of a daemon that was started on demand is rotated.
pub(crate) const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// The most calls that are served in a turn: the others have theirs in the next one, after those who
/// came meanwhile and whose user has fewer of them.
pub(crate) const CALLS_PER_TURN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_limit_of_descriptors_has_room_for_ten_thousand_waiters() {
        assert!(connections_max(20_000, 0) >= 10_000);
        assert!(connections_max(20_000, 5_000) >= 10_000);
        assert!(connections_max(1024, 0) >= 900);
    }

    #[test]
    fn where_there_are_no_descriptors_there_are_no_connections() {
        assert_eq!(connections_max(0, 0), 0);
        assert_eq!(connections_max(64, 100), 0);
        assert_eq!(connections_max(33, 0), 0);
        assert_eq!(connections_max(34, 0), 1);
        assert!(connections_max(DESCRIPTORS_MIN, 0) >= 16);
    }
}
