//! Asking for locks: the request, its progress, its grant and the confirmation.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::protocol::{
    EstimateInfo, Handle, HolderInfo, LeaseAsked, LeaseInfo, Mode, OnLost, RunId, Tag, Wrapper,
};

/// `Acquire`: asks for one or more items. With `more`, progress comes as [`Progress`] with
/// `continues`, then the final [`Grant`]; without, only the grant. A refusal is an error reply.
/// Closing the connection withdraws the request.
///
/// Asking again with the tag of a request that waits or holds, from the same owner, re-attaches to
/// it: that is how a client goes on after a restart of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// 32 hexadecimal digits, random, made by the client.
    pub tag: Tag,
    /// The items that are asked for.
    pub items: Vec<WireItem>,
    /// How long to wait in milliseconds; 0 = not at all, absent = for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Higher goes first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// Refused as `max-waiting` if it would have to wait, and so many wait for one of its keys
    /// already. Asking again for a request that waits is never refused so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u64>,
    /// How long the client lets the command run after the grant, in milliseconds. Only shown to
    /// people: the client ends the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// What to show of the owner.
    pub command: String,
    /// What the client wants people to know about the request, at most
    /// [`NOTE_BYTES_MAX`](crate::protocol::NOTE_BYTES_MAX) bytes. All who see the key see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Absent: the calling process is the owner. Else the index, among the descriptors sent with
    /// this message, of the pidfd of the process that shall own; such a grant is provisional until
    /// [`Confirm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_fd: Option<u32>,
    /// Keep the hold while descendants live: the grant comes with the write end of a FIFO.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_children: bool,
    /// Have a jobserver, whose tokens are further slots of the key: the grant comes with two FIFOs.
    /// Goes with one slot of one key and `with_children`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobserver: bool,
    /// The enclosing session that the environment names, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The enclosing frame that the environment names, if any; an earlier [`Grant`] named it. The
    /// daemon believes it only if the owner is or descends from that frame's process; otherwise the
    /// request gets a new session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
    /// The run over nodes within which the request is made, as its environment says. Only those who
    /// look for deadlocks over nodes go by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_run: Option<RunId>,
    /// The handle of a lease over nodes that this daemon keeps, by a command that runs under it: the
    /// request belongs to the session of that lease. `frame` goes before it. The daemon ignores the
    /// handle of a lease that is not confirmed, has ended, or is another user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<Handle>,
    /// Asks for a lease. Then no process is the owner (no `owner_fd`), there is no enclosing frame,
    /// and the grant is provisional until [`Confirm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseAsked>,
    /// What stands beside the command while it runs, if the caller runs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<Wrapper>,
    /// What becomes of the command if the lock is lost while it runs. Only a daemon that works over
    /// an engine can lose one.
    #[serde(default, skip_serializing_if = "is_kill")]
    pub on_lost: OnLost,
}

/// The default, which is left out.
fn is_kill(on_lost: &OnLost) -> bool {
    *on_lost == OnLost::Kill
}

/// The default, which is left out.
fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// `WouldAcquire`: what the caller would get if it asked for these items now without waiting.
/// Nothing is taken. If it would be refused, that refusal is the error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldAcquire {
    /// The items, as in [`Acquire`].
    pub items: Vec<WireItem>,
    /// As in [`Acquire`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// As in [`Acquire`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
    /// As in [`Acquire`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<Handle>,
}

/// The reply to [`WouldAcquire`] where everything is free. `T`: as in [`Grant`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldGrant<T = String> {
    /// What would be granted: one for each item, in the order of the request.
    pub keys: Vec<GrantedKey<T>>,
}

/// One item of an [`Acquire`]. `per` with `buckets`, or `slots`, or neither (the size that is stored,
/// else that of the latest holder who states one, else 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireItem {
    /// The key.
    pub key: Arc<str>,
    /// Absent means counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// How many slots at once; absent means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Slots per bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<u64>,
    /// How many buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    /// How many slots in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// What the user wrote, where it can be read as a key with a size or count and as a key alone.
    /// A note of the reply says how it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Box<str>>,
}

