//! Finds out which user owns an abstract Unix socket, without a connection to it.
//!
//! Any process may connect to an abstract socket, so a listening one can be flooded. A socket that
//! is only bound cannot be flooded, and the kernel still reports its user.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::kernel::{open_files, pids};
use crate::process::user::stat;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, UnixAddr, bind, recv, send, socket,
};

/// Takes a name while the socket is open. No process can connect to it.
///
/// # Errors
/// `AddrInUse` if a process has the name. Otherwise the kernel's error.
pub fn take(name: &str) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(fd)
}

/// The user that has a name in this network namespace, as our user namespace sees it. `None` if no
/// process has the name.
///
/// # Errors
/// Neither `sock_diag` (which a kernel can be built without) nor /proc reports it.
pub fn user_of(name: &str) -> io::Result<Option<u32>> {
    let user = |all: Vec<(String, u32)>| {
        all.into_iter().find(|(found, _)| found == name).map(|(_, uid)| uid)
    };
    all().map(user).or_else(|_| by_proc(name))
}

/// `SOCK_DIAG_BY_FAMILY`, from linux/sock_diag.h.
const BY_FAMILY: u16 = 20;

/// `UDIAG_SHOW_NAME`, from linux/unix_diag.h.
const SHOW_NAME: u32 = 1;

/// `UDIAG_SHOW_UID` (Linux 5.3).
const SHOW_UID: u32 = 1 << 6;

/// `UNIX_DIAG_NAME`.
const NAME: u16 = 0;

/// `UNIX_DIAG_UID`.
const UID: u16 = 7;

/// The size of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// The size of `struct unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;

/// The kernel sends at most this much at once.
const ANSWER_BYTES: usize = 64 * 1024;

/// All names in this network namespace, each with its user as our user namespace sees it.
///
/// # Errors
/// `sock_diag` does not report them.
pub fn all() -> io::Result<Vec<(String, u32)>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let protocol = SockProtocol::NetlinkSockDiag;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    send(fd.as_raw_fd(), &question(), MsgFlags::empty())?;
    let (mut answer, mut found) = (vec![0; ANSWER_BYTES], Vec::new());
    loop {
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        if add_names(&answer[..length], &mut found)? {
            return Ok(found);
        }
    }
}

