//! Binds the socket, and gives it its group and mode.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind as bind_fd, listen, socket,
};

use crate::config::sections_and_defaults::SocketAccess;
use crate::runtime_dir::instance_lock::ClaimError;
use canal_protocol::paths::{Place, Rule};
use canal_sys::private_dir::{open_path, remove_if_there};

type Result<T> = std::result::Result<T, ClaimError>;

/// A socket that listens, and its file.
type Bound = (UnixListener, File);

/// Binds the socket of a place in its open directory. If no further file can be created (a disk can
/// run out of inodes, too), removes the socket of a dead daemon to make room: the caller has the
/// instance lock, so no daemon uses that socket.
pub(super) fn bind(place: &Place, dir: &File, access: &SocketAccess) -> Result<Bound> {
    let path = &place.socket;
    let is_socket = || fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    match bind_beside(place, dir, access) {
        Err(ClaimError::Io { error, .. })
            if is_full(&error) && is_socket() && fs::remove_file(path).is_ok() =>
        {
            bind_beside(place, dir, access)
        }
        other => other,
    }
}

/// Whether there is no room for another file, on the disk or in the user's quota.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Creates the socket under another name and renames it, so that clients never find a socket that
/// does not listen. The rename replaces the socket of an earlier daemon.
fn bind_beside(place: &Place, dir: &File, access: &SocketAccess) -> Result<Bound> {
    let failed = ClaimError::at(&place.socket);
    let made = place.dir.join(NEW);
    let fd = bind_at(&made, dir).map_err(&failed)?;
    permit(&made, place, access)?;
    // The queue of connections is as long as the kernel allows (net.core.somaxconn). The constant
    // is 128 in musl, and 4096 in glibc.
    listen(&fd, Backlog::MAXALLOWABLE).map_err(|error| failed(error.into()))?;
    let file = File::from(open_path(&made).map_err(&failed)?);
    fs::rename(&made, &place.socket).map_err(failed)?;
    Ok((UnixListener::from(fd), file))
}

/// The name of a new socket until it listens.
const NEW: &str = ".canal.sock.new";

fn bind_at(made: &Path, dir: &File) -> io::Result<OwnedFd> {
    remove_if_there(made)?;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Uses the path of the open directory, because this name may be longer than the socket's name,
    // whose length was checked.
    let name = format!("/proc/self/fd/{}/{NEW}", dir.as_raw_fd());
    match bind_fd(fd.as_raw_fd(), &UnixAddr::new(name.as_str())?) {
        // There is no /proc.
        Err(Errno::ENOENT) => bind_fd(fd.as_raw_fd(), &UnixAddr::new(made)?)?,
        bound => bound?,
    }
    Ok(fd)
}

/// Gives a new socket its group and its mode.
fn permit(made: &Path, place: &Place, access: &SocketAccess) -> Result<()> {
    let socket = &place.socket;
    let failed = |what| move |error| ClaimError::Access { socket: socket.clone(), what, error };
    if let Some(group) = &access.group {
        let what = format!("the group {} (`group` of `[socket]`)", group.called);
        std::os::unix::fs::lchown(made, None, Some(group.gid)).map_err(failed(what))?;
    }
    // By default, all users may connect to the daemon that they share, and only its own user to any
    // other daemon.
    let usual = if place.rule == Rule::Shared { 0o666 } else { 0o600 };
    let mode = access.mode.unwrap_or(usual);
    fs::set_permissions(made, fs::Permissions::from_mode(mode))
        .map_err(failed(format!("the mode {mode:04o}")))
}
