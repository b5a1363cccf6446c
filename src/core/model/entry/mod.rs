//! What can happen to the table.

pub(in crate::core) mod over_nodes;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Above, FrameId, HostId, Key, LeaseId, OverNodes, ProcessId, RequestId, Revision, Tag, Token,
    UnixMillis, View,
};

/// The version that this program writes into the entries it makes.
pub const ENTRY_VERSION: u16 = 1;

/// One entry of the log: the unit in which the table changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The version of the entry's format, [`ENTRY_VERSION`].
    #[serde(rename = "v")]
    pub version: u16,
    /// When it was proposed; shown in status as "since", never decided upon.
    pub at: UnixMillis,
    /// What happened.
    #[serde(rename = "do")]
    pub change: Change,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A client requests a lock.
    Request(Arc<Request>),
    /// The client has confirmed a provisional grant to the owner: the hold is now firm.
    Confirm {
        /// Which request.
        request: RequestId,
    },
    /// Enough nodes have granted a request over nodes: its hold here is now firm and has this token,
    /// and the next token is a larger one. Changes nothing if the hold has ended, or cannot have that
    /// token.
    ConfirmAt {
        /// Which request.
        request: RequestId,
        /// The token that the hold has from now on: not smaller than the one that it has.
        token: Token,
        /// The note that it has from now on, empty for none; `None` leaves it as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Box<str>>,
    },
    /// A request is withdrawn: removed if it waits; taken back if it was granted provisionally, or
    /// if the client was not told yet. A no-op for a request that is unknown or has ended.
    Withdraw {
        /// Which request.
        request: RequestId,
        /// Why.
        why: Withdrawal,
    },
    /// A hold, or an item of it, is released by its owner or by force.
    Release(Release),
    /// The owner's process has ended: its requests are withdrawn and its holds end. Holds that are
    /// kept for its descendants (`children`) end by a `Release` of their own.
    End {
        /// Which frame.
        frame: FrameId,
    },
    /// A client that knows the handle of a lease renews it: it lives on for its whole TTL from when
    /// the daemon of `host` applies this. That host looks after it from now on.
    Renew {
        /// Which lease.
        lease: LeaseId,
        /// The host whose daemon received the renewal.
        host: HostId,
        /// The note that it has from now on, empty for none; `None` leaves it as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Box<str>>,
        /// The TTL that it has from now on, in milliseconds; `None` leaves it as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
    },
    /// A lease was not renewed within its TTL and ends. A no-op if it was renewed since, or has
    /// ended.
    Expire {
        /// The lease's frame.
        frame: FrameId,
        /// How often it had been renewed when the TTL began.
        renewal: u64,
    },
    /// A waiter's process is stopped or frozen: the request keeps its position and precedes no
    /// other. If it was granted and the client was not told yet, the grant is taken back first.
    Suspend {
        /// Which request.
        request: RequestId,
    },
    /// A suspended waiter runs again, or the client of a detached one has connected again.
    Resume {
        /// Which request.
        request: RequestId,
    },
    /// The daemon of `host` restarted: its waiters are detached. They keep their positions and
    /// precede others, but are not granted until resumed.
    Detach {
        /// The host whose waiters are detached.
        host: HostId,
    },
    /// A host joins.
    HostJoin {
        /// Its incarnation.
        host: HostId,
        /// The name that people know it by.
        label: String,
        /// A description of it, for people.
        identity: String,
    },
    /// A host is gone: what its processes hold and wait for ends. The daemon of `by` looks after
    /// its leases from now on, each for its whole TTL.
    HostGone {
        /// Which incarnation.
        host: HostId,
        /// The host that reports it.
        by: HostId,
    },
    /// The daemon of a host restarted within the same boot: the frames of `old` become those of
    /// `new`, which has none yet. Their waiters are detached as by `Detach`.
    HostAdopt {
        /// The incarnation that ends.
        old: HostId,
        /// The incarnation that takes its place.
        new: HostId,
    },
    /// A hash of the table after an entry; changes nothing. A host whose own table differed there
    /// must not continue.
    Checkpoint {
        /// After which entry.
        revision: Revision,
        /// A SHA-256 hash of the table, in hexadecimal.
        table: String,
    },
    /// Stores a view, or removes the stored one (`None`).
    Resize {
        /// Of which key.
        key: Key,
        /// The view to store; `None` forgets the stored one.
        view: Option<View>,
    },
    /// Pauses a key, or resumes it. A paused key keeps its view, its kind and its holders, and
    /// grants no more slots.
    Pause {
        /// Which key.
        key: Key,
        /// Whether it is paused from now on.
        paused: bool,
    },
    /// How often a waiter may be overtaken before it becomes a barrier.
    Policy {
        /// Overtakings allowed; 64 by default.
        bypass_max: u32,
    },
    /// The next token is at least this one.
    Floor {
        /// The smallest token that may be given out next.
        token: Token,
    },
    /// The engine begins another era: it was set up anew, restored or replaced. Unless this is the
    /// first entry of the log, a [recovery](super::Recovery) begins, which waits for all hosts. A
    /// no-op if the log already names an era with this number or a later one.
    Era {
        /// Counts the eras; the first is 1.
        number: u64,
        /// Whether entries that were in the log may be missing: the recovery then waits for the
        /// longest TTL too.
        may_lack: bool,
        /// The smallest token that may be given out next, by the clock of the host that says so.
        floor: Token,
    },
    /// A host reports the tokens that it was told, when it joins and when the log names another
    /// era. If this shows that the log lost entries, a recovery begins, which waits for the longest
    /// TTL.
    Present {
        /// Which incarnation.
        host: HostId,
        /// The largest token that it was told for certain; 0 if none.
        told: Token,
        /// The largest token that it may have been told.
        bound: Token,
        /// Whether it had read entries that the log does not have any more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lost: bool,
        /// Its time to live, in milliseconds.
        ttl_ms: u64,
        /// By its clock: if entries were lost, the smallest token that may be given out next. Other
        /// hosts may have been told larger ones than this one.
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
/// one copy of each request: there may be thousands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's name for it.
    pub tag: Tag,
    /// Which host's daemon watches the owner.
    #[serde(default)]
    pub host: HostId,
    /// The owner of the hold. All requests and holds of one owner form one frame.
    pub owner: Owner,
    /// The enclosing frame, for nested commands. Ignored if the owner already has a frame, or if
    /// this frame has ended; the table stores the actual one. Of a lease only over nodes: the frame
    /// of another lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<FrameId>,
    /// The user of owner and client, as the kernel reported it.
    pub uid: u32,
    /// What to show of it.
    pub command: Command,
    /// What the client wants people to know about it. Shown, never decided upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Box<str>>,
    /// The items: at least one, each key once.
    pub items: Vec<Item>,
    /// Whether it may wait.
    pub wait: Wait,
    /// Higher is served first; 0 is usual.
    #[serde(default)]
    pub priority: i32,
    /// It does not wait where so many requests, or more, wait for one of its keys already. It is part
    /// of the request so that all hosts decide alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u64>,
    /// How long the client lets the command run after the grant, in milliseconds. The client ends it;
    /// here it is shown, and never decided upon.
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
    /// What happens to the command if its host loses the hold while it runs (only over an engine).
    #[serde(default, skip_serializing_if = "OnLost::is_default")]
    pub on_lost: OnLost,
    /// The client's process, if the request may wait and its owner is a lease or another process.
    /// Only the daemon of its host looks at it, after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<ProcessId>,
    /// Of a request over nodes: what its part here has to know of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_nodes: Option<Box<OverNodes>>,
    /// What encloses it beyond this table, as its client says: only those who look for deadlocks over
    /// nodes go by it. It authorises nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Box<Above>>,
}

