//! A lock from the request to the release: the request, its progress, its grant, the confirmation,
//! the deadline page of its hold, and its release.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::status::is_default;
use crate::{
    EstimateInfo, Handle, HolderInfo, LeaseAsked, LeaseInfo, Mode, OnLost, RunId, Superseded, Tag,
};

/// `Acquire`: requests one or more items. With `more`, replies with [`Progress`] and `continues`,
/// then with the final [`Grant`]; otherwise only with the grant. A refusal is an error reply.
/// Closing the connection withdraws the request.
///
/// A repeated call with the tag of a request that waits or holds, from the same owner, re-attaches
/// to it: a client continues this way after a restart of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// 32 random hexadecimal digits, made by the client.
    pub tag: Tag,
    /// The requested items.
    pub items: Vec<WireItem>,
    /// How long to wait in milliseconds; 0: not at all, absent: without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Requests with higher numbers go first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// The daemon refuses the request as `max-waiting` if it would have to wait and this many
    /// requests already wait for one of its keys. It never refuses a repeated call for a waiting
    /// request this way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u64>,
    /// Which older requests of the same owner's user and group the request supersedes: those that
    /// wait are refused as `superseded`. The holds are those that
    /// [`WouldKill`](crate::WouldKill) names; the client ends their processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersede: Option<Superseded>,
    /// The name of its group, at most [`GROUP_BYTES_MAX`](crate::GROUP_BYTES_MAX) bytes.
    /// Requests without a group form one with those for the same keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How long the client lets the command run after the grant, in milliseconds. Only for display:
    /// the client ends the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// The owner's command, for display.
    pub command: String,
    /// The user's note about the request, at most
    /// [`NOTE_BYTES_MAX`](crate::NOTE_BYTES_MAX) bytes. Every user who sees the key sees
    /// the note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Absent: the calling process is the owner. Otherwise the index, among the descriptors sent
    /// with this message, of the pidfd of the future owner; such a grant is provisional until
    /// `Confirm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_fd: Option<u32>,
    /// Keep the hold while descendants live: the grant contains the write end of a FIFO.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_children: bool,
    /// Start a jobserver, whose tokens are further slots of the key: the grant contains two FIFOs.
    /// Requires one slot of one key, and `with_children`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobserver: bool,
    /// With `jobserver`: one FIFO for both directions, which programs find by its path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobserver_fifo: bool,
    /// The enclosing session from the environment, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The enclosing frame from the environment, if any; an earlier [`Grant`] named it. The daemon
    /// accepts it only if the owner is that frame's process or a descendant of it; otherwise the
    /// request gets a new session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
    /// The run over nodes within which the request is made, from its environment. Only deadlock
    /// detection over nodes uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_run: Option<RunId>,
    /// The handle of a lease over nodes at this daemon, sent by a command that runs under it: the
    /// request belongs to the session of that lease. `frame` takes precedence. The daemon ignores
    /// the handle of a lease that is not confirmed, has ended, or belongs to another user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<Handle>,
    /// Requests a lease. Then no process is the owner (no `owner_fd`), there is no enclosing frame,
    /// and the grant is provisional until `Confirm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseAsked>,
    /// The process that accompanies the command while it runs, if the caller runs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<Wrapper>,
    /// The fate of the command if the lock is lost while it runs, which is only possible over an
    /// engine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_lost: OnLost,
}

impl Acquire {
    /// The keys of its items.
    pub fn keys(&self) -> Vec<&str> {
        self.items.iter().map(|item| &*item.key).collect()
    }
}

/// `WouldAcquire`: returns the grant that a request for these items would get now without waiting.
/// Takes nothing. The error is the refusal, if it would be refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldAcquire {
    /// The items, as in [`Acquire`].
    pub items: Vec<WireItem>,
    /// As in [`Acquire`].
    #[serde(default)]
    pub priority: i32,
    /// As in [`Acquire`].
    pub frame: Option<String>,
    /// As in [`Acquire`].
    pub under: Option<Handle>,
}

