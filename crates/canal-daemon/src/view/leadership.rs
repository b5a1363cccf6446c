//! The leader of a key, and the last report about it to each watching client.
//!
//! A watching client gets the present state, not a queue of changes, which would grow while it
//! sleeps.

use crate::view::Shown;
use canal_core::{HoldState, Key, Leadership, Token};
use canal_protocol::{ErrorName, Failure, Leader};

/// A client that watches the leader of a key, which is its only holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderWatch {
    pub key: Key,
    pub told: LeaderTold,
}

/// The last report about a leader to a client, reduced to the facts whose change is news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderTold {
    /// The token of the leader; `None` if there was none.
    pub token: Option<Token>,
    pub note: Option<Box<str>>,
    pub stale: bool,
}

/// The current leader of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaderFound<'a> {
    hold: Option<&'a HoldState>,
    stale: bool,
}

impl<'a> Shown<'a> {
    /// The leader of a key. `stale`: whether the table may be out of date.
    ///
    /// # Errors
    /// Several requests can hold the key at once.
    pub(crate) fn leader(&self, key: &Key, stale: bool) -> Result<LeaderFound<'a>, Failure> {
        let hold = match self.table.leader(key) {
            Leadership::Vacant => None,
            Leadership::Led(token) => self.table.hold(token),
            Leadership::Slots(slots) => return Err(several_slots(key, slots)),
            Leadership::Readers => return Err(only_readers(key)),
        };
        Ok(LeaderFound { hold, stale })
    }

    /// The leader in the form that a client receives.
    pub(crate) fn leader_reply(&self, found: LeaderFound<'_>, key: &Key) -> Leader {
        let leader = found
            .hold
            .map(|hold| self.holder_briefly(hold, Some(key)).map_texts(|text| text.to_string()));
        Leader::new(leader, found.stale)
    }
}

impl LeaderFound<'_> {
    /// No leader is known, because this host cannot read the log.
    pub(crate) const UNKNOWN: Self = Self { hold: None, stale: true };

    fn note(&self) -> Option<&str> {
        self.hold?.asked.note.as_deref()
    }

    /// The facts that a client learns from it.
    pub(crate) fn told(&self) -> LeaderTold {
        let token = self.hold.map(|hold| hold.token);
        LeaderTold { token, note: self.note().map(Box::from), stale: self.stale }
    }

    /// Whether the client already knows this.
    pub(crate) fn is_known(&self, told: &LeaderTold) -> bool {
        let LeaderTold { token, note, stale } = told;
        self.hold.map(|hold| hold.token) == *token
            && self.note() == note.as_deref()
            && self.stale == *stale
    }
}

fn several_slots(key: &Key, slots: u64) -> Failure {
    let message = format!(
        "`{key}` has {slots} slots: several processes can hold it at the same time, and none of \
         them leads"
    );
    Failure::new(ErrorName::NotExclusive, message)
        .hint("run candidates with -j 1 or with --write: only a lock with one slot has a leader")
}

fn only_readers(key: &Key) -> Failure {
    let message = format!("`{key}` has only readers: they share it, and none of them leads");
    Failure::new(ErrorName::NotExclusive, message).hint("run candidates with --key or --write")
}
