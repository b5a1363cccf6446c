//! The entries of the log: everything that can change the table.

pub(crate) mod over_nodes;
pub(crate) mod supersede;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Above, FrameId, HostId, Key, LeaseId, OverNodes, ProcessId, RequestId, Revision, Supersede,
    Tag, Token, UnixMillis, View,
};

/// The version that this program writes into its entries.
pub const ENTRY_VERSION: u16 = 1;

/// One entry of the log: the unit in which the table changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The version of the entry's format, [`ENTRY_VERSION`].
    #[serde(rename = "v")]
    pub version: u16,
    /// When it was proposed. Status shows it as "since"; no decision depends on it.
    pub at: UnixMillis,
    /// The change.
    #[serde(rename = "do")]
    pub change: Change,
}

/// The kinds of change to the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A client requests a lock.
    Request(Arc<Request>),
    /// The client has confirmed a provisional grant to the owner: the hold is now firm.
    Confirm {
        /// The request.
        request: RequestId,
    },
    /// Enough nodes have granted a request over nodes: its hold here is now firm and has this
    /// token, and the next token is larger. Changes nothing if the hold has ended or cannot have
    /// that token.
    ConfirmAt {
        /// The request.
        request: RequestId,
        /// The new token of the hold, not smaller than its present one.
        token: Token,
        /// The new note, empty for none. `None` keeps the present one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Box<str>>,
    },
    /// A request is withdrawn. It is removed if it waits, and taken back if its grant is
    /// provisional or has not yet reached the client. A no-op for a request that is unknown or has
    /// ended.
    Withdraw {
        /// The request.
        request: RequestId,
        /// The reason.
        why: Withdrawal,
    },
    /// The owner, or another client by force, releases a hold or an item of it.
    Release(Release),
    /// The owner's process has ended: its requests are withdrawn and its holds end. Holds that are
    /// kept for its descendants (`children`) end by a separate `Release`.
    End {
        /// The frame.
        frame: FrameId,
    },
    /// A client that knows the handle of a lease renews it: the lease lives for its whole TTL from
    /// the moment when the daemon of `host` applies this. That host watches over it from now on.
    Renew {
        /// The lease.
        lease: LeaseId,
        /// The host whose daemon received the renewal.
        host: HostId,
        /// The new note, empty for none. `None` keeps the present one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Box<str>>,
        /// The new TTL, in milliseconds. `None` keeps the present one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
    },
    /// A lease was not renewed within its TTL, and ends. A no-op if it has been renewed since or
    /// has ended.
    Expire {
        /// The lease's frame.
        frame: FrameId,
        /// The number of renewals when the TTL began.
        renewal: u64,
    },
    /// A waiter's process is stopped or frozen: the request keeps its position but precedes no
    /// other. If it was granted and the client has not yet received the grant, the grant is taken
    /// back first.
    Suspend {
        /// The request.
        request: RequestId,
    },
    /// A suspended waiter runs again, or the client of a detached waiter has connected again.
    Resume {
        /// The request.
        request: RequestId,
    },
    /// The daemon of `host` restarted: its waiters are detached. They keep their positions and
    /// precede others, but are granted only after a `Resume`.
    Detach {
        /// The host whose waiters are detached.
        host: HostId,
    },
    /// A host joins.
    HostJoin {
        /// Its incarnation.
        host: HostId,
        /// The name that its users know it by.
        label: String,
        /// A description of it, for display.
        identity: String,
    },
    /// A host is gone: the holds and requests of its processes end. The daemon of `by` watches over
    /// its leases from now on, each for its whole TTL.
    HostGone {
        /// The incarnation.
        host: HostId,
        /// The host that reports it.
        by: HostId,
    },
    /// The daemon of a host restarted within the same boot: the frames of `old` become those of
    /// `new`, which has none yet. Their waiters are detached, as by `Detach`.
    HostAdopt {
        /// The incarnation that ends.
        old: HostId,
        /// The incarnation that takes its place.
        new: HostId,
    },
    /// A hash of the table after an entry; changes nothing. A host whose own table differed at that
    /// entry must not continue.
    Checkpoint {
        /// The revision of that entry.
        revision: Revision,
        /// A SHA-256 hash of the table, in hexadecimal.
        table: String,
    },
    /// Stores a view, or removes the stored one (`None`).
    Resize {
        /// The key.
        key: Key,
        /// The view to store; `None` removes the stored one.
        view: Option<View>,
    },
    /// Pauses a key, or resumes it. A paused key keeps its view, its kind and its holders, but
    /// grants no further slots.
    Pause {
        /// The key.
        key: Key,
        /// Whether it is paused from now on.
        paused: bool,
    },
    /// Gives the waiting requests of a session another priority.
    Prioritize {
        /// The outermost frame of the session.
        session: FrameId,
        /// The new priority.
        priority: i32,
    },
    /// Takes buckets of a key (for the slots kind: slots) out of service, or returns them. Their
    /// holders keep them, but no one else gets them.
    Service {
        /// The key.
        key: Key,
        /// The numbers of the buckets.
        numbers: Vec<u64>,
        /// Whether they are out of service from now on.
        out: bool,
    },
    /// Sets how often a waiter may be overtaken before it becomes a barrier.
    Policy {
        /// The number of grants that may overtake a waiter; 64 by default.
        bypass_max: u32,
    },
    /// The next token is at least this one.
    Floor {
        /// The smallest token that the table may issue next.
        token: Token,
    },
    /// The engine begins another era: it was set up again, restored or replaced. Unless this is the
    /// first entry of the log, a [recovery](super::Recovery) begins, which waits for all hosts. A
    /// no-op if the log already names an era with this number or a later one.
    Era {
        /// The number of the era; the first is 1.
        number: u64,
        /// Whether entries that were in the log may be missing. The recovery then also waits for
        /// the longest TTL.
        may_lack: bool,
        /// The smallest token that the table may issue next, by the clock of the host that reports
        /// the era.
        floor: Token,
    },
    /// A host reports the tokens that it has received, when it joins and when the log names another
    /// era. If the report shows that the log lost entries, a recovery begins, which waits for the
    /// longest TTL.
    Present {
        /// The incarnation.
        host: HostId,
        /// The largest token that it has certainly received; 0 if none.
        told: Token,
        /// The largest token that it may have received.
        bound: Token,
        /// Whether it had read entries that the log no longer has.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lost: bool,
        /// Its TTL, in milliseconds.
        ttl_ms: u64,
        /// If entries were lost, the smallest token that the table may issue next, by this host's
        /// clock. Other hosts may have received larger tokens than this one.
        floor: Token,
    },
    /// The longest TTL has passed since the entry from which a recovery counts. A no-op if the
    /// recovery counts from another entry.
    TtlPassed {
        /// The entry from which the recovery counts.
        from: Revision,
    },
}