/// The reply to [`WouldAcquire`] if everything is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldGrant {
    /// The slots that would be granted: one for each item, in the order of the request.
    pub keys: Vec<GrantedKey>,
}

/// One item of an [`Acquire`]. `per` with `buckets`, or `slots`, or neither (the stored size, or
/// that of the latest holder that passed one, or 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireItem {
    /// The key.
    pub key: Arc<str>,
    /// Absent means counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The number of slots requested at once; absent means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Slots per bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<u64>,
    /// The number of buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    /// The total number of slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Take the slot from the bucket with the fewest held slots. Requires a count of 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spread: bool,
    /// The user's text, if it can be read as a key with a size or count and as a key alone. A note
    /// of the reply states how it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Box<str>>,
}

/// The final reply of an [`Acquire`]; `canal acquire --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// One for each item, in the order of the request.
    pub keys: Vec<GrantedKey>,
    /// The fencing token.
    pub token: u64,
    /// The owner.
    pub owner: OwnerInfo,
    /// The session's name.
    pub session: String,
    /// The frame's name, for the requests of the owner's descendants.
    #[serde(default)]
    pub frame: String,
    /// The index, among the descriptors sent with this reply, of the FIFO's write end for the
    /// command to inherit (only `with_children`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children_fd: Option<u32>,
    /// The index, among the same descriptors, of the FIFO from which the command takes job tokens
    /// (only `jobserver`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers_fd: Option<u32>,
    /// The index, among the same descriptors, of the FIFO into which the command writes them back;
    /// present with `offers_fd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns_fd: Option<u32>,
    /// The path of the FIFO that both descriptors lead to (only `jobserver_fifo`), as the daemon
    /// sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobserver_path: Option<String>,
    /// The index, among the same descriptors, of the deadline page (only over an engine, and not
    /// for a lease).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_fd: Option<u32>,
    /// The index, among the same descriptors, of the liveness pipe, which ends when the writer of
    /// the page is gone; present with the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_fd: Option<u32>,
    /// For a lease: how long it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
    /// For a lease: its secret. The daemon neither keeps nor sends it; the client that made it adds
    /// it to the output of `canal acquire --json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// Notes about sizes that differ from those in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<SizeNote>,
}

/// A note that a request passes another size than the stored one, or than the one that requests
/// without a size follow; or that a user's text was read as a size. Neither is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeNote {
    /// The key.
    pub key: String,
    /// The size that the request passes, as `3x2` or `4`; with `read`, also `3x2:2` or `:2`, or
    /// nothing.
    pub stated: String,
    /// The stored size, which counts instead; null without one.
    pub stored: Option<String>,
    /// Without a stored size: the size that the latest holder passed. The request still counts by
    /// its own.
    pub followed: Option<String>,
    /// One line for the user.
    pub message: String,
    /// Whether this daemon reports it to this user for the first time: `canal` prints it only then.
    pub first: bool,
    /// The user's text, if the note states how it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

impl SizeNote {
    /// How the text of an item was read, if it has one that begins with its key.
    pub fn of_text(item: &WireItem) -> Option<Self> {
        // The longest size and count are shorter.
        const SUFFIX_BYTES_MAX: usize = 64;
        let text = item.text.as_deref()?;
        let suffix = text.strip_prefix(&*item.key)?;
        if suffix.len() > SUFFIX_BYTES_MAX {
            return None;
        }
        let key = item.key.to_string();
        let message = match suffix {
            "" => format!(
                "`{text}` is the whole key, because it contains `/`; give a size or count with \
                 --slots, --per and --count, or confirm the key with --key-literal"
            ),
            _ => format!(
                "`{text}` means the key `{key}` with `{suffix}`; --key-literal takes a key as it is"
            ),
        };
        let stated = suffix.trim_start_matches('=').to_owned();
        let read = Some(text.to_owned());
        Some(Self { key, stated, stored: None, followed: None, message, first: false, read })
    }
}

