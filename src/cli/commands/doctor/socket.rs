//! Checks the socket, why it was chosen, and its directory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use crate::cli::{connect, user_name};
use crate::protocol::place::{Place, Rule};
use crate::sys::dir::{DirError, IfMissing, open_private};
use crate::sys::process::user::{geteuid, lstat};

use super::finding::Finding;

/// Returns the findings, and whether the daemon there can be asked. A client that connects repairs
/// the user's own directory.
pub(super) fn look(place: &Place, is_option: bool) -> (Vec<Finding>, bool) {
    let why = match place.rule {
        Rule::Given if is_option => "given by --socket",
        Rule::Given => "given by CANAL_SOCKET",
        Rule::Shared => "/run/canal exists, so users share one daemon",
        Rule::PerUser => "no other socket is given, and /run/canal does not exist",
    };
    let socket = format!("{}: {why}", place.socket.display());
    let (directory, can_ask) = directory(place);
    (vec![Finding::fine("socket", socket), directory], can_ask)
}

fn directory(place: &Place) -> (Finding, bool) {
    let dir = place.dir.display();
    if place.rule == Rule::Shared {
        return shared(place);
    }
    match open_private(&place.dir, geteuid().as_raw(), IfMissing::Fail) {
        Ok(opened) => match can_lock(opened) {
            Ok(()) => {
                let fine = format!("{dir} is yours, and only you can write to it");
                (Finding::fine("directory", fine), true)
            }
            Err(error) => {
                let hint =
                    "choose a directory on another file system with --socket or CANAL_SOCKET";
                (Finding::problem("directory", format!("{dir}: flock(2): {error}"), hint), true)
            }
        },
        Err(DirError::Missing(_)) => {
            let note = format!("{dir} does not exist yet; the first daemon creates it");
            (Finding::note("directory", note), true)
        }
        Err(error @ DirError::Open(..)) if place.is_users_own() => {
            let note = format!("{error}: the next command makes it private");
            (Finding::note("directory", note), false)
        }
        Err(error) => {
            let hint = "remove it, or choose another directory with --socket or CANAL_SOCKET";
            (Finding::problem("directory", error.to_string(), hint), false)
        }
    }
}

/// Whether the file system supports locks, without which no daemon starts.
fn can_lock(dir: OwnedFd) -> io::Result<()> {
    fs2::FileExt::try_lock_shared(&File::from(dir))
}

fn shared(place: &Place) -> (Finding, bool) {
    let dir = place.dir.display();
    match lstat(&place.dir) {
        Ok(found) if found.st_mode & 0o002 == 0 => {
            let (mode, uid) = (found.st_mode & 0o7777, found.st_uid);
            let fine = format!("{dir} (mode {mode:04o}, owned by {})", user_name::name(uid));
            (Finding::fine("directory", fine), true)
        }
        Ok(_) => {
            let problem = format!("{dir} is writable by other users");
            (Finding::problem("directory", problem, format!("chmod o-w {dir}")), false)
        }
        Err(error) => {
            let hint = format!(
                "start this machine's daemon, which creates it: {}",
                connect::started_by_root()
            );
            (Finding::problem("directory", format!("{dir}: {error}"), hint), false)
        }
    }
}
