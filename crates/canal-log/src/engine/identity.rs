//! The identity of a daemon, and the eras of an engine.

use serde::{Deserialize, Serialize};

use canal_core::HostId;

/// A life of the engine. Another one begins whenever the engine may have lost data that it had
/// acknowledged: after a restart, the promotion of a standby, or the restore of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Era {
    /// The number among the eras that the log names; the first is 1.
    pub number: u64,
    /// The engine's evidence that it is in this era, which only its own driver reads.
    pub sign: String,
}

/// An era that the log does not name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EraChange {
    /// The last era that the log names.
    pub before: Option<Era>,
    /// The era that begins, with the next number.
    pub era: Era,
    /// Whether acknowledged batches may be missing. A database that recovers from a crash has them
    /// all; a promoted standby or a restored backup may not.
    pub may_lack: bool,
}

/// The identity of a daemon: the same for a daemon that is restarted in the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The host's name in messages.
    pub label: String,
    /// The machine's id (`/etc/machine-id`), or empty without one.
    pub machine: String,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The inode of the daemon's pid namespace.
    pub pid_namespace: u64,
    /// The daemon's user.
    pub uid: u32,
    /// The directory of its socket.
    pub dir: String,
    /// A random number in that directory: another mount namespace may have another directory
    /// with that name.
    pub dir_number: u64,
}

/// An incarnation that has not ended and has the label of one that registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Its number. After the engine has lost history, another incarnation may get the same one.
    pub host: HostId,
    /// The nonce with which it registered, which is unique in every history.
    pub nonce: u128,
    /// Its daemon.
    pub identity: Identity,
}
