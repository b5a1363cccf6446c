//! The engine keeps the one log of many hosts, and knows which hosts live. It does nothing else.
//!
//! A host talks to it by [`Call`]s and [`Answer`]s. Between the two anything may be delayed, lost
//! or repeated, so every call may be made again, and every answer names the call that it answers.
//! The rules are in `docs/many-hosts.md`.
//!
//! Invariant: two hosts that are given batches are given the same ones in the same order, without a
//! gap from where they began.

#![cfg_attr(
    not(any(feature = "etcd", feature = "postgres")),
    allow(dead_code, reason = "what the engines share is unused where both are left out")
)]

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "postgres")]
pub mod postgres;

use std::fmt;
use std::task::{Context, Poll};

use serde::{Deserialize, Serialize};

use crate::core::{Entry, HostId};

/// The version of the stored data: its layout, its encoding and the rules of the table. Hosts of
/// another version are refused.
pub const FORMAT: u32 = 1;

/// The place of a batch in the engine's total order. Later batches have greater ones; there may be
/// gaps between them. 0 is before the first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

/// A SHA-256 hash; written in hexadecimal.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Hash(pub [u8; 32]);

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const EXPECTED: &str = "a hash is 64 hexadecimal digits";
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(EXPECTED);
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| EXPECTED)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| EXPECTED)?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

/// What one host appends at once: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The incarnation of the host that appends it.
    pub host: HostId,
    /// The number of the batch among those of this incarnation; the first is 1.
    pub sequence: u64,
    /// How far its author had read, and the hash of the chain there. A reader whose own hash at
    /// that position differs reads another history.
    pub seen: Link,
    /// At least one.
    pub entries: Vec<Entry>,
}

/// A point of the hash chain: the hash covers the whole log up to this position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Where.
    pub position: Position,
    /// The chain's hash there.
    pub hash: Hash,
}

/// A batch as it lies in the log. `body` is what its author encoded, byte by byte: hashes are
/// computed from it, and the reader decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where it lies.
    pub position: Position,
    /// Whose it is; also inside the body.
    pub host: HostId,
    /// Its number; also inside the body.
    pub sequence: u64,
    /// The encoded [`Batch`].
    pub body: Vec<u8>,
}

/// What identifies a batch that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// Where it lies.
    pub position: Position,
    /// Whose it is.
    pub host: HostId,
    /// Its number.
    pub sequence: u64,
    /// The SHA-256 of its body.
    pub body: Hash,
}

/// A snapshot of the table, which stands for all batches up to a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The last batch that is in it.
    pub position: Position,
    /// The encoded snapshot. The engine cuts it up as it needs.
    pub body: Vec<u8>,
}

/// A life of the engine. Another one begins whenever the engine may have lost what it had
/// acknowledged: it was started anew, a standby was promoted, a backup was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Era {
    /// Counts the eras that the log names; the first is 1.
    pub number: u64,
    /// How the engine shows that it is this one; for the driver of that engine alone.
    pub sign: String,
}

/// The identity of a daemon: the same for a daemon that is restarted in the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The name that people know the host by.
    pub label: String,
    /// The machine, if it has a name of its own (`/etc/machine-id`), else empty.
    pub machine: String,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The inode of the daemon's pid namespace.
    pub pid_namespace: u64,
    /// The daemon's user.
    pub uid: u32,
    /// The directory of its socket.
    pub dir: String,
}

/// Why the engine is of no use for now. None of it is final: an operator can mend it, and the
/// engine is tried again by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The error, for people.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether a person has to do something before the engine can be used: a password is wrong, a
    /// certificate has expired. An engine that is merely silent may come back by itself.
    pub refused: bool,
}

impl Outage {
    /// The engine cannot be reached.
    pub fn unreachable(why: impl Into<String>) -> Self {
        Self { why: why.into(), hint: None, refused: false }
    }

    /// The engine cannot be used as things are.
    pub fn refused(why: impl Into<String>, hint: Option<String>) -> Self {
        Self { why: why.into(), hint, refused: true }
    }

    /// The address names another table than before. A daemon stays with the table that it began
    /// with.
    pub(in crate::log::engine) fn moved() -> Self {
        let hint = "`canal daemon --replace` goes over to the other one".to_owned();
        Self::refused("the configuration names another table now", Some(hint))
    }

