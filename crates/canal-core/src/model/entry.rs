//! The entries of the log: everything that can change the table.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    FrameId, HostId, Key, LeaseId, Request, RequestId, Revision, Setting, Token, UnixMillis,
};

/// How many times a waiter may be overtaken unless a policy sets another limit.
pub const BYPASS_MAX_DEFAULT: u32 = 64;

/// The version of the rules by which a table decides. A journal names the rules under which it was
/// written. A daemon with other rules rebuilds its table from the recorded outcomes and decides
/// nothing again.
pub const RULES_VERSION: u32 = 1;

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
    /// Changes a stored setting of a key.
    Set {
        /// The key.
        key: Key,
        /// The setting, with its new value.
        setting: Setting,
    },
    /// Gives the waiting requests of a session another priority.
    Prioritize {
        /// The outermost frame of the session.
        session: FrameId,
        /// The new priority.
        priority: i32,
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
