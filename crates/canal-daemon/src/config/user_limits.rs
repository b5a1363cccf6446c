//! The limits of each user and of all users together: `[limits]`, with its defaults.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde::Deserialize;

use crate::config::nodes::LONGEST_TTL_DEFAULT;
use crate::config::values::duration;

/// One in this many descriptors is reserved for grants, because a grant takes a second descriptor
/// until the client has read it and disconnects.
///
/// The same share of the connections is reserved for root and the user that runs the daemon.
pub(crate) const KEPT_FOR_GRANTS: usize = 16;

/// The default for the number of waiting requests of one user.
pub(super) const WAITERS_PER_USER: usize = 20_000;

/// Descriptors that are not for connections: the journal, the listener, epoll instances, and files
/// that are open briefly.
const DESCRIPTORS_OF_OUR_OWN: u64 = 32;

/// With fewer descriptors, a daemon could hardly serve any client, not even `canal daemon --stop`.
pub(crate) const DESCRIPTORS_MIN: u64 = 64;

/// The limits that the daemon applies itself. They are not part of the table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// The maximum number of connections of all users, if the configuration sets one.
    pub(super) connections: Option<NonZeroUsize>,
    /// The maximum number of connections of one user.
    pub connections_per_user: Option<NonZeroUsize>,
    /// How long a connection may be idle when other clients need its room.
    #[serde(deserialize_with = "duration")]
    pub connection_idle: Duration,
    /// The maximum number of waiting requests of one user.
    pub waiters_per_user: usize,
    /// The maximum number of leases that one user holds.
    pub leases_per_user: usize,
    /// The maximum number of bytes of the keys that one user holds and waits for.
    pub key_bytes_per_user: usize,
    /// The longest TTL of a lease over nodes, which `[nodes]` has.
    #[serde(skip)]
    pub nodes_longest_ttl: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: None,
            connections_per_user: None,
            connection_idle: Duration::from_secs(60),
            waiters_per_user: WAITERS_PER_USER,
            leases_per_user: 10_000,
            key_bytes_per_user: 32 * 1024 * 1024,
            nodes_longest_ttl: LONGEST_TTL_DEFAULT,
        }
    }
}

impl Limits {
    /// The maximum number of connections if the process may open `descriptors`, and `owners` of
    /// them belong to owners.
    pub(crate) fn connections(&self, descriptors: u64, owners: usize) -> usize {
        let fit = connections_max(descriptors, owners);
        self.connections.map_or(fit, |connections| connections.get().min(fit))
    }
}

/// How many connections fit into `descriptors` if watched processes and FIFOs take `owners` of
/// them.
fn connections_max(descriptors: u64, owners: usize) -> usize {
    let left = descriptors.saturating_sub(DESCRIPTORS_OF_OUR_OWN).saturating_sub(owners as u64);
    usize::try_from(left - left.div_ceil(KEPT_FOR_GRANTS as u64)).unwrap_or(usize::MAX)
}

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
    fn without_descriptors_the_daemon_takes_no_connections() {
        assert_eq!(connections_max(0, 0), 0);
        assert_eq!(connections_max(64, 100), 0);
        assert_eq!(connections_max(33, 0), 0);
        assert_eq!(connections_max(34, 0), 1);
        assert!(connections_max(DESCRIPTORS_MIN, 0) >= 16);
    }
}
