//! An abstract socket that keeps a second daemon out, even when all files of the first are gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};

use super::home::ClaimError;
use crate::protocol::place::Place;
use crate::sys::peer;

/// The abstract socket.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) name: String,
    /// `None` if somebody else has the name.
    pub(super) socket: Option<UnixListener>,
}

impl Guard {
    /// By user and place. The directory itself may be removed and made again, so that the one
    /// above it and the name stand for it; by number, because another mount namespace may have
    /// another one under the same path.
    pub(super) fn name(place: &Place) -> io::Result<String> {
        Self::name_for(place, nix::unistd::geteuid().as_raw())
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
    pub(super) fn raise(place: &Place) -> Result<Self, ClaimError> {
        let failed = |error| ClaimError::Io { path: place.dir.clone(), error };
        let name = Self::name(place).map_err(failed)?;
        for _ in 0..LOOKS {
            match bind_abstract(&name) {
                Ok(socket) => return Ok(Self { name, socket: Some(socket) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
            match who_has(&name) {
                Some(other) if other.uid == nix::unistd::geteuid().as_raw() => {
                    let (socket, pid) = (place.socket.clone(), Some(other.pid));
                    return Err(ClaimError::Running { socket, pid });
                }
                Some(_) => break,
                // It does not listen yet, or is gone.
                None => std::thread::sleep(LOOK_AGAIN_AFTER),
            }
        }
        // Abstract names have no owner: anybody may have taken it to keep us out.
        Ok(Self { name, socket: None })
    }

    /// Lets those go who looked whose the name is.
    pub(super) fn answer(&self) {
        while self.socket.as_ref().is_some_and(|socket| socket.accept().is_ok()) {}
    }
}

/// Whether a daemon of this user runs at a place. What is looked at is in no directory: nobody can
/// lead who looks elsewhere.
pub(super) fn runs(place: &Place, uid: u32) -> bool {
    let name = Guard::name_for(place, uid).ok();
    name.and_then(|name| who_has(&name)).is_some_and(|other| other.uid == uid)
}

/// How often it is looked whose the name is.
const LOOKS: u32 = 10;

/// How long between two looks.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

fn bind_abstract(name: &str) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    // Only one that listens tells others whose it is.
    listen(&fd, Backlog::MAXCONN)?;
    Ok(UnixListener::from(fd))
}

fn who_has(name: &str) -> Option<peer::Credentials> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).ok()?).ok()?;
    peer::credentials(fd.as_fd()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn place(dir: &Path) -> Place {
        Place::find(Some(&dir.join("d/canal.sock")), 0).unwrap()
    }

    #[test]
    fn a_name_that_is_taken_by_who_does_not_say_whose_it_is_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let name = Guard::name(&place).unwrap();
        let fd =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        bind(fd.as_raw_fd(), &address).unwrap();
        assert!(Guard::raise(&place).unwrap().socket.is_none());
        drop(fd);
        assert!(Guard::raise(&place).unwrap().socket.is_some());
    }

    #[test]
    fn those_who_look_do_not_fill_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let guard = Guard::raise(&place).unwrap();
        for _ in 0..10_000 {
            assert!(who_has(&guard.name).is_some());
            guard.answer();
        }
        assert!(matches!(Guard::raise(&place), Err(ClaimError::Running { .. })));
        let own = nix::unistd::geteuid().as_raw();
        assert!(runs(&place, own));
        assert!(!runs(&place, own + 1));
        drop(guard);
        // A test beside this one that starts a program has a copy of the socket until its exec.
        let ends = Instant::now() + Duration::from_secs(20);
        while runs(&place, own) {
            assert!(Instant::now() < ends, "its name is still taken");
            std::thread::yield_now();
        }
    }
}
