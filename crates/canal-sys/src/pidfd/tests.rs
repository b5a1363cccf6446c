use std::process::{Child, Command, Stdio};

use std::os::fd::FromRawFd;

use super::*;
use crate::rerun::{self, BOUND, wait_until};

fn sleeper() -> Child {
    Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[test]
fn a_process_is_followed_from_life_over_death_to_the_reap() {
    let mut child = sleeper();
    let pidfd = Pidfd::open(child.id()).unwrap();
    assert!(!pidfd.has_ended());
    assert!(!pidfd.wait_end(Duration::from_millis(1)));
    assert_eq!(pidfd.pid(), Some(child.id()));
    assert_eq!(pidfd.pid_by_fdinfo(), Some(child.id()));

    pidfd.signal(Signal::SIGKILL).unwrap();
    assert!(pidfd.wait_end(BOUND));
    assert!(pidfd.has_ended(), "a zombie has ended");
    assert_eq!(pidfd.pid(), Some(child.id()), "a zombie keeps its number");
    assert_eq!(pidfd.pid_by_fdinfo(), Some(child.id()));
    pidfd.signal(Signal::SIGKILL).unwrap();

    child.wait().unwrap();
    assert!(pidfd.has_ended());
    assert_eq!(pidfd.pid(), None);
    assert_eq!(pidfd.pid_by_fdinfo(), None);
    let error = pidfd.signal(Signal::SIGTERM).unwrap_err();
    assert_eq!(errno(&error), libc::ESRCH);
    assert!(is_gone(&error));
}

#[test]
fn waiting_takes_as_long_as_asked_and_no_longer() {
    let own = Pidfd::open(std::process::id()).unwrap();
    let before = Instant::now();
    assert!(!own.wait_end(Duration::from_millis(30)));
    assert!(before.elapsed() >= Duration::from_millis(30));
    assert!(before.elapsed() < BOUND);
}

#[test]
fn numbers_that_no_process_has_are_gone() {
    let mut child = sleeper();
    child.kill().unwrap();
    child.wait().unwrap();
    // 2^22 is the kernel's maximum.
    for pid in [0, child.id(), (1 << 22) + 1, u32::MAX] {
        let error = Pidfd::open(pid).unwrap_err();
        assert!(is_gone(&error), "{pid}: {error}");
    }
}

#[test]
fn a_thread_is_no_process() {
    let thread = std::thread::spawn(|| {
        // This is not the first thread of the test process.
        let error = Pidfd::open(nix::unistd::gettid().as_raw().unsigned_abs()).unwrap_err();
        assert!(is_gone(&error), "{error}");
    });
    thread.join().unwrap();
}

#[test]
fn only_the_pidfd_of_a_process_is_taken_over() {
    let own = Pidfd::open(std::process::id()).unwrap();
    let again = Pidfd::from_fd(own.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(again.pid(), Some(std::process::id()));
    let others: [OwnedFd; 3] = [
        std::fs::File::open("/proc/self/stat").unwrap().into(),
        std::fs::File::open("/dev/null").unwrap().into(),
        nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap().0,
    ];
    for other in others {
        assert_eq!(Pidfd::from_fd(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn the_pidfd_of_a_thread_is_refused() {
    let tid = nix::unistd::gettid().as_raw();
    // SAFETY: pidfd_open takes two integers and does not touch our memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, PIDFD_THREAD) };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        assert_eq!(Errno::last(), Errno::EINVAL, "a kernel before 6.9, which has none to refuse");
        return;
    };
    // SAFETY: the kernel has just created it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let error = Pidfd::from_fd(fd).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("thread"), "{error}");
}

#[test]
fn the_inode_names_the_process() {
    let mut child = sleeper();
    let (own, other) = (Pidfd::open(std::process::id()).unwrap(), Pidfd::open(child.id()).unwrap());
    let again = Pidfd::open(std::process::id()).unwrap();
    assert_eq!(own.inode(), again.inode());
    if allows(Feature::PIDFS) && is_on_pidfs(own.as_fd()) {
        assert_ne!(own.inode(), 0);
        assert_ne!(own.inode(), other.inode());
    } else {
        assert_eq!(own.inode(), 0);
    }
    child.kill().unwrap();
    let alive = other.inode();
    child.wait().unwrap();
    assert_eq!(other.inode(), alive, "after the reap too");
}

#[test]
fn a_pidfd_is_not_passed_on() {
    let own = Pidfd::open(std::process::id()).unwrap();
    let flags = nix::fcntl::fcntl(&own, nix::fcntl::FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags, libc::FD_CLOEXEC);
}

const OLD: &str = "pidfd::tests::asks_an_old_kernel";

#[test]
#[ignore = "a scene of an_old_kernel_tells_by_fdinfo"]
fn asks_an_old_kernel() {
    if rerun::plays(OLD) {
        let own = Pidfd::open(std::process::id()).unwrap();
        assert_eq!(own.inode(), 0);
        assert_eq!(own.real_uid(), None);
        assert_eq!(own.pid(), Some(std::process::id()));
        println!("ASKED");
    }
}

#[test]
fn an_old_kernel_tells_by_fdinfo() {
    let output = rerun::run(OLD, "export CANAL_KERNEL=5.10;");
    assert!(String::from_utf8_lossy(&output.stdout).contains("ASKED"), "{output:?}");
}

/// Runs on the first thread before main, because libtest runs its tests on other threads.
#[used]
// SAFETY: the section is a table of functions that the loader calls before main. We read none of
// their arguments, and they return nothing. This is one of them.
#[unsafe(link_section = ".init_array")]
static SCENES: extern "C" fn() = play_on_the_first_thread;

const LEADER: &str = "LEADER-ENDS";
const EXECUTES: &str = "THREAD-EXECUTES";
const DONE: i32 = 42;

extern "C" fn play_on_the_first_thread() {
    match std::env::var("CANAL_TEST_FIRST").as_deref() {
        Ok(LEADER) => {
            std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
        }
        Ok(EXECUTES) => {
            let _ = std::thread::spawn(execute_again).join();
        }
        _ => return,
    }
    // SAFETY: exit(2) ends only this thread, and the other thread uses nothing on its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

fn execute_again() {
    use std::os::unix::process::CommandExt;
    let left: u32 = std::env::var("LEFT").unwrap().parse().unwrap();
    if left == 0 {
        // SAFETY: the call ends the process at once.
        unsafe { libc::_exit(DONE) };
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    panic!("{}", again.env("LEFT", (left - 1).to_string()).exec());
}

fn first(scene: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("CANAL_TEST_FIRST", scene);
    command
}

#[test]
fn a_process_whose_first_thread_ended_has_not_ended() {
    let mut child = first(LEADER).spawn().unwrap();
    let pidfd = Pidfd::open(child.id()).unwrap();
    let state = || crate::process::state_letter(child.id());
    wait_until("the first thread is a zombie", || state() == Some('Z'));
    assert!(!pidfd.has_ended());
    assert_eq!(
        crate::process::run_state(child.id()),
        crate::process::RunState::Running,
        "the other thread sleeps"
    );
    pidfd.signal(Signal::SIGKILL).unwrap();
    assert!(pidfd.wait_end(BOUND));
    child.wait().unwrap();
}

#[test]
fn a_process_that_executes_from_another_thread_never_seems_to_have_ended() {
    // A single poll sometimes reports an end here, more or less often depending on the kernel.
    let mut child = first(EXECUTES).env("LEFT", "200").spawn().unwrap();
    let pidfd = Pidfd::open(child.id()).unwrap();
    let mut polls = 0_u64;
    while !pidfd.has_ended() {
        polls += 1;
    }
    // A child that still lives would have no status yet.
    let status = child.try_wait().unwrap().expect("it has ended");
    assert_eq!(status.code(), Some(DONE), "after {polls} polls");
}
