//! The supervisor ends as its command ended.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::scene::{code, output, scene, words};

pub(crate) fn the_exit_code_is_passed_on() {
    for expected in [0, 1, 7, 75, 126, 255] {
        assert_eq!(code(&[], &format!("exit {expected}")), Some(expected));
    }
}

pub(crate) fn a_death_by_signal_is_passed_on_as_that_death() {
    let real_time = libc::SIGRTMIN() + 2;
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGHUP, libc::SIGSEGV, real_time] {
        let output = output(&[], &format!("ulimit -c 0; kill -{signal} $$"));
        // `setsid --wait` executes in place, so the status is the parent's own.
        assert_eq!(output.status.signal(), Some(signal), "{output:?}");
        assert!(!output.status.core_dumped());
    }
}

pub(crate) fn a_child_that_never_runs_its_command_passes_its_own_code() {
    let output = output(&["--refused", "75"], "echo ran");
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stdout.is_empty());
}

/// A shell that runs `before` and then becomes the given command.
fn after(before: &str, rest: &[std::ffi::OsString]) -> Command {
    let mut command = Command::new("setsid");
    command.args(["--wait", "sh", "-c", &format!("{before} exec \"$@\""), "sh"]).args(rest);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn an_ignored_sigchld_hides_no_status() {
    let mut command = after("trap '' CHLD;", &words(&[], "exit 3"));
    assert_eq!(command.status().unwrap().code(), Some(3));
}

pub(crate) fn the_command_gets_its_signals_as_the_caller_set_them() {
    // The shell's own settings are the same in both outputs.
    let look = "grep -E '^Sig(Blk|Ign|Cgt)|^ShdPnd' /proc/self/status";
    for before in ["", "trap '' PIPE;", "trap '' CHLD HUP;", "trap '' INT TSTP TTOU;"] {
        let plain = ["sh", "-c", look].map(std::ffi::OsString::from);
        let plain = after(before, &plain).output().unwrap().stdout;
        let stayed = after(before, &words(&["--max-run", "60000"], look)).output().unwrap().stdout;
        assert!(!plain.is_empty());
        assert_eq!(String::from_utf8(stayed).unwrap(), String::from_utf8(plain).unwrap());
    }
}

pub(crate) fn descriptors_that_the_command_closes_are_closed() {
    let dir = tempfile::TempDir::new().unwrap();
    let gate = dir.path().join("gate");
    let script = r#"exec >&-; while ! [ -e "$GATE" ]; do sleep 0.01; done; exit 5"#;
    let mut child = scene(&[], script).env("GATE", &gate).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    // The pipe ends although the command and its parent continue.
    child.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.try_wait().unwrap().is_none());
    std::fs::write(&gate, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}
