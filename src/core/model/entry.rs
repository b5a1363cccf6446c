//! What can happen to the table.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    FrameId, HostId, Key, LeaseId, ProcessId, RequestId, Revision, Tag, Token, UnixMillis, View,
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
    /// Somebody asks.
    Request(Arc<Request>),
    /// The asker of a provisional grant has told its owner: the hold is now firm.
    Confirm {
        /// Which request.
        request: RequestId,
    },
    /// A waiter is gone: removed if it waits; taken back if it was granted provisionally or not
    /// yet told. A no-op for a request that is unknown or ended.
    Withdraw {
        /// Which request.
        request: RequestId,
        /// Why.
        why: Withdrawal,
    },
    /// Something is given back in good order, or by force.
    Release(Release),
    /// The owner's process is gone: its requests are withdrawn, its holds end, except those that
    /// are kept for its descendants (`children`), which end by a `Release` of their own.
    End {
        /// Which frame.
        frame: FrameId,
    },
    /// Somebody who knows the handle of a lease wants it to live on, for its whole TTL from when the
    /// daemon of `host` applies this. That host watches over it from now on.
    Renew {
        /// Which lease.
        lease: LeaseId,
        /// Whose daemon was asked.
        host: HostId,
    },
    /// A lease was not renewed for its TTL and ends. A no-op if it was renewed since, or is gone.
    Expire {
        /// The lease's frame.
        frame: FrameId,
        /// How often it had been renewed when its time began to run.
        renewal: u64,
    },
    /// A waiter's process is stopped or frozen: it keeps its place and bars nobody. Of a request
    /// that was granted in the same turn and not yet told, the grant is taken back first.
    Suspend {
        /// Which request.
        request: RequestId,
    },
    /// A suspended or detached waiter runs (or is connected) again.
    Resume {
        /// Which request.
        request: RequestId,
    },
    /// The daemon of `host` started anew: its waiters are detached, that is, they keep their
    /// place and bar, but are not granted until resumed.
    Detach {
        /// Whose waiters.
        host: HostId,
    },
    /// A host takes part from now on.
    HostJoin {
        /// Its incarnation.
        host: HostId,
        /// The name that people know it by.
        label: String,
        /// Who it is, for people.
        identity: String,
    },
    /// A host takes part no more: whatever its processes hold and wait for ends. Leases that it
    /// looked after are looked after by the daemon of `by`, from now on for their whole TTL.
    HostGone {
        /// Which incarnation.
        host: HostId,
        /// Who says so.
        by: HostId,
    },
    /// The daemon of a host started anew on the same boot: the frames of `old` are those of `new`,
    /// which has none yet; its waiters are detached as by `Detach`.
    HostAdopt {
        /// The incarnation that ends.
        old: HostId,
        /// The incarnation that takes its place.
        new: HostId,
    },
    /// What the table was after an entry; changes nothing. Whose own table was another one there
    /// must not go on.
    Checkpoint {
        /// After which entry.
        revision: Revision,
        /// A SHA-256 hash of the table, in hexadecimal.
        table: String,
    },
    /// Stores a view, or forgets it (`None`).
    Resize {
        /// Of which key.
        key: Key,
        /// The view to store; `None` forgets the stored one.
        view: Option<View>,
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
    /// Another era of the engine begins: it was started anew, restored or replaced. Unless it is the
    /// first entry of the log, a [recovery](super::Recovery) begins, which waits for all hosts. A
    /// no-op if the log names an era with this number or a later one.
    Era {
        /// Counts the eras; the first is 1.
        number: u64,
        /// Whether entries that were in the log may be missing: the recovery then waits for the
        /// longest TTL too.
        may_lack: bool,
        /// The smallest token that may be given out next, by the clock of the host that says so.
        floor: Token,
    },
    /// A host says which tokens it was told: as it joins, and when the log names another era. If
    /// this shows that entries of the log were lost, a recovery begins, which waits for the longest
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
    /// The longest TTL has passed since the entry from which a recovery waits for it. A no-op if it
    /// waits from another one.
    TtlPassed {
        /// Since which entry.
        from: Revision,
    },
}

/// One or more items, granted all together or not at all. It is the same one in the log, in the
/// table and with those who tell its asker: there may be thousands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's name for it.
    pub tag: Tag,
    /// Which host's daemon watches the owner.
    #[serde(default)]
    pub host: HostId,
    /// Whose it will be. All requests and holds of one owner form one frame.
    pub owner: Owner,
    /// The enclosing frame, for nested commands. Ignored if the owner has a frame already, or if
    /// this one has ended; the table keeps the one that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<FrameId>,
    /// The user to whom owner and asker belong, as the kernel told.
    pub uid: u32,
    /// What to show of it.
    pub command: Command,
    /// What is asked for; at least one, no key twice.
    pub items: Vec<Item>,
    /// Whether it may wait.
    pub wait: Wait,
    /// Higher goes first; 0 is the rule.
    #[serde(default)]
    pub priority: i32,
    /// Whether a grant is provisional until a `Confirm` (the asker is not the owner).
    #[serde(default)]
    pub provisional: bool,
    /// Whether the hold outlives the owner's process while descendants of it live.
    #[serde(default)]
    pub children: bool,
    /// Of a lease, and only of one: for how many milliseconds it lives without being renewed. The
    /// daemon of its host measures them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// What becomes of the command if its host loses the hold while it runs (only over an engine).
    #[serde(default, skip_serializing_if = "OnLost::is_default")]
    pub on_lost: OnLost,
    /// The process that asked, of a request that may wait and whose owner is a lease or another
    /// process. Only the daemon of its host looks at it, after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<ProcessId>,
}

/// What becomes of a command whose hold is lost while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// It is asked to end (TERM), and killed with all that it started before anybody else can be
    /// granted what it held.
    #[default]
    Kill,
    /// It is asked to end (TERM), and no more.
    Term,
    /// It goes on; somebody is told.
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

/// Who owns a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A process of the host.
    Process(ProcessId),
    /// Whoever knows the handle of the lease. It has one request in its life, and encloses nothing.
    Lease(LeaseId),
}

/// One thing asked for.
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
        /// The caller's view; `None` follows the lock's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        view: Option<View>,
    },
    /// To read the key and everything below it, together with others who read.
    Read,
    /// To write the key and everything below it, alone.
    Write,
}

/// In which way a key is asked for or held.
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
    /// In which way the key is asked for.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Counted { .. } => Mode::Counted,
            Self::Read => Mode::Read,
            Self::Write => Mode::Write,
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

/// What is given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The frame's latest hold of the key; of a hold with several items, that item.
    Latest {
        /// Whose.
        frame: FrameId,
        /// Of which key.
        key: Key,
    },
    /// Everything the frame holds.
    All {
        /// Whose.
        frame: FrameId,
    },
    /// One hold with all its items, whoever has it.
    Hold {
        /// Its token.
        token: Token,
        /// Whether it was forced by somebody else than the owner; kept for the record.
        #[serde(default)]
        forced: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_command_is_kill_unless_it_is_said() {
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