/// One or more items, granted all together or not at all. The log, the table and the daemon share
/// one copy of each request, because there may be thousands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's name for the request.
    pub tag: Tag,
    /// The host whose daemon watches the owner.
    #[serde(default)]
    pub host: HostId,
    /// The owner of the hold. All requests and holds of one owner form one frame, regardless of how
    /// they were made: `canal acquire --pid P` and the `canal run` that became P do not block each
    /// other.
    pub owner: Owner,
    /// The enclosing frame, for nested commands. Ignored if the owner already has a frame, or if
    /// this frame has ended; the table stores the actual one. For a lease, only allowed over nodes:
    /// the frame of another lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<FrameId>,
    /// The user of owner and client, as the kernel reported it.
    pub uid: u32,
    /// The command, for display.
    pub command: Command,
    /// The client's note to people. Shown, but no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Box<str>>,
    /// The items: at least one, each key once.
    pub items: Vec<Item>,
    /// Whether it may wait.
    pub wait: Wait,
    /// A request with a higher priority is granted first; 0 is usual.
    #[serde(default)]
    pub priority: i32,
    /// It is refused instead of queued if one of its keys already has this many waiters. The limit
    /// is part of the request so that all hosts decide alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u64>,
    /// Its group, and which older requests of the group it supersedes. Part of the request so that
    /// all hosts decide alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersede: Option<Box<Supersede>>,
    /// How long the client lets the command run after the grant, in milliseconds. The client
    /// enforces it. The table only shows it; no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// Whether a grant is provisional until a `Confirm` (the client is not the owner).
    #[serde(default)]
    pub provisional: bool,
    /// Whether the hold outlives the owner's process while descendants of it live.
    #[serde(default)]
    pub children: bool,
    /// For leases only: the TTL in milliseconds. The daemon of its host measures it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The fate of the command if its host loses the hold while it runs (only over an engine).
    #[serde(default, skip_serializing_if = "OnLost::is_default")]
    pub on_lost: OnLost,
    /// The client's process, if the request may wait and its owner is a lease or another process.
    /// Only the daemon of its host uses it, after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<ProcessId>,
    /// For a request over nodes: what this part needs to know about the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_nodes: Option<Box<OverNodes>>,
    /// The run or frame that encloses it beyond this table, as its client declares. Only the search
    /// for deadlocks over nodes uses it. It authorises nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Box<Above>>,
}

