//! The circumstances in which this process was started.
//!
//! A command started by `canal run` must find SIGPIPE and descriptors 0, 1 and 2 as the caller set
//! them. Rust's runtime ignores SIGPIPE and opens /dev/null over closed descriptors, without
//! reporting what it found. So the loader calls a function here before `main`, which records the
//! state first.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::signals::change_mask;

/// The state at the very start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup {
    /// Whether SIGPIPE was ignored.
    pub sigpipe_ignored: bool,
    /// Whether descriptors 0, 1 and 2 were open.
    pub open: [bool; 3],
}

/// The path by which this program was executed, made absolute; `None` if the kernel does not report
/// it. Unlike `/proc/self/exe`, it works without /proc. Another file may have that path by now.
pub fn executed_as() -> Option<PathBuf> {
    // SAFETY: the call takes an integer.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    let text: *const c_char = std::ptr::with_exposed_provenance(usize::try_from(address).ok()?);
    if text.is_null() {
        return None;
    }
    // SAFETY: the kernel put a NUL-terminated string there, which stays for the life of the
    // process.
    let path = unsafe { CStr::from_ptr(text) };
    std::path::absolute(OsStr::from_bytes(path.to_bytes())).ok()
}

/// Bits 0 to 2: the descriptor was closed. Bit 3: SIGPIPE was ignored.
static FOUND: AtomicU8 = AtomicU8::new(0);
const SIGPIPE_IGNORED: u8 = 1 << 3;

/// The C library's own signals (32 to 34) that were blocked, as bits of the kernel's mask.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
const OF_C_LIBRARY: u64 = 0b111 << 31;

// Miri does not support signals.
#[cfg(not(miri))]
#[used]
// SAFETY: the section is a table of functions that the loader calls before `main`. This function
// takes and returns nothing, and uses no part of Rust's library that needs its runtime.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = record;

/// Records the state and changes nothing.
#[cfg_attr(miri, expect(dead_code, reason = "see above"))]
extern "C" fn record() {
    let mut found = 0;
    for fd in 0..3 {
        // SAFETY: F_GETFD changes nothing.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            found |= 1 << fd;
        }
    }
    // SAFETY: the structure is integers and addresses, for which zeros are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call only writes the old action, which outlives the call.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
    if action.sa_sigaction == libc::SIG_IGN {
        found |= SIGPIPE_IGNORED;
    }
    FOUND.store(found, Ordering::Relaxed);
    BLOCKED.store(change_mask(libc::SIG_BLOCK, 0) & OF_C_LIBRARY, Ordering::Relaxed);
}

/// The state with which this process was started.
pub fn recorded() -> Startup {
    let found = FOUND.load(Ordering::Relaxed);
    Startup {
        sigpipe_ignored: found & SIGPIPE_IGNORED != 0,
        open: [0, 1, 2].map(|fd| found & (1 << fd) == 0),
    }
}

/// Makes [`restore`] leave descriptors 0, 1 and 2 open: this process has opened all of them for the
/// command.
pub fn standard_descriptors_opened() {
    FOUND.fetch_and(SIGPIPE_IGNORED, Ordering::Relaxed);
}

/// Restores SIGPIPE, blocked signals and descriptors 0 to 2 as they were found. Call this just
/// before exec, or in a forked child (it is async-signal-safe). Closes a descriptor that was closed
/// at the start if it is still /dev/null.
pub fn restore() {
    let startup = recorded();
    if !startup.sigpipe_ignored {
        // SAFETY: the disposition is not a function.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    change_mask(libc::SIG_BLOCK, BLOCKED.load(Ordering::Relaxed));
    for (fd, open) in (0..).zip(startup.open) {
        if !open && is_null_device(fd) {
            // SAFETY: code that uses the standard descriptors can handle closed descriptors: they
            // were closed when this process began.
            unsafe { libc::close(fd) };
        }
    }
}

fn is_null_device(fd: libc::c_int) -> bool {
    // SAFETY: the structure is all integers, for which zeros are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the structure, which outlives the call.
    let told = unsafe { libc::fstat(fd, &raw mut stat) } == 0;
    told && stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::rerun;

    const SCENE: &str = "process::startup::tests::tells_what_it_found";

    #[test]
    #[ignore = "a scene of the tests below"]
    fn tells_what_it_found() {
        if !rerun::plays(SCENE) {
            return;
        }
        let mut told = String::new();
        let mut tell = |what: &str| {
            let open = [0, 1, 2].map(|fd| {
                // SAFETY: F_GETFD changes nothing.
                unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
            });
            // SAFETY: the structure is integers and addresses, for which zeros are a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: without a new action the call only writes the old action, which outlives the
            // call.
            unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
            let ignored = action.sa_sigaction == libc::SIG_IGN;
            writeln!(told, "{what}: sigpipe ignored {ignored}, open {open:?}").unwrap();
        };
        tell("now");
        restore();
        tell("restored");
        writeln!(told, "{:?}", recorded()).unwrap();
        std::fs::write(std::env::var_os("TO").unwrap(), told).unwrap();
        // Skips libtest's end, which may need the descriptors that are now closed.
        std::process::exit(0);
    }

    /// The output of the scene when a shell starts it after executing `before`.
    fn told(before: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("told");
        assert!(
            rerun::command(SCENE, before).env("TO", &to).output().unwrap().status.success(),
            "{before}"
        );
        std::fs::read_to_string(to).unwrap()
    }

    #[test]
    fn what_was_changed_is_put_back() {
        assert_eq!(
            told(""),
            "now: sigpipe ignored true, open [true, true, true]\n\
             restored: sigpipe ignored false, open [true, true, true]\n\
             Startup { sigpipe_ignored: false, open: [true, true, true] }\n"
        );
    }

    #[test]
    fn an_ignored_sigpipe_stays_ignored() {
        let told = told("trap '' PIPE;");
        assert!(told.contains("restored: sigpipe ignored true"), "{told}");
        assert!(told.contains("sigpipe_ignored: true"), "{told}");
    }

    #[test]
    fn each_closed_descriptor_is_closed_again() {
        for (before, open) in [
            ("exec 0<&-;", "[false, true, true]"),
            ("exec 1>&-;", "[true, false, true]"),
            ("exec 2>&-;", "[true, true, false]"),
            ("exec 0<&- 1>&- 2>&-;", "[false, false, false]"),
        ] {
            let told = told(before);
            assert!(told.contains("now: sigpipe ignored true, open [true, true, true]"), "{told}");
            assert!(
                told.contains(&format!("restored: sigpipe ignored false, open {open}")),
                "{told}"
            );
            assert!(told.contains(&format!("sigpipe_ignored: false, open: {open}")), "{told}");
        }
    }

    #[test]
    fn a_null_device_that_the_caller_gave_is_left_open() {
        let told = told("exec 0</dev/null 2>/dev/null;");
        assert!(told.contains("restored: sigpipe ignored false, open [true, true, true]"));
    }
}
