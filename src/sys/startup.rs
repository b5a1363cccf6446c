//! The start of this process, in place of Rust's runtime, and what it was given.
//!
//! A command started by `canal run` must find SIGPIPE and descriptors 0, 1 and 2 as the caller set
//! them. Until then they have to be as Rust's library expects them: SIGPIPE ignored, so that a write
//! to who does not read is an error, and all three open, so that no file of ours gets such a number.
//! The runtime does both too, but says nothing of what it found, and takes a dozen system calls more.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::slice;
use std::sync::atomic::{AtomicU8, Ordering};

/// What was found at the very start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup {
    /// Whether SIGPIPE was ignored.
    pub sigpipe_ignored: bool,
    /// Whether descriptors 0, 1 and 2 were open.
    pub open: [bool; 3],
}

/// Bits 0 to 2: the descriptor was closed; bit 3: SIGPIPE was ignored.
static FOUND: AtomicU8 = AtomicU8::new(0);
const SIGPIPE_IGNORED: u8 = 1 << 3;
/// That [`begin`] was called, with all that its caller promises.
const BEGUN: u8 = 1 << 4;

/// The words that this process was started with.
#[derive(Clone, Copy, Debug)]
pub struct Words(&'static [*const libc::c_char]);

impl Words {
    /// All of them, the name of the program first.
    pub fn iter(self) -> impl Iterator<Item = &'static OsStr> + Clone {
        // SAFETY: they are strings that live as long as the process (see `begin`).
        self.0.iter().map(|&word| OsStr::from_bytes(unsafe { CStr::from_ptr(word) }.to_bytes()))
    }
}

/// Does what Rust's runtime would do before `main` is called, and takes note of what it finds. To be
/// called once, before anything else.
///
/// # Safety
/// `words` are `count` addresses of strings, all of which live as long as the process and are never
/// written. Nobody ever changes the environment of this process.
pub unsafe fn begin(count: libc::c_int, words: *const *const libc::c_char) -> Words {
    let closed = open_standard();
    // SAFETY: the disposition is no function.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let ignored = if before == libc::SIG_IGN { SIGPIPE_IGNORED } else { 0 };
    FOUND.store(closed | ignored | BEGUN, Ordering::Relaxed);
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count) if count > 0 => Words(unsafe { slice::from_raw_parts(words, count) }),
        _ => Words(&[]),
    }
}

/// Opens /dev/null over those of the descriptors 0 to 2 that are closed; a bit for each that was.
fn open_standard() -> u8 {
    let mut standard = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: the structures live over the call, and there are three.
    let polled = unsafe { libc::poll(standard.as_mut_ptr(), 3, 0) };
    let mut closed = 0;
    for libc::pollfd { fd, revents, .. } in standard {
        // Where so few descriptors are allowed that poll fails, one by one. F_GETFD only asks.
        // SAFETY: as it says.
        let is_open = || unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
        if if polled == -1 { is_open() } else { revents & libc::POLLNVAL == 0 } {
            continue;
        }
        closed |= 1 << fd;
        // The lowest number that is free is this one: those below are open by now.
        // SAFETY: a string with its end.
        if unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } != fd {
            // As the runtime does: any file of ours could be taken for a standard one.
            std::process::abort();
        }
    }
    closed
}

/// Whether nobody ever changes the environment, because this is a program that promised so.
pub(super) fn environment_is_fixed() -> bool {
    FOUND.load(Ordering::Relaxed) & BEGUN != 0
}

/// What [`begin`] found; in another program, whose start was Rust's runtime, what mostly is.
#[must_use]
pub fn recorded() -> Startup {
    let found = FOUND.load(Ordering::Relaxed);
    Startup {
        sigpipe_ignored: found & SIGPIPE_IGNORED != 0,
        open: [0, 1, 2].map(|fd| found & (1 << fd) == 0),
    }
}

/// Puts SIGPIPE and descriptors 0 to 2 back as they were found; for just before exec, or in a forked
/// child (it is async-signal-safe). A descriptor that was closed is closed again if /dev/null is
/// still what is there.
pub fn restore() {
    let startup = recorded();
    if !startup.sigpipe_ignored {
        // SAFETY: the disposition is no function.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    for (fd, open) in (0..).zip(startup.open) {
        if !open && is_null_device(fd) {
            // SAFETY: whoever uses the standard descriptors copes with closed ones: they were
            // closed when this process began.
            unsafe { libc::close(fd) };
        }
    }
}

