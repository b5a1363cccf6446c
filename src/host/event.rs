//! What a member tells its driver.

use std::fmt;

use crate::core::{Entry, HostId, Revision, Snapshot, UnixMillis};
use crate::log::engine::{Alive, Outage, Position};

/// The time at which something is told to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CLOCK_BOOTTIME in milliseconds. Everything is decided by it.
    pub boot_ms: u64,
    /// The time of day, for what is shown, and for tokens after history was lost. Nothing else is
    /// decided by it.
    pub unix: UnixMillis,
}

/// Names a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the driver is to do. It takes events one at a time and carries each out before it takes
/// the next.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The table is to be replaced by this one (`None`: an empty one): at the start, after a loss,
    /// and when others had made a snapshot of what was not read yet. In the last case what was
    /// decided on the way is to be found in the table: requests of ours that neither wait nor hold
    /// any more were refused or ended.
    Restore {
        /// The table.
        snapshot: Option<Snapshot>,
        /// The last entry that is in it.
        revision: Revision,
    },
    /// Apply exactly this to the table, now.
    Entry {
        /// At which revision.
        revision: Revision,
        /// What happened.
        entry: Entry,
        /// The proposal, if it is one of ours.
        ticket: Option<Ticket>,
    },
    /// A proposal of ours was applied before the table that was just restored; what it decided is
    /// to be found there.
    Absorbed {
        /// Which proposal.
        ticket: Ticket,
        /// Its revision.
        revision: Revision,
    },
    /// A proposal of ours never makes it into the log, or not in a way that counts.
    Dropped {
        /// Which proposal.
        ticket: Ticket,
    },
    /// Before it joins: every command must be dead that an earlier daemon of this place, or an
    /// earlier incarnation of ours, had locks for. Kill what is left, wait for its death, then call
    /// [`super::Member::cleared`]; at once if there is nothing. Not asked for if the earlier
    /// incarnation is adopted.
    Clear,
    /// We are a member under this number; the entries that say so have been applied.
    Joined {
        /// Our incarnation.
        host: HostId,
        /// Whose frames are ours now: their processes are to be proven, and commands that run
        /// without a hold in the table are to be stopped.
        adopted: Option<HostId>,
    },
    /// Our incarnation ended or may have: every hold of ours is lost, and its commands are to be
    /// ended at once. The deadlines stay where they were: if it could not be renewed, TERM was due
    /// the grace before this, and KILL is due now. The member joins again by itself, as another
    /// incarnation, after a [`Event::Clear`].
    Lost {
        /// Which incarnation.
        host: HostId,
        /// Why.
        why: LostWhy,
    },
    /// A plain copy of the table as it is now is wanted: call [`super::Member::store`].
    SnapshotWanted,
    /// The engine is of no use for now. Said again if the reason becomes another one.
    Away(Outage),
    /// The engine answers again.
    Back,
    /// The engine answers, and this host can take no part as things are. It tries again by itself;
    /// [`Event::Unhindered`] or [`Event::Joined`] says that this is over. Said again if the reason
    /// becomes another one. As long as commands of ours may run they do: what is not renewed
    /// meanwhile ends at its deadline.
    Hindered(Outage),
    /// What hindered a member is over.
    Unhindered,
}

/// Why an incarnation is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostWhy {
    /// It could not be renewed in time.
    NotRenewed {
        /// Since when, in milliseconds of CLOCK_BOOTTIME.
        since_ms: u64,
    },
    /// The engine says that it ended.
    Fenced {
        /// What it says, for people.
        why: String,
    },
    /// Another host declared it gone.
    Gone {
        /// Which one.
        by: HostId,
    },
    /// The log is not the one that we had read.
    Rewritten,
    /// Our table is not the one that the other hosts have.
    Differs,
}

impl fmt::Display for LostWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRenewed { .. } => f.write_str("the engine could not be reached in time"),
            Self::Fenced { why } => write!(f, "the engine ended this host's membership: {why}"),
            Self::Gone { by } => write!(f, "host {by} declared this host gone"),
            Self::Rewritten => f.write_str("the engine's history was rewritten"),
            Self::Differs => f.write_str("this host's table is not that of the other hosts"),
        }
    }
}

/// When commands are to be stopped if nothing is renewed until then, in milliseconds of
/// CLOCK_BOOTTIME. The incarnation is given up at `kill_at`; a renewal that succeeds between the two
/// moves them on, and commands that did not end by TERM may go on. Both 0 before the first incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// TERM.
    pub term_at: u64,
    /// KILL.
    pub kill_at: u64,
}

/// How a host stands to the engine, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What it is about.
    pub standing: Standing,
    /// Our incarnation, once the engine gave one.
    pub host: Option<HostId>,
    /// When the last renewal was asked for that succeeded, in milliseconds of CLOCK_BOOTTIME.
    pub renewed_ms: Option<u64>,
    /// The last batch that was read.
    pub position: Position,
    /// The last batch that there was, as of the last renewal.
    pub head: Position,
    /// The incarnations that have not ended, as of the last renewal.
    pub hosts: Vec<Observed>,
}

/// What was seen of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What the engine said last.
    pub alive: Alive,
    /// When its sign was first seen as it is, in milliseconds of our CLOCK_BOOTTIME: it renewed
    /// last before that.
    pub since_ms: u64,
}

/// What a host is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was not started, or has left.
    Idle,
    /// It asks the engine for an incarnation.
    Registering,
    /// It reads the log.
    Reading,
    /// Another host has its label and may be gone: it waits until that is known.
    LabelInUse {
        /// Which one.
        by: HostId,
    },
    /// It waits until what an earlier incarnation left is dead.
    Clearing,
    /// It has said that it takes part, and waits to read it.
    Joining,
    /// It takes part.
    Member,
}
