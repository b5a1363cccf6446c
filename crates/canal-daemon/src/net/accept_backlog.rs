//! Tracks how many connections were accepted since a lease expired.

/// Tracks how far the listener's queue was accepted since a lease expired.
#[derive(Debug, Default)]
pub(crate) struct AcceptBacklog {
    /// When the tracking began, in milliseconds of CLOCK_BOOTTIME.
    pub since: Option<u64>,
    pub accepted: usize,
}

impl AcceptBacklog {
    /// The time up to which the daemon has read every renewal that was sent, if it is known. While
    /// clients connect faster than the daemon accepts them, it waits only for the connections that
    /// were queued at the beginning.
    pub(crate) fn caught_up(&mut self, begun: u64, accepted: Accepted) -> Option<u64> {
        let since = *self.since.get_or_insert(begun);
        self.accepted += accepted.count;
        if accepted.more && self.accepted < QUEUED_CONNECTIONS_MAX {
            return None;
        }
        *self = Self::default();
        Some(since)
    }
}

/// The longest queue of a listener. This is sixteen times the default of `net.core.somaxconn`.
pub(crate) const QUEUED_CONNECTIONS_MAX: usize = 65_536;

/// The result of [`Server::accept`](crate::server::Server::accept).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accepted {
    /// The number of connections taken from the queue.
    pub count: usize,
    /// Whether there may be more in the queue.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_connections_delays_the_end_of_a_lease_by_one_queue_at_most() {
        let mut accept_backlog = AcceptBacklog::default();
        let all = Accepted { count: 3, more: false };
        assert_eq!(accept_backlog.caught_up(10, all), Some(10));
        let part = Accepted { count: QUEUED_CONNECTIONS_MAX / 4, more: true };
        let ends = [20, 30, 40, 50, 60].map(|begun| accept_backlog.caught_up(begun, part));
        assert_eq!(ends, [None, None, None, Some(20), None]);
        assert_eq!(accept_backlog.caught_up(70, all), Some(60), "what came after 60 may be unread");
    }
}