    /// Whether it differs from what was reported `before`; the wording of silence varies.
    pub(in crate::log::engine) fn is_news(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|before| before != self && (before.refused || self.refused))
    }
}

/// Where the engine is, asked before each attempt to connect: passwords and certificates change
/// while a daemon runs.
pub type Source = Box<dyn FnMut() -> Result<String, Outage> + Send>;

/// An address that stays what it is.
#[must_use]
pub fn fixed(url: &str) -> Source {
    let url = url.to_owned();
    Box::new(move || Ok(url.clone()))
}

/// Why no engine could be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is no good.
    #[error("{0}")]
    Address(String),
    /// No thread, or no runtime on it.
    #[error("cannot start a thread for the engine: {0}")]
    Thread(#[from] std::io::Error),
    /// The address is that of an engine that was left out of this build; the name of its feature.
    #[error("this canal was built without the engine {0}")]
    LeftOut(&'static str),
    /// The address is that of no engine.
    #[error("`{0}` names no engine that is known")]
    Unknown(String),
}

/// Begins to connect to the engine with this scheme of addresses (`etcd` of `etcd://…`). `label` is
/// the name under which people know this host.
///
/// # Errors
/// [`OpenError`].
pub fn open(scheme: &str, source: Source, label: &str) -> Result<Box<dyn Engine>, OpenError> {
    // Unused where an engine is left out.
    let _ = (&source, label);
    match scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Box::new(postgres::Postgres::open(source, label)?)),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Box::new(etcd::Etcd::open(source)?)),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(OpenError::LeftOut("postgres")),
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => Err(OpenError::LeftOut("etcd")),
        _ => Err(OpenError::Unknown(scheme.to_owned())),
    }
}

/// What a host asks of the engine.
#[derive(Clone, Debug)]
pub enum Call {
    /// Takes a new incarnation, which lives from now on. Answered by [`Answer::Registered`]. Asking
    /// again with the same nonce takes no second one.
    Register {
        /// The daemon that asks.
        identity: Identity,
        /// Names the asking; random.
        nonce: u128,
        /// The time to live that is wished for, in milliseconds.
        ttl_ms: u64,
        /// Given back in the answer: the asker's CLOCK_BOOTTIME before it asked, in milliseconds.
        asked_at: u64,
    },
    /// Takes an incarnation back that has appended nothing, so that no host waits for its end. An
    /// incarnation that has appended something stays. Answered by [`Answer::Withdrawn`].
    Withdraw {
        /// Which incarnation.
        host: HostId,
    },
    /// Reads the snapshot and all batches after it, and goes on with those that are appended from
    /// then on. Answered by [`Answer::Loaded`], later by [`Answer::Batches`].
    Load,
    /// Goes on reading after a batch that was read, from the beginning of the log if `None`. If
    /// it lies there as it was read, answered by [`Answer::Batches`], now (perhaps without any)
    /// and for each that is appended from then on; else by [`Answer::Rewritten`] or
    /// [`Answer::Compacted`].
    Follow {
        /// The last batch that was read.
        after: Option<Read>,
    },
    /// Appends a batch. Answered by [`Answer::Appended`], [`Answer::Fenced`] or
    /// [`Answer::Overtaken`]. At most one is under way; the same one may be asked again.
    Append(Append),
    /// Says that the incarnation lives. Answered by [`Answer::Renewed`] or [`Answer::Fenced`].
    Renew {
        /// Which incarnation.
        host: HostId,
        /// Given back in the answer: the asker's CLOCK_BOOTTIME before it asked, in milliseconds.
        asked_at: u64,
    },
    /// Notes an era in the log, by a batch whose author is [`HostId`] 0, if the engine's last noted
    /// era is still `before`. There is no answer: either the calls that waited for it are carried
    /// out, or [`Answer::NewEra`] comes again.
    NoteEra {
        /// The era that [`Answer::NewEra`] named as the last one.
        before: Option<Era>,
        /// The era that begins.
        era: Era,
        /// The encoded [`Batch`]; its number is that of the era.
        body: Vec<u8>,
    },
    /// Replaces the snapshot, then drops the batches that are in it. Answered by
    /// [`Answer::Stored`]. One that is older than the stored one changes nothing, nor does one of
    /// a position that the log does not reach: it is of a history that the engine has lost.
    Store(Stored),
}

