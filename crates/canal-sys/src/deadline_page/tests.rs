use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, ftruncate};

use super::*;
use crate::{clock, fds, rerun};

const SCENE: &str = "deadline_page::tests::publishes_what_it_is_told";

fn deadline(at: u64) -> Deadline {
    Deadline { reached_at: at, term_at: at + 100, kill_at: at + 150 }
}

fn reader(writer: &Writer) -> Reader {
    let [page, line] = writer.reader.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
    Reader::open(page, line).unwrap()
}

/// Whether the reader sees within a minute that the writer has gone. A child that another test
/// starts has a copy of the liveness pipe until it executes its program.
fn is_left_soon(reader: &Reader) -> bool {
    let mut polled = [PollFd::new(reader.line(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::from(60_000_u16)).is_ok_and(|ready| ready > 0)
        && reader.is_left()
}

fn write(at: u64) -> Writer {
    Writer::create(7, "etcd", "alpha", deadline(at)).unwrap()
}

#[test]
fn a_reader_sees_the_last_published_deadline() {
    let writer = write(1000);
    let reader = reader(&writer);
    assert_eq!(reader.state(), State { deadline: deadline(1000), lost: None });
    writer.publish(deadline(2000));
    assert_eq!(reader.state().deadline, deadline(2000));
    assert_eq!(writer.reader.state(), reader.state());
    assert_eq!(
        (reader.host(), reader.engine(), reader.label()),
        (7, "etcd".into(), "alpha".into())
    );
    assert!(!reader.is_left());
}

#[test]
fn it_is_over_from_the_term_on_or_once_it_is_lost() {
    let state = State { deadline: deadline(1000), lost: None };
    assert!(!state.is_over(1099));
    assert!(state.is_over(1100));
    assert!(State { lost: Some(Lost { why: Why::Gone, at: 5 }), ..state }.is_over(0));
}

#[test]
fn a_lost_hold_keeps_its_first_reason() {
    let mut writer = write(1000);
    let reader = reader(&writer);
    let before = clock::boottime_ms();
    writer.lost(Why::Rewritten);
    writer.lost(Why::Gone);
    writer.publish(deadline(u64::MAX / 2));
    let lost = reader.state().lost.unwrap();
    assert_eq!(lost.why, Why::Rewritten);
    assert!((before..=clock::boottime_ms()).contains(&lost.at));
    assert!(is_left_soon(&reader), "those who watch are told");
}

#[test]
fn each_reason_is_read_as_written_and_an_unknown_reason_is_other() {
    for why in [Why::Away, Why::Gone, Why::Rewritten, Why::Taken, Why::Other, Why::Fewer] {
        assert_eq!(Why::from_number(why as u64), why);
    }
    assert_eq!(Why::from_number(200), Why::Other);
}

#[test]
fn names_are_cut_between_letters() {
    let long = "ä".repeat(200);
    let writer = Writer::create(1, &long, "", Deadline::default()).unwrap();
    let reader = reader(&writer);
    assert_eq!(reader.engine(), "ä".repeat(128));
    assert_eq!(reader.label(), "");
    let odd = Writer::create(1, &format!("x{long}"), "", Deadline::default()).unwrap();
    assert_eq!(self::reader(&odd).engine(), format!("x{}", "ä".repeat(127)));
}

/// Opens the same file again, for reading and writing if allowed.
fn again(fd: &impl AsFd) -> io::Result<std::fs::File> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::OpenOptions::new().read(true).write(true).open(path)
}

#[test]
fn the_descriptor_of_a_reader_can_neither_write_nor_resize_the_page() {
    let writer = write(1000);
    let [page, _] = writer.reader.descriptors();
    assert_eq!(nix::unistd::write(page, b"x"), Err(Errno::EBADF), "it is open to read only");
    // A descriptor that the reader opens itself cannot write either.
    let mut mine = again(&page).unwrap();
    assert_eq!(mine.write(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
    for length in [0, 1, 8192] {
        assert_eq!(ftruncate(&mine, length), Err(Errno::EPERM));
    }
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let length = NonZeroUsize::new(4096).unwrap();
    // SAFETY: the kernel chooses an address where nothing else is mapped.
    let mapped = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &mine, 0) };
    assert_eq!(mapped.unwrap_err(), Errno::EPERM);
    assert_eq!(reader(&writer).state().deadline, deadline(1000));
}

#[test]
fn a_descriptor_of_something_else_is_refused() {
    let line = || fds::pipe().unwrap().0;
    let refused = |page: OwnedFd| {
        let error = Reader::open(page, line()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        error.to_string()
    };
    let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
    let memory = |length: i64, seals: libc::c_int| {
        let file = memfd_create("x", flags).unwrap();
        ftruncate(&file, length).unwrap();
        // SAFETY: the call takes three integers.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        assert_eq!(sealed, 0);
        file
    };
    let both = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    assert_eq!(refused(line()), "the deadline page is not sealed");
    assert_eq!(refused(tempfile::tempfile().unwrap().into()), "the deadline page is not sealed");
    assert_eq!(refused(memory(4096, libc::F_SEAL_GROW)), "the deadline page is not sealed");
    assert_eq!(refused(memory(4096, libc::F_SEAL_SHRINK)), "the deadline page is not sealed");
    assert_eq!(refused(memory(64, both)), "the deadline page has a different size");
    assert_eq!(refused(memory(4096, both)), "the file is not a deadline page");
    let newer = memfd_create("x", flags).unwrap();
    let mut bytes = vec![0; 4096];
    bytes[..8].copy_from_slice(&u64::from_be_bytes(*b"canalTTL").to_ne_bytes());
    bytes[8..16].copy_from_slice(&2_u64.to_ne_bytes());
    std::fs::File::from(newer.try_clone().unwrap()).write_all(&bytes).unwrap();
    // SAFETY: the call takes three integers.
    assert_eq!(unsafe { libc::fcntl(newer.as_raw_fd(), libc::F_ADD_SEALS, both) }, 0);
    assert_eq!(refused(newer), "the deadline page has another version");
}

/// A writer in its own process, which publishes a deadline for every line that it reads.
#[test]
#[ignore = "a scene of the tests below"]
fn publishes_what_it_is_told() {
    if !rerun::plays(SCENE) {
        return;
    }
    let channel = fds::adopt(0).unwrap();
    let writer = write(0);
    let sent = fds::send(channel.as_fd(), b"p", &writer.reader.descriptors(), 0).unwrap();
    assert_eq!(sent, 1);
    let mut count = 0;
    while fds::receive(channel.as_fd(), &mut [0; 1], &mut Vec::new(), 0).unwrap() == 1 {
        count += 1;
        writer.publish(deadline(count * 1000));
        fds::send(channel.as_fd(), b"d", &[], 0).unwrap();
    }
}

struct Elsewhere {
    child: std::process::Child,
    channel: OwnedFd,
    reader: Reader,
}

impl Elsewhere {
    fn start() -> Self {
        let (channel, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut command = rerun::command(SCENE, "");
        command.stdin(OwnedFd::from(theirs)).stdout(std::process::Stdio::null());
        let child = command.spawn().unwrap();
        drop(command);
        let mut received = Vec::new();
        let channel = OwnedFd::from(channel);
        assert_eq!(fds::receive(channel.as_fd(), &mut [0; 1], &mut received, 0).unwrap(), 1);
        let line = received.pop().unwrap();
        let reader = Reader::open(received.pop().unwrap(), line).unwrap();
        Self { child, channel, reader }
    }

    fn publish(&self) {
        fds::send(self.channel.as_fd(), b"x", &[], 0).unwrap();
    }

    fn wait_done(&self) {
        assert_eq!(fds::receive(self.channel.as_fd(), &mut [0; 1], &mut Vec::new(), 0).unwrap(), 1);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_what_it_wrote_and_is_noticed() {
    let mut there = Elsewhere::start();
    there.publish();
    there.wait_done();
    assert!(!there.reader.is_left());
    there.signal(Signal::SIGKILL);
    there.child.wait().unwrap();
    assert!(is_left_soon(&there.reader));
    assert_eq!(there.reader.state(), State { deadline: deadline(1000), lost: None });
}

#[test]
fn the_page_of_a_stopped_writer_just_does_not_move() {
    let mut there = Elsewhere::start();
    there.signal(Signal::SIGSTOP);
    let pid = there.child.id();
    rerun::wait_until("it is stopped", || {
        crate::process::run_state(pid) == crate::process::RunState::Stopped
    });
    there.publish();
    assert_eq!(there.reader.state().deadline, deadline(0));
    assert!(!there.reader.is_left());
    there.signal(Signal::SIGCONT);
    there.wait_done();
    assert_eq!(there.reader.state().deadline, deadline(1000));
    there.signal(Signal::SIGKILL);
    there.child.wait().unwrap();
}