/// A `struct nlmsghdr` and a `struct unix_diag_req` for all sockets.
fn question() -> Vec<u8> {
    const LENGTH: u32 = 40;
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([u8::try_from(libc::AF_UNIX).unwrap_or_default(), 0, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend((SHOW_NAME | SHOW_UID).to_ne_bytes());
    bytes.extend([u8::MAX; 8]);
    bytes
}

/// Adds the names in one part of the kernel's answer. Returns whether it was the last part.
fn add_names(mut answer: &[u8], found: &mut Vec<(String, u32)>) -> io::Result<bool> {
    while let Some(message) = first_of(answer, u32_at(answer, 0)) {
        let kind = i32::from(u16_at(message, 4).unwrap_or_default());
        if kind == libc::NLMSG_DONE {
            return Ok(true);
        }
        if kind == libc::NLMSG_ERROR {
            let number = u32_at(message, HEADER_BYTES).unwrap_or_default().cast_signed();
            return Err(io::Error::from_raw_os_error(number.saturating_neg()));
        }
        let (name, uid) = attributes(message.get(HEADER_BYTES + MESSAGE_BYTES..));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        found.extend(name.map(str::to_owned).zip(uid));
        answer = answer.get(message.len().next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The abstract name and the user among the attributes of a socket.
fn attributes(attributes: Option<&[u8]>) -> (Option<&[u8]>, Option<u32>) {
    let (mut left, mut name, mut uid) = (attributes.unwrap_or_default(), None, None);
    while let Some(attribute) = first_of(left, u16_at(left, 0).map(u32::from)) {
        let value = attribute.get(4..).unwrap_or_default();
        match u16_at(attribute, 2) {
            Some(NAME) => name = value.strip_prefix(b"\0"),
            Some(UID) => uid = u32_at(value, 0),
            _ => {}
        }
        left = left.get(attribute.len().next_multiple_of(4)..).unwrap_or_default();
    }
    (name, uid)
}

/// The first `length` bytes. `None` if `length` is less than the length field itself, or more than
/// there are bytes.
fn first_of(bytes: &[u8], length: Option<u32>) -> Option<&[u8]> {
    let length = usize::try_from(length?).ok().filter(|length| *length >= 4)?;
    bytes.get(..length)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Finds the socket's inode in /proc/net/unix, then a process that has the socket open.
fn by_proc(name: &str) -> io::Result<Option<u32>> {
    let known = fs::read("/proc/net/unix")?;
    // `Num: RefCount Protocol Flags Type St Inode Path`, with `@` for the NUL of an abstract name.
    let inode_in = |line| {
        let mut words = str::from_utf8(line).ok()?.split_whitespace().skip(6);
        let inode = words.next()?;
        (words.next()?.strip_prefix('@')? == name).then_some(inode)
    };
    let Some(inode) = known.split(|byte| *byte == b'\n').find_map(inode_in) else {
        return Ok(None);
    };
    let link = format!("socket:[{inode}]");
    for pid in pids()? {
        let is_socket = |file| fs::read_link(file).is_ok_and(|it| it.as_os_str() == link.as_str());
        if open_files(pid).any(is_socket) {
            return Ok(Some(stat(format!("/proc/{pid}"))?.st_uid));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no visible process has the abstract name"))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;
    use crate::rerun;

    fn name(what: &str) -> String {
        format!("canal-test-{what}-{}", std::process::id())
    }

    /// Asserts that both lookups return this user.
    #[track_caller]
    fn assert_user(name: &str, user: Option<u32>) {
        let by_sock_diag = all().unwrap().into_iter().find(|(found, _)| found == name);
        assert_eq!(by_sock_diag.map(|(_, uid)| uid), user);
        assert_eq!(by_proc(name).unwrap(), user);
        assert_eq!(user_of(name).unwrap(), user);
    }

    #[test]
    fn a_name_is_its_users_until_it_is_given_back() {
        let name = name("taken");
        assert_user(&name, None);
        let taken = take(&name).unwrap();
        assert_user(&name, Some(crate::process::user::geteuid().as_raw()));
        assert_user(&name[..name.len() - 1], None);
        assert_eq!(take(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(taken);
        // A program that a parallel test starts has a copy of the socket until it calls exec.
        rerun::wait_until("the name is free", || user_of(&name).unwrap().is_none());
    }

    #[test]
    fn all_names_are_found_with_their_users() {
        let (one, two, other) = (name("begin-1"), name("begin-2"), name("elsewhere"));
        let _taken = [&one, &two, &other].map(|name| take(name).unwrap());
        let own = crate::process::user::geteuid().as_raw();
        let mut found = all().unwrap();
        found.retain(|(name, _)| [&one, &two, &other].contains(&name));
        found.sort();
        assert_eq!(found, [(one, own), (two, own), (other, own)]);
    }

    #[test]
    fn no_process_can_connect_to_a_taken_name() {
        let name = name("alone");
        let _taken = take(&name).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let refused = UnixStream::connect_addr(&address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn the_user_of_a_socket_that_listens_is_known_too() {
        let name = name("listening");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        assert_user(&name, Some(crate::process::user::geteuid().as_raw()));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_passed_over() {
        for bytes in [&[][..], &[0; 40], &[255; 40], &[5, 0, 0, 0, 1]] {
            let mut found = Vec::new();
            assert!(!add_names(bytes, &mut found).unwrap());
            assert_eq!(found, []);
            assert_eq!(attributes(Some(bytes)), (None, None));
        }
    }
}
