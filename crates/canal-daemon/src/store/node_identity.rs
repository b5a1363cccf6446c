//! The identity of a daemon as a node, and the time from which it grants over nodes.
//!
//! Invariant: a daemon that had to create new state does not know its earlier grants. It grants
//! nothing over nodes until every lease that it may have granted has ended.
//!
//! An operator can state that no daemon has run here before (`--first-start`). The statement is
//! refused if any file shows that a daemon has: it may have granted a lease that still lives.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::unistd::gethostname;
use sha2::{Digest, Sha256};

use crate::own_user::OwnUser;
use crate::wording::StartError;
use canal_core::NodeId;
use canal_log::{journal, lease_file, stored_state};
use canal_protocol::paths::{Place, Rule};
use canal_sys::clock;
use canal_sys::private_dir::{is_missing, remove_if_there};

/// An in-memory file system that `libc` does not name.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// The files with the id of a machine. The first one that exists counts.
const MACHINE_IDS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// The facts that a daemon knows about itself as a node.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Whether the daemon's state outlives a reboot.
    pub is_lasting: bool,
    /// The time from which the daemon grants over nodes; `None` if it already does.
    pub grants_from: Option<Instant>,
    pub user: OwnUser,
}

impl Node {
    /// A node with its state in a directory. `is_anew`: the daemon had to create new state.
    /// `longest_ttl` is the longest TTL of a lease over nodes.
    pub(crate) fn new(state_dir: &Path, is_anew: bool, longest_ttl: Duration) -> Self {
        let grants_from = is_anew.then(|| clock::now() + longest_ttl);
        Self { is_lasting: is_lasting(state_dir), grants_from, ..Self::default() }
    }

    /// How much longer the daemon grants nothing over nodes.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.grants_from?.saturating_duration_since(clock::now());
        Some(left).filter(|left| !left.is_zero())
    }
}

/// Whether the files in a directory outlive a reboot, judging by its file system.
fn is_lasting(dir: &Path) -> bool {
    let of_memory = [TMPFS_MAGIC, RAMFS_MAGIC];
    statfs(dir).is_ok_and(|it| !of_memory.contains(&it.filesystem_type()))
}

/// The name by which people know this machine; empty if it has none.
pub(crate) fn host_name() -> String {
    gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The id of this machine, if it has one.
pub(crate) fn machine_name() -> Option<String> {
    let names = MACHINE_IDS.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    names.map(|it| it.trim().to_owned()).find(|it| !it.is_empty() && it != "uninitialized")
}

/// The id of the node of this user at this place of a machine.
pub(crate) fn id(machine: &str, place: &Path, uid: u32) -> NodeId {
    let place = place.as_os_str().as_encoded_bytes();
    let hash = Sha256::digest([machine.as_bytes(), place, uid.to_string().as_bytes()].join(&0));
    NodeId(hash.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
}

/// The file with which `canal setup` makes the statement for the machine's daemon, because the
/// service manager passes that daemon no option.
const FIRST_START: &str = "first-start";

/// The file that states to the daemon of a place, at its next start, that this node has granted
/// nothing before.
///
/// # Errors
/// A daemon has run at this place before.
pub fn first_start_statement(place: &Place) -> Result<PathBuf, StartError> {
    check_first_start(place, false)?;
    Ok(place.dir.join(FIRST_START))
}

/// Whether `canal setup` has made the statement for this start. Removes the file, because the
/// statement counts for one start only.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn take_first_start(place: &Place) -> io::Result<bool> {
    if place.rule != Rule::Shared {
        return Ok(false);
    }
    remove_if_there(&place.dir.join(FIRST_START))
}

/// Checks that a daemon at this place may start as the first one.
///
/// # Errors
/// A daemon has run here before, or this one works over an engine.
pub(crate) fn check_first_start(place: &Place, has_engine: bool) -> Result<(), StartError> {
    let refused = |what: String, hint: &'static str| StartError { what, hint: hint.into() };
    if has_engine {
        let what = "--first-start is for nodes, and a daemon with an engine is not a node";
        return Err(refused(what.to_owned(), "leave out --first-start"));
    }
    // The files that a daemon writes.
    let files = |dir: &Path| {
        let journal = [0, 1].map(|index| journal::file_path(dir, index));
        [stored_state::NAME, lease_file::NAME].map(|name| dir.join(name)).into_iter().chain(journal)
    };
    let mut files = [&*place.dir, place.state_dir()].into_iter().flat_map(files);
    // A file that cannot be examined may exist.
    let may_exist = |it: &PathBuf| !it.symlink_metadata().is_err_and(|error| is_missing(&error));
    let Some(file) = files.find(may_exist) else { return Ok(()) };
    let what = "--first-start declares that no daemon has run here before, but one has:";
    let hint =
        "leave out --first-start: the daemon then waits only if it may have forgotten a lease";
    Err(refused(format!("{what} {} exists", file.display()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_half_the_hash_of_machine_place_and_user() {
        // printf 'm\0/run/canal\0000' | sha256sum
        let one = id("m", Path::new("/run/canal"), 0);
        let hash = Sha256::digest(b"m\0/run/canal\x000");
        let first: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(one.to_string(), first);
        for other in [
            id("n", Path::new("/run/canal"), 0),
            id("m", Path::new("/run"), 0),
            id("m", Path::new("/run/canal"), 1),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_new_state_grants_nothing_over_nodes_until_the_longest_ttl_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let minute = Duration::from_secs(60);
        assert_eq!(Node::new(dir.path(), false, minute).left(), None);
        let anew = Node::new(dir.path(), true, minute);
        assert!(anew.left().is_some_and(|left| left <= minute));
        let grants_from = Some(clock::now());
        assert_eq!(Node { grants_from, ..anew }.left(), None);
    }

    #[test]
    fn what_lies_in_memory_does_not_last() {
        // Without a tmpfs there is nothing to check.
        if statfs("/dev/shm").is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC) {
            assert!(!is_lasting(Path::new("/dev/shm")));
        }
        assert!(!is_lasting(Path::new("/nonexistent")));
    }
}
