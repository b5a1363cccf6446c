//! An abstract socket that keeps a second daemon out, even when all files of the first daemon were
//! removed.
//!
//! Invariant: the socket is bound and never listens. Any process can connect to an abstract socket
//! that listens: other users could fill its queue of connections, and the daemon would have to
//! empty it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::runtime_dir::claim_error::ClaimError;
use canal_protocol::place::Place;
use canal_sys::abstract_name;

/// The abstract socket.
#[derive(Debug)]
pub(crate) struct InstanceGuard {
    pub name: String,
    /// `None` if another user has the name.
    pub socket: Option<OwnedFd>,
}

impl InstanceGuard {
    /// The name for a user and a place. The directory itself may be removed and created again, so
    /// the name contains its parent and its file name. The parent is given by device and inode
    /// number, because another mount namespace may have another directory under the same path.
    pub(crate) fn name(place: &Place) -> io::Result<String> {
        Self::name_for(place, canal_sys::process::user::geteuid().as_raw())
    }

    fn name_for(place: &Place, uid: u32) -> io::Result<String> {
        let above = place.dir.parent().unwrap_or(Path::new("/"));
        let above = std::fs::metadata(above)?;
        let mut hash = crc32fast::Hasher::new();
        hash.update(place.dir.file_name().unwrap_or_default().as_encoded_bytes());
        let (device, inode, name) = (above.dev(), above.ino(), hash.finalize());
        Ok(format!("canal-{uid}-{device:x}-{inode:x}-{name:08x}"))
    }

    /// Takes the name, unless a daemon of this user has it.
    pub(crate) fn raise(place: &Place) -> Result<Self, ClaimError> {
        let failed = |error| ClaimError::Io { path: place.dir.clone(), error };
        let name = Self::name(place).map_err(failed)?;
        for _ in 0..LOOKS {
            match abstract_name::take(&name) {
                Ok(socket) => return Ok(Self { name, socket: Some(socket) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
            match abstract_name::user_of(&name) {
                Ok(Some(uid)) if uid == canal_sys::process::user::geteuid().as_raw() => {
                    return Err(ClaimError::Running { socket: place.socket.clone(), pid: None });
                }
                Ok(Some(_)) => break,
                // The other process has just released the name.
                Ok(None) => std::thread::sleep(LOOK_AGAIN_AFTER),
                Err(error) => {
                    tracing::warn!(%error, name, "cannot find the user of this abstract socket");
                    break;
                }
            }
        }
        // Abstract names have no owner: any user may have taken this name to keep the daemon out.
        Ok(Self { name, socket: None })
    }
}

/// Whether a daemon of this user runs at a place, as far as this network namespace shows. Does not
/// contact the daemon. The name is in no directory, so no user can redirect the check to another
/// place.
#[must_use]
pub fn runs(place: &Place, uid: u32) -> bool {
    let name = InstanceGuard::name_for(place, uid).ok();
    let user = name.and_then(|name| abstract_name::user_of(&name).ok().flatten());
    user == Some(uid)
}

/// How often the owner of the name is checked.
const LOOKS: u32 = 10;

/// The time between two checks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use canal_sys::rerun;

    fn place(dir: &Path) -> Place {
        Place::find(Some(&dir.join("d/canal.sock")), 0).unwrap()
    }

    #[test]
    fn the_name_of_a_daemon_of_this_user_keeps_a_second_one_out() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let guard = InstanceGuard::raise(&place).unwrap();
        assert!(matches!(InstanceGuard::raise(&place), Err(ClaimError::Running { .. })));
        let own = canal_sys::process::user::geteuid().as_raw();
        assert!(runs(&place, own));
        assert!(!runs(&place, own + 1));
        drop(guard);
        // A parallel test that starts a program has a copy of the socket until its exec.
        rerun::wait_until("its name is free", || !runs(&place, own));
    }
}
