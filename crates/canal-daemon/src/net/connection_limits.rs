//! Limits how many connections each user may have.
//!
//! Invariant: root and the user that runs the daemon are accepted while there is any room. Whatever
//! other users do, every user gets a part of the rest.

use crate::limits::{KEPT_FOR_GRANTS, SHARE_OF_WHAT_IS_LEFT};
use canal_protocol::{ErrorName, Failure};

/// The limits on connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// The limit for all users together.
    pub all: usize,
    /// The limit for each user, if the configuration sets one.
    pub each: Option<usize>,
    /// The user that runs the daemon.
    pub own: u32,
}

/// Why a connection is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    /// The limit on all connections is reached.
    Full,
    /// The user already has its share.
    Share { uid: u32, has: usize },
}

impl ConnectionLimits {
    /// Why to turn away another connection of a user; `None` to accept it. `there` counts the
    /// connections of all users, `has` those of this user.
    pub(crate) fn turns_away(&self, uid: u32, there: usize, has: usize) -> Option<TurnedAway> {
        if uid == 0 || uid == self.own {
            return (there >= self.all).then_some(TurnedAway::Full);
        }
        let kept = self.all / KEPT_FOR_GRANTS;
        let left = self.all.saturating_sub(kept).saturating_sub(there);
        if left == 0 {
            return Some(TurnedAway::Full);
        }
        // A share of the remaining room, not of the whole, so that a few users together cannot take
        // everything.
        let most = self.each.unwrap_or(left.saturating_mul(SHARE_OF_WHAT_IS_LEFT));
        (has >= most).then_some(TurnedAway::Share { uid, has })
    }
}

impl TurnedAway {
    /// The error for the client.
    pub(crate) fn failure(self) -> Failure {
        let (message, hint) = match self {
            Self::Full => (
                "the daemon has reached its limit on connections".to_owned(),
                "try again later, or raise `connections` in the configuration or the limit on \
                 open files",
            ),
            Self::Share { uid, has } => (
                format!(
                    "uid {uid} has {has} connections to the daemon, the most that one user may \
                     have"
                ),
                "try again later, or raise `connections_per_user` or `connections` in the \
                 configuration",
            ),
        };
        Failure::new(ErrorName::TooManyConnections, message).hint(hint)
    }
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
            assert_eq!(ROOM.turns_away(uid, 1600, 0), Some(TurnedAway::Full));
        }
        assert_eq!(ROOM.turns_away(8, 1500, 0), Some(TurnedAway::Full));
        assert_eq!(ROOM.turns_away(7, 1500, 0), None);
    }

    #[test]
    fn the_configured_limit_per_user_does_not_bind_root_and_the_daemons_user() {
        let room = ConnectionLimits { each: Some(3), ..ROOM };
        assert_eq!(filled(room, &[1000, 1001]), [3, 3]);
        let why = room.turns_away(1000, 6, 3);
        assert_eq!(why, Some(TurnedAway::Share { uid: 1000, has: 3 }));
        assert_eq!(room.turns_away(7, 6, 3), None);
    }
}
