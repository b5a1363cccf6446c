//! How the wrapper ends the command.

use std::os::unix::fs::symlink;

use canal::sys::clock::boottime_ms;
use canal::sys::deadline_page::Why;
use nix::sys::signal::Signal;

use crate::fake_daemon::{Fake, LONG, Running, deadline, lives, signal};
use crate::world::process::wait_until;

/// A script that writes its pid to `pids` and that only SIGKILL can end.
const STUBBORN: &str = r#"trap "" TERM; echo $$ >>pids; while :; do sleep 0.02; done"#;

#[test]
fn the_command_gets_sigterm_at_the_first_deadline() {
    let fake = Fake::sure(LONG, LONG);
    let script =
        "trap 'echo term >>log; exit 0' TERM; echo begun >>log; while :; do sleep 0.01; done";
    let running = fake.spawn(&[], script);
    fake.line("log");
    fake.hasten(&running, 100, LONG);
    assert_eq!(running.code(), Some(122));
    assert_eq!(fake.read("log"), "begun\nterm\n");
}

#[test]
fn the_command_is_killed_with_its_descendants_and_not_abandoned_before() {
    let fake = Fake::sure(LONG, LONG);
    let script = format!(
        "(setsid sh -c '{STUBBORN}' &); (setsid sh -c 'setsid sh -c \"exec sh -c \\\"\\$0\\\"\" \\
         \"$0\" & exit' '{STUBBORN}' &); sh -c '{STUBBORN}' & {STUBBORN}"
    );
    let running = fake.spawn(&[], &script);
    wait_until("all four run", || fake.read("pids").lines().count() == 4);
    fake.hasten(&running, 100, 200);
    assert_eq!(running.code(), Some(122));
    let pids = fake.read("pids");
    for pid in pids.lines() {
        assert!(!lives(pid), "{pid} of {pids}");
    }
}

#[test]
fn processes_left_behind_after_sigterm_are_killed_too() {
    let fake = Fake::sure(LONG, LONG);
    let script = format!(
        "(setsid sh -c '{STUBBORN}' &); trap 'echo term >>log; exit 0' TERM; \
                          echo $$ >>pids; while :; do sleep 0.01; done"
    );
    let running = fake.spawn(&[], &script);
    wait_until("both run", || fake.read("pids").lines().count() == 2);
    fake.hasten(&running, 100, 2000);
    assert_eq!(running.code(), Some(122));
    assert_eq!(fake.read("log"), "term\n");
    assert!(!lives(&fake.line("pids")));
}

#[test]
fn processes_left_behind_by_a_command_that_ended_by_itself_live_on() {
    let fake = Fake::sure(LONG, LONG);
    let script = format!(
        "(setsid sh -c '{STUBBORN}' >/dev/null 2>&1 &); \
                          while ! [ -s pids ]; do sleep 0.01; done; exit 3"
    );
    assert_eq!(fake.spawn(&[], &script).code(), Some(3));
    let pid = fake.line("pids");
    assert!(lives(&pid));
    signal(&pid, Signal::SIGKILL);
}

#[test]
fn a_daemon_that_the_command_started_on_demand_is_spared() {
    let fake = Fake::sure(LONG, LONG);
    let place = tempfile::TempDir::new().unwrap();
    let script = r#""$PROGRAM" --socket "$PLACE/canal.sock" status >/dev/null; cat "$PLACE/lock" >>pids
        while :; do sleep 0.01; done"#;
    let mut run = fake.canal(&[], script);
    run.env("PROGRAM", env!("CARGO_BIN_EXE_canal")).env("PLACE", place.path());
    let running = Running(run.spawn().unwrap());
    let daemon = fake.line("pids");
    fake.shared().writer.as_mut().unwrap().lost(Why::Gone);
    assert_eq!(running.code(), Some(122));
    assert!(lives(&daemon));
    signal(&daemon, Signal::SIGKILL);
}

