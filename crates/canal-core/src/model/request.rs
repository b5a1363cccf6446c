//! Requests: what a client asks for, and everything that the table needs to know about it.

use serde::{Deserialize, Serialize};

use super::{FrameId, HostId, Key, LeaseId, NodeId, ProcessId, RunId, Tag, View};

/// The most items of one request.
pub const ITEMS_MAX: usize = 64;

/// One or more items, granted all together or not at all. The log, the table and the daemon share
/// one copy of each request, because there may be thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "super::id::is_zero")]
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

/// A process that does not exist, in place of the owner that every request has to name.
impl Default for Owner {
    fn default() -> Self {
        Self::Process(ProcessId::default())
    }
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
    pub fn mode(&self) -> Mode {
        match self {
            Self::Counted { .. } => Mode::Counted,
            Self::Read => Mode::Read,
            Self::Write => Mode::Write,
        }
    }

    /// Slots of a counted lock, as a caller requests them.
    pub const fn slots(count: u64, view: Option<View>) -> Self {
        Self::Counted { count, view, given: None, spread: false }
    }

    /// For a counted item: how many slots it asks for, and the view that it has where none is
    /// stored. `None` stands for [`View::ONE`].
    pub fn counted(&self) -> Option<(u64, Option<View>)> {
        let Self::Counted { count, view, given, .. } = *self else { return None };
        Some((count, view.or(given)))
    }

    /// Whether it asks for a slot of the bucket with the fewest held slots.
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
    pub fn stated(&self) -> Option<View> {
        if let Self::Counted { view, .. } = self { *view } else { None }
    }
}

/// Whether a request may queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// It is granted or refused immediately.
    #[default]
    No,
    /// It queues until it is granted or withdrawn. `until` is for the daemon that watches over it:
    /// the time-out in milliseconds of CLOCK_BOOTTIME, or `None` to wait forever.
    Yes {
        /// When the daemon withdraws it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
    },
}

/// The most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 512;

/// The most bytes of the name of a group.
pub const GROUP_BYTES_MAX: usize = 256;

/// How many superseded requests to remember. A client whose daemon ended before it could report the
/// refusal usually asks again within seconds.
pub const SUPERSEDED_MAX: usize = 256;

/// The group of a request, and which older requests of it the request supersedes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supersede {
    /// The name of its group. Requests without a name form a group if they have the same keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<str>>,
    /// Which requests of its group it supersedes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub which: Option<Superseded>,
}

impl Request {
    /// Notes that the request has already waited: the limit on waiting requests does not apply to
    /// it, and it supersedes no others again.
    pub fn has_waited(&mut self) {
        self.max_waiting = None;
        if let Some(supersede) = &mut self.supersede {
            supersede.which = None;
        }
    }
}

/// The older requests that a request supersedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Superseded {
    /// Those that wait: they are refused.
    Waiting,
    /// Also those that hold. Their clients are not refused; the client of the new request ends
    /// their processes. A client can do so under every configuration of the daemon, because it may
    /// signal the processes of its own user.
    Running,
}

/// The fields that only a request over nodes has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverNodes {
    /// The run: the request over all its nodes. Public; it authorises nothing.
    pub run: RunId,
    /// All nodes that it names, ascending, each once.
    pub nodes: Vec<NodeId>,
    /// How many of them must grant it.
    pub require: Require,
    /// Whether enough other nodes have already granted it. A spare part never waits and blocks no
    /// other request; while it is provisional, it is taken back if another request would then fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
}

/// How many nodes must grant a request over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Require {
    /// Each of them.
    All,
    /// More than half of them.
    Majority,
    /// One of them. It excludes no other request over nodes.
    Any,
}

/// A run or frame that encloses a request beyond its table. A client's claim, which is trusted
/// unless the node knows better: a false claim gains nothing, and can only harm a request in that
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Above {
    /// A run over nodes.
    Run(RunId),
    /// A frame of a daemon that is also a node.
    Frame(NodeId, FrameId),
}

/// The most nodes that a request over nodes may name.
pub const NODES_MAX: usize = 64;

/// The largest token that a confirmation may ask for: 2^52, which every JSON reader represents
/// exactly.
pub const CONFIRMED_TOKEN_MAX: u64 = 1 << 52;

impl Require {
    /// How many of `nodes` must grant the request.
    pub fn least(self, nodes: usize) -> usize {
        match self {
            Self::All => nodes,
            Self::Majority => nodes / 2 + 1,
            Self::Any => 1,
        }
    }
}

impl OverNodes {
    /// How many of its nodes must grant it.
    pub fn least(&self) -> usize {
        self.require.least(self.nodes.len())
    }

    /// Whether there is at least one node, and the nodes are ascending, each once.
    pub fn is_sorted(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// Whether every set of nodes that is enough for one of two requests shares a node with every
    /// set that is enough for the other. Only then do the requests exclude each other.
    pub fn always_meets(&self, other: &Self) -> bool {
        let also = self.nodes.iter().filter(|node| !other.nodes.contains(node)).count();
        self.least() + other.least() > other.nodes.len() + also
    }
}

/// The held and waiting requests of one user, in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of held leases.
    pub leases: usize,
    /// The room that the keys take; see [`key_room`].
    pub key_bytes: usize,
}

/// The room that a key takes in a request: its length, plus a flat amount for the data stored with
/// it.
pub fn key_room(key: &Key) -> usize {
    key.as_str().len() + 64
}

/// The room that the keys of these items take.
pub fn room_of(items: &[Item]) -> usize {
    items.iter().map(|item| key_room(&item.key)).sum()
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

    fn over(nodes: &[u128], require: Require) -> OverNodes {
        let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
        OverNodes { run: RunId(1), nodes, require, spare: false }
    }

    /// All choices of the least number of nodes.
    fn quorums(of: &OverNodes) -> Vec<Vec<NodeId>> {
        let all = 0..1_usize << of.nodes.len();
        let chosen = |set: usize| {
            let nodes = of.nodes.iter().enumerate();
            nodes.filter(|(at, _)| set >> at & 1 == 1).map(|(_, node)| *node).collect::<Vec<_>>()
        };
        all.map(chosen).filter(|nodes| nodes.len() == of.least()).collect()
    }

    #[test]
    fn two_lists_always_meet_just_if_no_two_quorums_are_disjoint() {
        let mut apart = 0;
        for one in 1_u32..32 {
            for other in 1_u32..32 {
                let list = |set: u32| (0..5).filter(|at| set >> at & 1 == 1).collect::<Vec<u128>>();
                for (left, right) in [
                    (Require::Majority, Require::Majority),
                    (Require::All, Require::Majority),
                    (Require::All, Require::All),
                ] {
                    let one = over(&list(one), left);
                    let other = over(&list(other), right);
                    let disjoint = quorums(&one).iter().any(|these| {
                        quorums(&other)
                            .iter()
                            .any(|those| !these.iter().any(|it| those.contains(it)))
                    });
                    assert_eq!(one.always_meets(&other), !disjoint, "{one:?} {other:?}");
                    apart += usize::from(disjoint);
                }
            }
        }
        assert!(apart > 0);
        let (abc, abd) = ([1, 2, 3], [1, 2, 4]);
        assert!(!over(&abc, Require::Majority).always_meets(&over(&abd, Require::Majority)));
    }

    #[test]
    fn a_list_is_in_order_and_names_each_node_once() {
        for (nodes, sorted) in [(&[][..], false), (&[1], true), (&[1, 1], false), (&[2, 1], false)]
        {
            assert_eq!(over(nodes, Require::All).is_sorted(), sorted, "{nodes:?}");
        }
    }
}