/// What happens to a command whose hold is lost while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// It gets TERM, and is killed with all that it started before its locks can be granted to
    /// another client.
    #[default]
    Kill,
    /// It gets TERM only.
    Term,
    /// It runs on; a warning is shown.
    Warn,
}

impl OnLost {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a holder or waiter is shown to people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Command(pub String);

/// The owner of a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A process of the host.
    Process(ProcessId),
    /// Any client that knows the handle of the lease. It has one request in its life. Only leases
    /// over nodes enclose other leases.
    Lease(LeaseId),
    /// The jobserver of a build, which has this tag. Its holds are job tokens, each with a slot of its
    /// own. It never waits.
    Jobserver(Tag),
}

/// One item of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Of which key.
    pub key: Key,
    /// What of it.
    pub ask: Ask,
}

/// What is asked of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// Slots of a counted lock.
    Counted {
        /// How many at once, at least 1.
        count: u64,
        /// The view that the caller states. A stored view takes its place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        view: Option<View>,
        /// Of an item without a view: the one that the table gave it when the request was applied,
        /// `None` for [`View::ONE`]. The item keeps it. Only the table sets it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        given: Option<View>,
    },
    /// To read the key and everything below it, shared with other readers.
    Read,
    /// To write the key and everything below it, alone.
    Write,
}

/// The mode in which a key is requested or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
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

    /// Slots of a counted lock, as a caller asks for them.
    #[must_use]
    pub const fn slots(count: u64, view: Option<View>) -> Self {
        Self::Counted { count, view, given: None }
    }

    /// Of a counted item: how many slots it asks for, and the view that it has where none is
    /// stored. `None` stands for [`View::ONE`].
    #[must_use]
    pub fn counted(&self) -> Option<(u64, Option<View>)> {
        match *self {
            Self::Counted { count, view, given } => Some((count, view.or(given))),
            Self::Read | Self::Write => None,
        }
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
    /// Granted at once or refused.
    No,
    /// Queues until granted or withdrawn. `until` is for the daemon that watches over it: the
    /// time-out in milliseconds of CLOCK_BOOTTIME, `None` for ever.
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
    /// Its connection closed, or it cancelled.
    Cancelled,
    /// Its time was over.
    Timeout,
    /// It was detached by a restart and did not come back.
    Lost,
}

/// What is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The frame's latest hold of the key; if that hold has several items, only this item.
    Latest {
        /// Whose.
        frame: FrameId,
        /// Of which key.
        key: Key,
    },
    /// Everything that the frame holds.
    All {
        /// Whose.
        frame: FrameId,
    },
    /// One hold with all its items, of any frame.
    Hold {
        /// Its token.
        token: Token,
        /// Whether another client than the owner forced it; kept for the record.
        #[serde(default)]
        forced: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_lost_is_kill_by_default() {
        // As a journal has it that was written before this was asked.
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
