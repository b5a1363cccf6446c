//! The events that a member emits for its driver, the daemon.

use crate::membership::Chain;
use canal_core::{Entry, HostId, Revision, Snapshot, UnixMillis};
use canal_log::engine::Outage;

/// The time of a call to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// CLOCK_BOOTTIME in milliseconds. All decisions use it.
    pub boot_ms: u64,
    /// The time of day: for display, and for tokens after the log lost entries. No other decision
    /// uses it.
    pub unix: UnixMillis,
}

/// Why the engine cannot be used or this host cannot take part, and since when.
#[derive(Clone, Debug)]
pub(crate) struct OngoingOutage {
    pub outage: Outage,
    pub since: Now,
}

impl OngoingOutage {
    /// Notes an outage. The start time stays that of the first one, which may have hidden the
    /// others. Returns whether the outage differs from the one before.
    pub(super) fn note(ongoing: &mut Option<Self>, outage: &Outage, now: Now) -> bool {
        let before = ongoing.take();
        let is_new = before.as_ref().is_none_or(|it| it.outage != *outage);
        let since = before.map_or(now, |it| it.since);
        *ongoing = Some(Self { outage: outage.clone(), since });
        is_new
    }
}

/// Identifies a proposal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub u64);

/// A task for the driver, which takes events one at a time and carries out each before it takes the
/// next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Replace the table by this one: at the start, after a loss, and when another host's snapshot
    /// covers entries that were not read yet. In the last case the driver finds in the table what
    /// was decided meanwhile: a request of this host that neither waits nor holds has been refused
    /// or has ended.
    Restore(Box<Snapshot>),
    /// Apply exactly this entry to the table, now, under this revision. `ticket` is the proposal
    /// that it comes from, if this host proposed it.
    Entry { revision: Revision, entry: Entry, ticket: Option<Ticket> },
    /// A proposal of this host was applied under this revision, before the snapshot that was just
    /// restored. The table contains its result.
    Absorbed { ticket: Ticket, revision: Revision },
    /// A proposal of this host will never be in the log, or not in a way that counts.
    Dropped { ticket: Ticket },
    /// Before the host joins, all commands must be dead that held locks under an earlier daemon of
    /// this place, or under an earlier incarnation of this host. Kill those that remain, wait until
    /// they are dead, then call [`super::Member::cleared`] (at once if none remain). Not sent if
    /// the earlier incarnation is adopted.
    Clear,
    /// The host is a member under this number; the entries that made it one have been applied.
    /// `adopted` is the incarnation whose frames this one adopted: verify that their processes
    /// live, and stop commands that run without a hold in the table.
    Joined { host: HostId, adopted: Option<HostId> },
    /// The host's incarnation ended, or may have ended: all its holds are lost. End their commands
    /// at once. The deadlines do not move: if the incarnation could not be renewed, TERM was due a
    /// grace period ago and KILL is due now. The member joins again without a call, as another
    /// incarnation, after an [`Event::Clear`].
    Lost { host: HostId, why: LostWhy },
    /// Pass this chain and a plain copy of the current table to [`super::Member::store`].
    SnapshotWanted(Box<Chain>),
    /// The engine cannot be used for now. Sent again if the reason changes.
    Away(Outage),
    /// The engine answers again.
    Back,
    /// The engine answers but stores nothing, or stores again.
    Full,
    /// The engine answers, but this host cannot take part at present. It keeps trying;
    /// [`Event::Unhindered`] or [`Event::Joined`] follows when it succeeds. Sent again if the
    /// reason changes. Commands run on while their deadlines allow; without a renewal, they end at
    /// their deadline.
    Hindered(Outage),
    /// The host can take part again.
    Unhindered,
    /// The clients that made this host read may be served, after [`super::Member::read_up`].
    Present,
}

/// Why an incarnation is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LostWhy {
    /// It could not be renewed in time.
    #[error("the engine could not be reached in time")]
    NotRenewed,
    /// The engine reports that it ended, and gives this reason for people.
    #[error("the engine ended this host's membership: {why}")]
    Fenced { why: String },
    /// Another host declared it gone.
    #[error("host {by} declared this host gone")]
    Gone { by: HostId },
    /// The log is no longer the one that this host had read.
    #[error("the engine's history was rewritten")]
    Rewritten,
    /// This host's table differs from the other hosts' table.
    #[error("this host's table differs from the other hosts' tables")]
    Differs,
}

/// A host's activity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None: it was not started, or has left.
    #[default]
    Idle,
    /// It requests an incarnation from the engine.
    Registering,
    /// It reads the log.
    Reading,
    /// Another host has its label and may be gone; it waits for certainty.
    LabelInUse { by: HostId },
    /// It waits until the commands of an earlier incarnation are dead.
    Clearing,
    /// It has appended its join, and waits to read it.
    Joining,
    /// It is a member.
    Member,
}