/// The fate of a command whose hold is lost while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// The command gets SIGTERM. canal kills it and everything that it started before another
    /// client can be granted its locks.
    #[default]
    Kill,
    /// The command only gets SIGTERM.
    Term,
    /// The command continues; a warning is shown.
    Warn,
}

impl OnLost {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The text that describes a holder or waiter to people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Command(pub String);

/// The owner of a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A process of the host.
    Process(ProcessId),
    /// Any client that knows the handle of the lease. A lease has one request in its life. Only
    /// leases over nodes enclose other leases.
    Lease(LeaseId),
    /// The jobserver of a build, which has this tag. Its holds are job tokens, each with its own
    /// slot. It never waits.
    Jobserver(Tag),
}

/// One item of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The key.
    pub key: Key,
    /// The part of it that is requested.
    pub ask: Ask,
}

/// The request for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// Slots of a counted lock.
    Counted {
        /// The number of slots at once, at least 1.
        count: u64,
        /// The view that the caller states. A stored view overrides it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        view: Option<View>,
        /// For an item without a view: the view that the table gave it when it applied the request,
        /// `None` for [`View::ONE`]. The item keeps it. Only the table sets it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        given: Option<View>,
        /// Whether a single slot comes from the bucket with the fewest held slots, not from the
        /// lowest one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        spread: bool,
    },
    /// Reads the key and everything below it, shared with other readers.
    Read,
    /// Writes the key and everything below it, alone.
    Write,
}

/// The mode in which a key is requested or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Slots of a counted lock.
    Counted,
    /// Shared.
    Read,
    /// Alone.
    Write,
}

impl Ask {
    /// The mode in which the key is requested.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Counted { .. } => Mode::Counted,
            Self::Read => Mode::Read,
            Self::Write => Mode::Write,
        }
    }

    /// Slots of a counted lock, as a caller requests them.
    #[must_use]
    pub const fn slots(count: u64, view: Option<View>) -> Self {
        Self::Counted { count, view, given: None, spread: false }
    }

    /// For a counted item: how many slots it asks for, and the view that it has where none is
    /// stored. `None` stands for [`View::ONE`].
    #[must_use]
    pub fn counted(&self) -> Option<(u64, Option<View>)> {
        match *self {
            Self::Counted { count, view, given, .. } => Some((count, view.or(given))),
            Self::Read | Self::Write => None,
        }
    }

    /// Whether it asks for a slot of the bucket with the fewest held slots.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        matches!(self, Self::Counted { spread: true, .. })
    }

    /// Makes a counted ask take a slot of the bucket with the fewest held slots. Leaves reads and
    /// writes unchanged.
    #[must_use]
    pub fn spread(mut self) -> Self {
        if let Self::Counted { spread, .. } = &mut self {
            *spread = true;
        }
        self
    }

    /// The view that the caller states.
    #[must_use]
    pub fn stated(&self) -> Option<View> {
        match self {
            Self::Counted { view, .. } => *view,
            Self::Read | Self::Write => None,
        }
    }
}

/// Whether a request may queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// It is granted or refused immediately.
    No,
    /// It queues until it is granted or withdrawn. `until` is for the daemon that watches over it:
    /// the time-out in milliseconds of CLOCK_BOOTTIME, or `None` to wait forever.
    Yes {
        /// When the daemon withdraws it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
    },
}

/// Why a waiter was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Withdrawal {
    /// Its connection closed, or its client cancelled it.
    Cancelled,
    /// Its time-out passed.
    Timeout,
    /// A restart detached it, and its client did not return.
    Lost,
}

/// The part of the table that is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The frame's latest hold of the key. If that hold has several items, only this item.
    Latest {
        /// The frame.
        frame: FrameId,
        /// The key.
        key: Key,
    },
    /// Everything that the frame holds.
    All {
        /// The frame.
        frame: FrameId,
    },
    /// One hold of any frame, with all its items.
    Hold {
        /// Its token.
        token: Token,
        /// Whether a client other than the owner forced it; kept for the history.
        #[serde(default)]
        forced: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_lost_is_kill_by_default() {
        // An entry from a journal that predates this field.
        let old = r#"{"tag":"0000000000000000000000000000000a","owner":{"process":{"pid":1,"started":2}},
            "uid":0,"command":"x","items":[],"wait":"no"}"#;
        let mut request: Request = serde_json::from_str(old).unwrap();
        assert_eq!(request.on_lost, OnLost::Kill);
        assert!(!serde_json::to_string(&request).unwrap().contains("on_lost"));
        request.on_lost = OnLost::Warn;
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.ends_with(r#""on_lost":"warn"}"#), "{text}");
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }
}