/// The final reply of an [`Acquire`]; `canal acquire --json` prints it. `T`: texts, in any form that
/// is written as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant<T = String> {
    /// One for each item, in the order of the request.
    pub keys: Vec<GrantedKey<T>>,
    /// The fencing token.
    pub token: u64,
    /// The owner.
    pub owner: OwnerInfo<T>,
    /// The session's name.
    pub session: T,
    /// The frame's name, for the requests of the owner's descendants.
    #[serde(default)]
    pub frame: T,
    /// The index, among the descriptors sent with this reply, of the FIFO's write end that the
    /// command is to inherit (only `with_children`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children_fd: Option<u32>,
    /// The index, as above, of the FIFO from which the command takes job tokens (only `jobserver`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers_fd: Option<u32>,
    /// The index, as above, of the FIFO into which the command writes them back; it comes with
    /// `offers_fd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns_fd: Option<u32>,
    /// The index, as above, of the deadline page (only over an engine, and only to
    /// the owner itself).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_fd: Option<u32>,
    /// The index, as above, of the liveness pipe, which ends when the writer of the page is gone;
    /// it comes with the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_fd: Option<u32>,
    /// Of a lease: how long it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
    /// Of a lease: its secret. The daemon neither keeps nor sends it; the client that made it adds
    /// it to what `canal acquire --json` prints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// Where the request states another size than others go by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<SizeNote>,
}

/// A request states another size than the stored one, or than the one that requests without a size
/// follow; or a user's text was read as a size. That is no error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SizeNote {
    /// Of which key.
    pub key: String,
    /// What the request states, as `3x2` or `4`; with `read`, also `3x2:2` or `:2`, or nothing.
    pub stated: String,
    /// What is stored, and counts instead; null if nothing is.
    pub stored: Option<String>,
    /// Where nothing is stored: what the latest holder states. The request counts by its own all the
    /// same.
    pub followed: Option<String>,
    /// For people, one line.
    pub message: String,
    /// Whether this daemon says it to this user for the first time: only then `canal` prints it.
    pub first: bool,
    /// The user's text, where the note says how it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

impl SizeNote {
    /// How the text of an item was read, if it has one that begins with its key.
    #[must_use]
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
                "`{text}` is taken as the key, because it contains `/`: --slots, --per and --count \
                 state a size or count; --key-literal says that the key is meant"
            ),
            _ => format!(
                "`{text}` is read as the key `{key}` with `{suffix}`: --key-literal takes a key as \
                 it stands"
            ),
        };
        let stated = suffix.trim_start_matches('=').to_owned();
        let read = Some(text.to_owned());
        Some(Self { key, stated, stored: None, followed: None, message, first: false, read })
    }
}

/// What was granted of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GrantedKey<T = String> {
    /// The key.
    pub key: T,
    /// Slots held of it by everyone, after this grant; of a key that is read or written, how many
    /// hold the very key in this way.
    pub acquired: u64,
    /// The slots, ascending.
    pub slots: Vec<SlotInfo>,
    /// In which way.
    pub mode: Mode,
}

/// A slot and the bucket in which it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SlotInfo {
    /// 0-based.
    pub slot: u64,
    /// 0-based; null for the slots kind.
    pub bucket: Option<u64>,
}

/// The owner of a grant, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInfo<T = String> {
    /// The process, 0 if it has no number where the daemon lives.
    pub pid: u32,
    /// What it runs.
    pub command: T,
}

/// A reply with `continues` while an [`Acquire`] waits: at once when it is queued, and again when
/// something changed (at most about once a second).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// The key that keeps it waiting.
    pub key: String,
    /// 1 is the next to be served.
    pub position: u64,
    /// How many wait for the key.
    pub waiting: u64,
    /// Why, in one clause: "2 of 2 slots are held", "behind an earlier waiter".
    pub reason: String,
    /// The holders of the key, the longest first; at most [`HOLDERS_SHOWN_MAX`].
    pub holders: Vec<HolderInfo>,
    /// How much longer it will usually wait, if enough is known; with the first progress it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateInfo>,
}

/// How many holders a [`Progress`] or a refusal names at most.
pub const HOLDERS_SHOWN_MAX: usize = 5;

/// `Abandon`: nobody reads any more what the client of the waiting request with this tag prints, so that
/// it is about to withdraw the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandon {
    /// The tag of the request.
    pub tag: Tag,
}

/// `Confirm`: the client has told the owner of a provisional grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirm {
    /// The request's tag.
    pub tag: Tag,
}
