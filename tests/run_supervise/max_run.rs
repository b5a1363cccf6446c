//! The time limit of a command (`--max-run`).

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use crate::bound::BOUND;
use crate::scene::{Running, code, lives, output};
use crate::wait_until;

pub(crate) fn the_hook_learns_of_a_command_that_runs_too_long_once() {
    let limits = ["--max-run", "100", "--kill-after", "100"];
    let long = output(&limits, "trap '' TERM; while :; do sleep 0.01; done");
    assert_eq!(String::from_utf8_lossy(&long.stderr), "overran\n");
    assert_eq!(String::from_utf8_lossy(&output(&["--max-run", "60000"], "exit 3").stderr), "");
}

pub(crate) fn a_command_that_ends_in_time_is_not_signalled() {
    assert_eq!(code(&["--max-run", "60000"], "exit 3"), Some(3));
    let output = output(&["--max-run", "60000"], "kill -TERM $$");
    assert_eq!(output.status.signal(), Some(libc::SIGTERM));
}

pub(crate) fn a_command_that_runs_too_long_is_ended() {
    let before = Instant::now();
    assert_eq!(code(&["--max-run", "200"], "sleep 60"), Some(124));
    assert!(before.elapsed() >= Duration::from_millis(200));
    assert!(before.elapsed() < BOUND);
}

pub(crate) fn a_command_that_ends_with_0_after_its_time_is_124() {
    let script = "trap 'echo clean; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let is_clean = |max_ms: u64| {
        let max_run = max_ms.to_string();
        let output = output(&["--max-run", &max_run, "--kill-after", "60000"], script);
        assert_eq!(output.status.code(), Some(124));
        // On a busy machine the time can pass before it has set its trap.
        let is_ready = output.stdout.starts_with(b"ready\n");
        assert!(!is_ready || output.stdout == b"ready\nclean\n", "{output:?}");
        is_ready
    };
    assert!((0..7).any(|doubled| is_clean(200 << doubled)), "too slow, whatever the time");
}

pub(crate) fn a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let is_killed_late = |max_ms: u64| {
        let before = Instant::now();
        let output = output(&["--max-run", &max_ms.to_string(), "--kill-after", "200"], script);
        assert_eq!(output.status.code(), Some(124));
        let is_ready = output.stdout == b"ready\n";
        assert!(!is_ready || before.elapsed() >= Duration::from_millis(max_ms + 200));
        is_ready
    };
    assert!((0..7).any(|doubled| is_killed_late(100 << doubled)), "too slow, whatever the time");
}

pub(crate) fn the_wait_for_the_lock_does_not_count() {
    // Try a longer time if the machine is too slow to run the command within it.
    assert!((0..7).any(|doubled| waits_then_runs(500 << doubled)), "too slow, whatever the time");
}

/// Whether a command ran within its limit, although it had waited for longer.
fn waits_then_runs(max_ms: u64) -> bool {
    let dir = tempfile::TempDir::new().unwrap();
    let free = dir.path().join("free");
    let began = Instant::now();
    let thread = std::thread::spawn({
        let (free, max_run) = (free.clone(), max_ms.to_string());
        move || code(&["--max-run", &max_run, "--when", free.to_str().unwrap()], "exit 6")
    });
    // The lock becomes free only after the limit would be long over.
    wait_until("its time passed", || began.elapsed() > Duration::from_millis(max_ms + 100));
    let ran = Instant::now();
    std::fs::write(&free, "").unwrap();
    let code = thread.join().unwrap();
    let too_slow = ran.elapsed() > Duration::from_millis(max_ms);
    assert!(code == Some(6) || too_slow, "{code:?}");
    code == Some(6)
}

pub(crate) fn a_stopped_command_is_ended_too() {
    let before = Instant::now();
    assert_eq!(code(&["--max-run", "300"], "kill -STOP $$; sleep 60"), Some(124));
    assert!(before.elapsed() < BOUND);
}

pub(crate) fn processes_in_its_group_are_ended_with_it() {
    let script = "sleep 60 & echo $!; wait";
    let ends_it = |max_ms: u64| {
        let (running, sleep) = Running::start(&["--max-run", &max_ms.to_string()], script);
        assert_eq!(running.finish().status.code(), Some(124));
        wait_until("the sleep has ended", || sleep.is_empty() || !lives(&sleep));
        !sleep.is_empty()
    };
    assert!((0..7).any(|doubled| ends_it(300 << doubled)), "too slow, whatever the time");
}
