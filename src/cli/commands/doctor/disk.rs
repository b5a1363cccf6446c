//! Checks the disks of the journal and the durable state.

use std::path::Path;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::finding::Finding;
use crate::protocol::place::Place;

/// With less space than this, the daemon may refuse the next requests.
const BYTES_MIN: u64 = 16 * 1024 * 1024;

/// With fewer free files than this, the daemon may refuse the next requests.
const FILES_MIN: u64 = 100;

const MIB: u64 = 1024 * 1024;

pub(super) fn look(place: &Place) -> Vec<Finding> {
    let state = &place.stores().state_dir;
    let mut findings = vec![room("journal", &place.dir)];
    if *state != place.dir {
        findings.push(room("state", state));
    }
    let is_memory = |dir: &Path| statfs(dir).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC);
    if existing(state).is_some_and(is_memory) {
        let what = format!(
            "{} is in memory: stored sizes and leases do not survive a reboot",
            state.display()
        );
        findings.push(Finding::note("state", what));
    }
    findings
}

/// The directory, or its nearest ancestor that exists.
fn existing(dir: &Path) -> Option<&Path> {
    dir.ancestors().find(|dir| dir.is_dir())
}

fn room(about: &'static str, dir: &Path) -> Finding {
    let shown = dir.display();
    let Some(disk) = existing(dir) else {
        return Finding::note(about, format!("{shown}: no disk"));
    };
    let found = match statvfs(disk) {
        Ok(found) => found,
        Err(error) => return Finding::note(about, format!("{shown}: {error}")),
    };
    if found.flags().contains(FsFlags::ST_RDONLY) {
        let hint = "mount it writable, or name another place with --socket";
        return Finding::problem(about, format!("{shown} is on a read-only disk"), hint);
    }
    let bytes = found.blocks_available().saturating_mul(found.fragment_size());
    // Some file systems do not limit the number of files, and report 0 of 0.
    let few_files = found.files() > 0 && found.files_available() < FILES_MIN;
    if bytes < BYTES_MIN || few_files {
        let files = found.files_available();
        let message = format!("{shown} has room for {} MiB and {files} files", bytes / MIB);
        return Finding::problem(about, message, "make room: a full disk refuses new requests");
    }
    Finding::fine(about, format!("{shown} has {} MiB left", bytes / MIB))
}
