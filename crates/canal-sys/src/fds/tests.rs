use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::rerun;

fn is_cloexec(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GETFD).unwrap() & libc::FD_CLOEXEC != 0
}

fn is_at_end(fd: OwnedFd) -> bool {
    File::from(fd).read(&mut [0]).unwrap() == 0
}

#[test]
fn descriptors_come_with_their_bytes_and_are_not_passed_on() {
    let (here, there) = UnixStream::pair().unwrap();
    let (reader, writer) = pipe().unwrap();
    assert_eq!(send(here.as_fd(), b"word", &[writer.as_fd()], 0).unwrap(), 4);
    assert_eq!(send(here.as_fd(), b"and more", &[], 0).unwrap(), 8);
    drop(writer);
    let (mut buffer, mut fds) = ([0; 64], Vec::new());
    // The kernel does not merge bytes that carry descriptors with the bytes that follow.
    let received = receive(there.as_fd(), &mut buffer, &mut fds, 0).unwrap();
    assert_eq!(&buffer[..received], b"word");
    assert_eq!(fds.len(), 1);
    assert!(is_cloexec(fds[0].as_fd()));
    File::from(fds.remove(0)).write_all(b"through").unwrap();
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");

    let received = receive(there.as_fd(), &mut buffer, &mut fds, 0).unwrap();
    assert_eq!(&buffer[..received], b"and more");
    assert!(fds.is_empty());
    drop(here);
    assert_eq!(receive(there.as_fd(), &mut buffer, &mut fds, 0).unwrap(), 0);
}

#[test]
fn as_many_descriptors_as_are_allowed_all_come() {
    let (here, there) = UnixStream::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    let sent = [null.as_fd(); FDS_MAX];
    send(here.as_fd(), b"x", &sent, 0).unwrap();
    let mut fds = Vec::new();
    receive(there.as_fd(), &mut [0; 8], &mut fds, 0).unwrap();
    assert_eq!(fds.len(), FDS_MAX);
    let more = [null.as_fd(); FDS_MAX + 1];
    let error = send(here.as_fd(), b"x", &more, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let error = send(here.as_fd(), b"", &sent, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn surplus_descriptors_are_closed_and_none_is_lost() {
    let (here, there) = UnixStream::pair().unwrap();
    let (reader, writer) = pipe().unwrap();
    let many = vec![writer.as_raw_fd(); FDS_MAX + 20];
    let control = [ControlMessage::ScmRights(&many)];
    let part = [IoSlice::new(b"x")];
    sendmsg::<()>(here.as_raw_fd(), &part, &control, MsgFlags::empty(), None).unwrap();
    let mut fds = Vec::new();
    assert_eq!(receive(there.as_fd(), &mut [0; 8], &mut fds, 0).unwrap(), 1);
    assert_eq!(fds.len(), FDS_MAX);
    drop((writer, fds));
    // The reader reaches the end only after every copy is closed.
    assert!(is_at_end(reader));
}

#[test]
fn other_control_messages_are_passed_over() {
    let (here, there) = UnixStream::pair().unwrap();
    nix::sys::socket::setsockopt(&there, nix::sys::socket::sockopt::PassCred, &true).unwrap();
    let null = File::open("/dev/null").unwrap();
    send(here.as_fd(), b"x", &[null.as_fd()], 0).unwrap();
    let mut fds = Vec::new();
    assert_eq!(receive(there.as_fd(), &mut [0; 8], &mut fds, 0).unwrap(), 1);
    assert!(fds.len() <= 1, "the credentials take the room of descriptors");
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_no_signal() {
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    // A program that another test starts has a copy of `there` until it is executed.
    rerun::wait_until("the peer is missed", || {
        let sent = send(here.as_fd(), b"x", &[], libc::MSG_DONTWAIT);
        sent.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    });
}

#[test]
fn nothing_blocks_that_must_not() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut fds = Vec::new();
    let error = receive(there.as_fd(), &mut [0; 8], &mut fds, libc::MSG_DONTWAIT).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let block = vec![0; 1 << 16];
    let error = loop {
        match send(here.as_fd(), &block, &[], libc::MSG_DONTWAIT) {
            Ok(sent) => assert!(sent > 0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_inherited_descriptor_is_high_and_passed_on() {
    let (reader, writer) = pipe().unwrap();
    assert!(is_cloexec(reader.as_fd()) && is_cloexec(writer.as_fd()));
    let number = inherit(writer, 700).unwrap();
    assert!(number >= 700, "{number}");
    // SAFETY: `inherit` has just created it and left it to us.
    assert!(!is_cloexec(unsafe { BorrowedFd::borrow_raw(number) }));
    let inherited = adopt(number).unwrap();
    assert!(is_cloexec(inherited.as_fd()));
    drop(inherited);
    assert!(is_at_end(reader), "the first one was closed");
}

#[test]
fn an_inherited_descriptor_fits_under_a_low_limit() {
    let (_reader, writer) = pipe().unwrap();
    let number = inherit(writer, i32::MAX).unwrap();
    assert!(number >= 3, "{number}");
    // SAFETY: `inherit` has just created it and left it to us.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

const CLOSES: &str = "fds::tests::closes_all";

#[test]
#[ignore = "a scene of all_but_those_to_keep_are_closed"]
fn closes_all() {
    if !rerun::plays(CLOSES) {
        return;
    }
    let low = File::open("/dev/null").unwrap();
    let first = low.as_raw_fd().unsigned_abs() + 1;
    for at_least in [10, 20, 50] {
        inherit(File::open("/dev/null").unwrap().into(), at_least).unwrap();
    }
    assert!(highest_open() >= 50);
    let kept = ["/dev/null", "/dev/zero"].map(|path| File::open(path).unwrap());
    close_except(&[kept[1].as_fd(), kept[0].as_fd(), low.as_fd()]);
    assert!(kept.iter().all(|file| fcntl(file, FcntlArg::F_GETFD).is_ok()));
    assert!(highest_open() < 10, "{}", highest_open());
    // They are closed below.
    std::mem::forget(kept);
    close_except(&[low.as_fd()]);
    // Reading the folder itself takes a descriptor.
    assert!(highest_open() <= first, "{}", highest_open());
    assert!(fcntl(&low, FcntlArg::F_GETFD).is_ok());
    println!("CLOSED");
}

#[test]
fn all_but_those_to_keep_are_closed() {
    for kernel in ["", "export CANAL_KERNEL=5.8;"] {
        let output = rerun::run(CLOSES, kernel);
        assert!(String::from_utf8_lossy(&output.stdout).contains("CLOSED"), "{output:?}");
    }
}

const RAISES: &str = "fds::tests::raises_the_limit";

#[test]
#[ignore = "a scene of the_limit_is_raised_to_the_hard_one"]
fn raises_the_limit() {
    if rerun::plays(RAISES) {
        println!("LIMIT {}", raise_limit(0).unwrap());
        println!("FOUND {:?}", getrlimit(Resource::RLIMIT_NOFILE).unwrap());
    }
}

#[test]
fn the_limit_is_raised_to_the_hard_one() {
    let output = rerun::run(RAISES, "ulimit -S -n 100; ulimit -H -n 200;");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("LIMIT 200\nFOUND (200, 200)\n"), "{told}");
}