#[test]
fn a_process_that_only_calls_itself_a_daemon_is_killed_too() {
    let fake = Fake::sure(LONG, LONG);
    symlink("/bin/sh", fake.path("canal")).unwrap();
    std::fs::write(fake.path("daemon"), "echo $$ >>pids; while :; do sleep 0.05; done").unwrap();
    let script = "(setsid ./canal daemon >/dev/null 2>&1 &); while :; do sleep 0.01; done";
    let running = fake.spawn(&[], script);
    let daemon = fake.line("pids");
    fake.shared().writer.as_mut().unwrap().lost(Why::Gone);
    assert_eq!(running.code(), Some(122));
    assert!(!lives(&daemon));
}

#[test]
fn wrapper_and_command_stopped_past_the_deadline_do_no_more_work() {
    let fake = Fake::sure(LONG, LONG);
    let script = "trap 'echo term >>log' TERM; trap 'echo cont >>log' CONT; echo $$ >>pids; \
                  while :; do echo work >>log; sleep 0.01; done";
    let running = fake.spawn(&[], script);
    let command = fake.line("pids");
    running.signal(Signal::SIGSTOP);
    signal(&command, Signal::SIGSTOP);
    let stopped = |pid: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    let wrapper = running.pid().to_string();
    wait_until("both are stopped", || stopped(&command) && stopped(&wrapper));
    fake.shared().writer.as_ref().unwrap().publish(deadline(0, 0));
    let before = fake.read("log");
    running.signal(Signal::SIGCONT);
    assert_eq!(running.code(), Some(122));
    assert_eq!(fake.read("log"), before);
    assert!(!lives(&command));
}

#[test]
fn a_lost_hold_ends_its_command_at_once_whatever_its_deadline() {
    let fake = Fake::sure(LONG, LONG);
    let script = format!("(setsid sh -c '{STUBBORN}' &); {STUBBORN}");
    let running = fake.spawn(&[], &script);
    wait_until("both run", || fake.read("pids").lines().count() == 2);
    fake.shared().writer.as_mut().unwrap().lost(Why::Rewritten);
    assert_eq!(running.code(), Some(122));
    for pid in fake.read("pids").lines() {
        assert!(!lives(pid));
    }
}

#[test]
fn on_lost_term_asks_and_does_not_kill() {
    let fake = Fake::sure(LONG, LONG);
    let script = "trap 'echo term >>log' TERM; echo $$ >>pids; while ! [ -e gate ]; do sleep 0.01; done; \
                  echo ended >>log; exit 0";
    let running = fake.spawn(&["--on-lost", "term"], script);
    fake.line("pids");
    let kill_at = fake.hasten(&running, 50, 100).kill_at;
    assert_eq!(fake.line("log"), "term");
    // Long enough for a wrapper that would kill.
    wait_until("it is too late", || boottime_ms() > kill_at + 300);
    fake.write("gate");
    let (code, _) = running.end();
    assert_eq!(code, Some(122));
    assert_eq!(fake.read("log"), "term\nended\n");
}

#[test]
fn on_lost_warn_prints_the_loss_and_passes_the_status_on() {
    let fake = Fake::sure(LONG, LONG);
    let script = "trap 'echo term >>log' TERM; echo $$ >>pids; \
                  while ! [ -e gate ]; do sleep 0.01; done; exit 7";
    let file = std::fs::File::create(fake.path("said")).unwrap();
    let mut command = fake.canal(&["--on-lost", "warn"], script);
    let running = Running(command.stderr(file).spawn().unwrap());
    fake.line("pids");
    fake.hasten(&running, 50, 100);
    let said = fake.line("said");
    assert!(said.ends_with("the command keeps running (--on-lost warn)"), "{said}");
    fake.write("gate");
    assert_eq!(running.code(), Some(7));
    assert_eq!(fake.read("log"), "");
    assert_eq!(fake.read("said").matches("canal: lost").count(), 1);
}

#[test]
fn max_run_still_applies() {
    let fake = Fake::sure(LONG, LONG);
    let output = fake.output(&["--max-run", "0.3"], "while :; do sleep 0.01; done");
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(fake.shared().calls.iter().filter(|(method, _)| method == "Acquire").count(), 1);
    let fake = Fake::sure(300, LONG);
    let output = fake.output(&["--max-run", "1h"], "while :; do sleep 0.01; done");
    assert_eq!(output.status.code(), Some(122), "{output:?}");
}