fn is_null_device(fd: libc::c_int) -> bool {
    // SAFETY: the structure is all integers, for which zeros are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: it writes the structure, which lives over the call.
    let told = unsafe { libc::fstat(fd, &raw mut stat) } == 0;
    told && stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;
    use crate::sys::rerun;

    const SCENE: &str = "sys::startup::tests::tells_what_it_found";

    #[test]
    #[ignore = "a scene of the tests below"]
    fn tells_what_it_found() {
        if !rerun::plays(SCENE) {
            return;
        }
        // As the runtime found it.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        for word in std::env::var("FOUND").unwrap().split_whitespace() {
            match word {
                // SAFETY: the disposition is no function.
                "default" => drop(unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) }),
                "few" => setrlimit(Resource::RLIMIT_NOFILE, 2, hard).unwrap(),
                // SAFETY: nothing of the test harness reads or writes from here on.
                closed => assert_eq!(unsafe { libc::close(closed.parse().unwrap()) }, 0),
            }
        }
        let words = [c"canal".as_ptr(), c"run".as_ptr(), std::ptr::null()];
        let words: &'static _ = Box::leak(Box::new(words));
        // SAFETY: two strings that live as long as the process.
        let words = unsafe { begin(2, words.as_ptr()) };
        assert!(words.iter().eq(["canal", "run"]));
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        let mut told = String::new();
        let mut tell = |what: &str| {
            let open = [0, 1, 2].map(|fd| {
                // SAFETY: F_GETFD only asks.
                unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
            });
            // SAFETY: the structure is integers and addresses, for which zeros are a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: with no new action it only writes the old one, which lives over the call.
            unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
            let ignored = action.sa_sigaction == libc::SIG_IGN;
            writeln!(told, "{what}: sigpipe ignored {ignored}, open {open:?}").unwrap();
        };
        tell("now");
        restore();
        tell("restored");
        writeln!(told, "{:?}", recorded()).unwrap();
        std::fs::write(std::env::var_os("TO").unwrap(), told).unwrap();
        // Not through libtest's end, which may need what is closed now.
        std::process::exit(0);
    }

    fn told(found: &str, before: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("told");
        assert!(
            rerun::command(SCENE, before)
                .env("TO", &to)
                .env("FOUND", found)
                .output()
                .unwrap()
                .status
                .success()
        );
        std::fs::read_to_string(to).unwrap()
    }

    #[test]
    fn what_was_changed_is_put_back() {
        assert_eq!(
            told("default", ""),
            "now: sigpipe ignored true, open [true, true, true]\n\
             restored: sigpipe ignored false, open [true, true, true]\n\
             Startup { sigpipe_ignored: false, open: [true, true, true] }\n"
        );
    }

    #[test]
    fn an_ignored_sigpipe_stays_ignored() {
        // The harness's own runtime ignores it.
        let told = told("", "");
        assert!(told.contains("restored: sigpipe ignored true"), "{told}");
        assert!(told.contains("sigpipe_ignored: true"), "{told}");
    }

    #[test]
    fn each_closed_descriptor_is_closed_again() {
        for (closed, open) in [
            ("0", "[false, true, true]"),
            ("1", "[true, false, true]"),
            ("2", "[true, true, false]"),
            ("0 1 2", "[false, false, false]"),
            // Of which poll takes no three.
            ("0 few", "[false, true, true]"),
            ("1 few", "[true, false, true]"),
        ] {
            let told = told(&format!("default {closed}"), "");
            assert!(told.contains("now: sigpipe ignored true, open [true, true, true]"), "{told}");
            assert!(told.contains(&format!("restored: sigpipe ignored false, open {open}")));
            assert!(told.contains(&format!("sigpipe_ignored: false, open: {open}")), "{told}");
        }
    }

    #[test]
    fn a_null_device_that_the_caller_gave_is_left_open() {
        let told = told("default", "exec 0</dev/null 2>/dev/null;");
        assert!(told.contains("restored: sigpipe ignored false, open [true, true, true]"));
    }
}