/// The granted part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedKey {
    /// The key.
    pub key: String,
    /// The number of its slots that all holders hold after this grant; for a read or a write, the
    /// number of holders of the same key in this mode.
    pub acquired: u64,
    /// The slots, ascending.
    pub slots: Vec<SlotInfo>,
    /// The mode.
    pub mode: Mode,
}

/// A slot and its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotInfo {
    /// 0-based.
    pub slot: u64,
    /// 0-based; null for the slots kind.
    pub bucket: Option<u64>,
}

/// The owner of a grant, as canal shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInfo {
    /// The process; 0 if it has no pid where the daemon runs.
    pub pid: u32,
    /// Its command.
    pub command: String,
}

/// A reply with `continues` while an [`Acquire`] waits: immediately when it is queued, and again
/// after changes (at most about once a second).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The key that blocks it.
    pub key: String,
    /// 1 is granted next.
    pub position: u64,
    /// The number of waiters for the key.
    pub waiting: u64,
    /// The session's name; absent while the request is not in the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The reason in one clause: "2 of 2 slots held", "behind an earlier waiter".
    pub reason: String,
    /// The holders of the key, the longest first; at most [`HOLDERS_SHOWN_MAX`].
    pub holders: Vec<HolderInfo>,
    /// How much longer it will probably wait, if enough is known. The first progress has no
    /// estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateInfo>,
}

/// The most holders that a [`Progress`] or a refusal names.
pub const HOLDERS_SHOWN_MAX: usize = 5;

/// The request or hold that a call is about.
///
/// - `Abandon`: the output of the client of the waiting request has lost its reader, so the client
///   is about to withdraw the request.
/// - `Overrun`: the command of the granted request has run for longer than its caller allows, and
///   its supervisor is about to end it.
/// - `Confirm`: the client has passed a provisional grant on to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTag {
    /// The tag of the request.
    pub tag: Tag,
}

/// The process that accompanies a command while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrapper {
    /// None: the caller becomes the command by exec. It does not need its connection after the
    /// grant, so the daemon closes it if no other call was sent ahead. Over an engine that is not
    /// enough: the daemon answers
    /// [`SupervisorRequired`](crate::ErrorName::SupervisorRequired), and requests
    /// nothing.
    Exec,
    /// A parent of the caller, the supervisor, which ends the command in time if the lock is lost.
    /// Over an engine, the grant contains the descriptors of a deadline page.
    Supervised,
}

/// `DeadlinePage`: asks for the deadline page of a hold. A supervisor whose page has lost its
/// writer asks the next daemon of its host, which may have taken over the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageQuery {
    /// The request's tag.
    pub tag: Tag,
    /// The token of the grant. If the daemon ended the process because the lock was lost, the reply
    /// is [`ErrorName::LeaseLost`](crate::ErrorName::LeaseLost) with the reason.
    pub token: Option<u64>,
}

/// The reply to [`DeadlinePageQuery`]: indices among the descriptors sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlinePageFound {
    /// The index of the deadline page.
    pub deadline_fd: u32,
    /// The index of its liveness pipe.
    pub liveness_fd: u32,
}

/// `Release`: releases holds. Exactly one of `key`, `all`, `token` and `handle` selects them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The owner's latest hold of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// Everything that the owner holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// The hold with this token, with all its keys. Its owner may always release it. From another
    /// process, it is a release by force: allowed to the same user, root, and users whom the
    /// configuration permits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The lease with this secret; any caller may release it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// The owner, as in [`Acquire`]. Not used with `token` and `handle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_fd: Option<u32>,
}

/// The result of a [`Release`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The holds, or parts of them; none if a part of a request over nodes still waited.
    pub released: Vec<ReleasedHold>,
}

/// One released hold, or the released part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasedHold {
    /// Its token.
    pub token: u64,
    /// The released keys.
    pub keys: Vec<String>,
    /// The holder.
    pub holder: HolderInfo,
}