/// A batch that is to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// By which incarnation.
    pub host: HostId,
    /// Its number: the number of the last one of this incarnation, plus 1.
    pub sequence: u64,
    /// The encoded [`Batch`].
    pub body: Vec<u8>,
    /// The incarnation that ends with it, in the same transaction.
    pub ends: Option<Ends>,
}

/// The end of an incarnation, which is also an entry in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Which one.
    pub host: HostId,
    /// What must be so.
    pub evidence: Evidence,
}

/// What permits to end an incarnation. None may have ended already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The engine itself knows that it did not renew in time.
    Lapsed,
    /// It has not renewed since its count of renewals was this one.
    Silent {
        /// How many times.
        renewals: u64,
    },
    /// The asker has its identity and takes its place, or is it itself, or comes from another boot
    /// of its machine.
    Own,
}

/// What the engine answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To `Register`.
    Registered {
        /// The new incarnation; greater than all before it.
        host: HostId,
        /// The time to live that the engine grants, in milliseconds.
        ttl_ms: u64,
        /// As asked.
        asked_at: u64,
        /// Which history the log has; another one after the log was made anew.
        epoch: u128,
        /// Incarnations of the same label that have not ended, with their identities.
        others: Vec<(HostId, Identity)>,
    },
    /// To `Withdraw`: it is gone, or has appended something.
    Withdrawn {
        /// Which incarnation.
        host: HostId,
    },
    /// To `Load`.
    Loaded {
        /// The snapshot, if there is one.
        snapshot: Option<Stored>,
        /// All batches after it that there are now.
        batches: Vec<Placed>,
    },
    /// To `Load` and `Follow`: the next batches, in order, without a gap to those before.
    Batches(Vec<Placed>),
    /// What was read is not in the log as it was read, or not any more: history was rewritten.
    Rewritten,
    /// What comes after what was read has been replaced by a snapshot: load anew.
    Compacted,
    /// The batch is in the log. Its echo among the batches may come before or after this.
    Appended {
        /// Whose.
        host: HostId,
        /// Its number.
        sequence: u64,
        /// Where it lies.
        position: Position,
    },
    /// The evidence for the end of an incarnation does not hold; nothing was appended.
    Overtaken {
        /// The author of the batch.
        host: HostId,
        /// The number of the batch, which another one can have by now.
        sequence: u64,
        /// The end that was to come with it.
        ends: Option<Ends>,
    },
    /// The incarnation has ended, or another process appends in its name. Nothing was appended.
    Fenced {
        /// Which incarnation asked.
        host: HostId,
        /// The reason, for people.
        why: String,
    },
    /// To `Renew`.
    Renewed {
        /// As asked.
        asked_at: u64,
        /// The time to live from `asked_at`, in milliseconds.
        ttl_ms: u64,
        /// The position of the last batch.
        head: Position,
        /// All incarnations that have not ended.
        hosts: Vec<Alive>,
    },
    /// The engine is in an era that the log does not name yet. No other call is carried out before
    /// [`Call::NoteEra`]: nothing may be appended as if nothing had been lost.
    NewEra {
        /// The last era that the log names.
        before: Option<Era>,
        /// The one that begins, with the next number.
        era: Era,
        /// Whether acknowledged batches may be missing. A database that recovers from a crash has
        /// them all; a promoted standby or a restored backup may not.
        may_lack: bool,
    },
    /// To `Store`.
    Stored {
        /// The position of the snapshot that is stored now.
        position: Position,
    },
    /// The engine is of no use for now. What was called may have been done or not. Said again if
    /// the reason becomes another one.
    Away(Outage),
    /// The engine can be reached again; whatever has no answer is to be called again.
    Back,
}

/// An incarnation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Which one.
    pub host: HostId,
    /// Its time to live, in milliseconds.
    pub ttl_ms: u64,
    /// How it shows that it lives.
    pub sign: Sign,
}

/// How an incarnation shows that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The engine watches over it and says that it lives.
    Watched,
    /// The engine watches over it and says that it did not renew in time.
    Lapsed,
    /// Its count of renewals; observers judge by their own clock.
    Renewals(u64),
}

/// An engine, as one host sees it.
pub trait Engine: fmt::Debug {
    /// Asks for something. Never waits.
    fn call(&mut self, call: Call);

    /// The next answer.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer>;
}
