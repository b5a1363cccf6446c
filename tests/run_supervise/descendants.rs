//! Supervision with `--with-children`.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bound::BOUND;
use crate::scene::{CANAL, Running, lives, scene, words};
use crate::wait_until;

pub(crate) fn without_with_children_the_supervisor_does_not_wait_for_them() {
    let script = "(setsid sleep 60 >/dev/null 2>&1 & echo $!)";
    let (running, sleep) = Running::start(&[], script);
    assert_eq!(running.finish().status.code(), Some(0));
    assert!(lives(&sleep));
    end(&sleep);
}

pub(crate) fn with_children_the_supervisor_waits_and_passes_on_the_commands_code() {
    let script = "(setsid sleep 60 >/dev/null 2>&1 & echo $!); exit 4";
    let (mut running, sleep) = Running::start(&["--with-children"], script);
    // The command has ended, and its parent has adopted its child.
    wait_until("the sleep is adopted", || parent(&sleep) == running.child.id().to_string());
    assert!(running.child.try_wait().unwrap().is_none());
    end(&sleep);
    assert_eq!(running.finish().status.code(), Some(4));
}

pub(crate) fn a_child_that_keeps_the_hold_is_distinguished_from_an_earlier_child() {
    let before = Instant::now();
    let script = "sleep 60 >/dev/null 2>&1 & echo $!; exec \"$@\"";
    let output = Command::new("setsid")
        .args(["--wait", "sh", "-c", script, "sh"])
        .args(words(&["--with-children"], "exit 8"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(8));
    assert!(before.elapsed() < BOUND);
    let sleep = String::from_utf8(output.stdout).unwrap();
    assert!(lives(sleep.trim()));
    end(sleep.trim());
}

pub(crate) fn max_run_applies_to_descendants() {
    let is_killed_late = |max_ms: u64| {
        let dir = tempfile::TempDir::new().unwrap();
        let ready = dir.path().join("ready");
        let body = r#"trap "" TERM; >"$READY"; while :; do sleep 0.05; done"#;
        let script = format!("(setsid sh -c '{body}' >/dev/null 2>&1 &)");
        let max_run = max_ms.to_string();
        let options = ["--with-children", "--max-run", &max_run, "--kill-after", "200"];
        let before = Instant::now();
        let status = scene(&options, &script).env("READY", &ready).status().unwrap();
        assert_eq!(status.code(), Some(124));
        assert!(!ready.exists() || before.elapsed() >= Duration::from_millis(max_ms + 200));
        assert!(before.elapsed() < BOUND);
        ready.exists()
    };
    assert!((0..7).any(|doubled| is_killed_late(300 << doubled)), "too slow, whatever the time");
}

pub(crate) fn the_supervisor_does_not_wait_for_a_daemon_started_on_demand() {
    let dir = tempfile::TempDir::new().unwrap();
    let script = r#""$PROGRAM" --socket "$PWD/canal.sock" status >&2; cat lock"#;
    let mut supervisor = scene(&["--with-children"], script);
    supervisor.current_dir(dir.path()).env("PROGRAM", CANAL);
    let (running, daemon) = Running::of(supervisor);
    assert_eq!(running.finish().status.code(), Some(0));
    assert!(lives(&daemon));
    end(&daemon);
}

pub(crate) fn max_run_applies_to_a_process_that_only_calls_itself_a_daemon() {
    let dir = tempfile::TempDir::new().unwrap();
    symlink("/bin/sh", dir.path().join("canal")).unwrap();
    let body = "trap '' TERM; exec >&-; while :; do sleep 0.05; done";
    std::fs::write(dir.path().join("daemon"), body).unwrap();
    let script = "(setsid ./canal daemon --on-demand 2>/dev/null &)";
    let options = ["--with-children", "--max-run", "300", "--kill-after", "200"];
    let status = scene(&options, script).current_dir(dir.path()).status().unwrap();
    assert_eq!(status.code(), Some(124));
}

fn parent(pid: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)).unwrap_or("").to_owned()
}

fn end(pid: &str) {
    let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}
