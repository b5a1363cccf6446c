//! How many connections there may be: of one user, and of all users together.

use crate::config::user_limits::KEPT_FOR_GRANTS;
use canal_protocol::{ErrorName, Failure};

/// A user may have this many times as many connections as are still left for all users. That is
/// three quarters of all connections if no other user has any.
const SHARE_OF_WHAT_IS_LEFT: usize = 3;

/// The limits on connections.
///
/// Invariant: root and the user that runs the daemon are accepted while there is any room. Whatever
/// other users do, every user gets a part of the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// The limit for all users together.
    pub all: usize,
    /// The limit for each user, if the configuration sets one.
    pub each: Option<usize>,
    /// The user that runs the daemon.
    pub own: u32,
}

impl ConnectionLimits {
    /// Why to turn away another connection of a user; `None` to accept it. `there` counts the
    /// connections of all users, `has` those of this user.
    pub(crate) fn turns_away(&self, uid: u32, there: usize, has: usize) -> Option<Failure> {
        if uid == 0 || uid == self.own {
            return (there >= self.all).then(full);
        }
        let kept = self.all / KEPT_FOR_GRANTS;
        let left = self.all.saturating_sub(kept).saturating_sub(there);
        if left == 0 {
            return Some(full());
        }
        // A share of the remaining room, not of the whole, so that a few users together cannot take
        // everything.
        let most = self.each.unwrap_or(left.saturating_mul(SHARE_OF_WHAT_IS_LEFT));
        (has >= most).then(|| has_share(uid, has))
    }
}

/// The failure for a client if the limit on all connections is reached.
pub(super) fn full() -> Failure {
    let message = "the daemon has reached its limit on connections";
    Failure::new(ErrorName::TooManyConnections, message).hint(
        "try again later, or raise `connections` in the configuration or the limit on open files",
    )
}

/// The failure for a client whose user already has its share.
fn has_share(uid: u32, has: usize) -> Failure {
    let message =
        format!("uid {uid} has {has} connections to the daemon, the most that one user may have");
    Failure::new(ErrorName::TooManyConnections, message).hint(
        "try again later, or raise `connections_per_user` or `connections` in the configuration",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: ConnectionLimits = ConnectionLimits { all: 1600, each: None, own: 7 };

    /// Lets users connect in turn until all are turned away. Returns how many connections each user
    /// has.
    fn filled(room: ConnectionLimits, users: &[u32]) -> Vec<usize> {
        let mut has = vec![0; users.len()];
        loop {
            let before = has.clone();
            for (at, uid) in users.iter().enumerate() {
                let there = has.iter().sum();
                has[at] += usize::from(room.turns_away(*uid, there, has[at]).is_none());
            }
            if has == before {
                return has;
            }
        }
    }

    #[test]
    fn one_user_gets_three_quarters_of_the_connections_and_many_leave_room_for_another() {
        let alone = filled(ROOM, &[1000])[0];
        assert!((1100..=1130).contains(&alone), "{alone}");
        for count in [2, 5, 50] {
            let users: Vec<u32> = (1000..1000 + count).collect();
            let has = filled(ROOM, &users);
            let there = has.iter().sum::<usize>();
            assert!(has.iter().all(|each| *each > 0), "{has:?}");
            assert_eq!(ROOM.turns_away(999, there, 0), None, "{there} are there");
            assert_eq!(ROOM.turns_away(0, there, 0), None);
        }
    }

    #[test]
    fn root_and_the_daemons_own_user_get_in_while_there_is_room_at_all() {
        for uid in [0, 7] {
            assert_eq!(filled(ROOM, &[uid]), [1600]);
            assert_eq!(ROOM.turns_away(uid, 1600, 0), Some(full()));
        }
        assert_eq!(ROOM.turns_away(8, 1500, 0), Some(full()));
        assert_eq!(ROOM.turns_away(7, 1500, 0), None);
    }

    #[test]
    fn the_configured_limit_per_user_does_not_bind_root_and_the_daemons_user() {
        let room = ConnectionLimits { each: Some(3), ..ROOM };
        assert_eq!(filled(room, &[1000, 1001]), [3, 3]);
        let why = room.turns_away(1000, 6, 3);
        assert_eq!(why, Some(has_share(1000, 3)));
        assert_eq!(room.turns_away(7, 6, 3), None);
    }
}
