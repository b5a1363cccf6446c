//! The identity of a daemon, and the eras of an engine.

use serde::{Deserialize, Serialize};

use crate::core::HostId;

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
    /// A random number that lies in that directory: another mount namespace may have another directory
    /// of that name.
    pub dir_number: u64,
}

/// An incarnation that has not ended, with the label of one that registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Its number. After the engine has lost history, another incarnation may get the same one.
    pub host: HostId,
    /// The nonce that it registered with, which is its own in every history.
    pub nonce: u128,
    /// Which daemon it belongs to.
    pub identity: Identity,
}
