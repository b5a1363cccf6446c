//! The deadline page: extended, abandoned, and replaced.

use canal::sys::clock::boottime_ms;
use nix::sys::signal::Signal;

use crate::fake_daemon::{Fake, LONG, deadline, lives, signal, writer};
use crate::world::process::wait_until;

/// A script that runs until the test creates the file `gate`.
const UNTIL_GATE: &str = "echo $$ >>pids; while ! [ -e gate ]; do sleep 0.01; done; exit 5";

#[test]
fn a_command_whose_deadline_is_extended_goes_on() {
    let fake = Fake::sure(LONG, LONG);
    let mut running = fake.spawn(&[], UNTIL_GATE);
    fake.line("pids");
    let first = fake.hasten(&running, 1000, 1100);
    wait_until("the first deadline is long over", || {
        fake.shared().writer.as_ref().unwrap().publish(deadline(1000, 1100));
        boottime_ms() > first.kill_at + 1000
    });
    assert!(running.is_running());
    fake.shared().writer.as_ref().unwrap().publish(deadline(LONG, LONG));
    fake.write("gate");
    assert_eq!(running.end(), (Some(5), String::new()));
}

#[test]
fn the_death_of_the_daemon_changes_nothing_about_the_deadline() {
    let fake = Fake::sure(LONG, LONG);
    let mut running = fake.spawn(&[], UNTIL_GATE);
    let command = fake.line("pids");
    let term_at = fake.hasten(&running, 800, 1000).term_at;
    fake.die();
    // The command must not end earlier.
    assert!(running.is_running() || boottime_ms() >= term_at);
    let (code, said) = running.end();
    assert!(boottime_ms() >= term_at);
    assert_eq!(code, Some(122), "{said}");
    assert!(!lives(&command));
}

#[test]
fn the_deadline_page_of_the_next_daemon_replaces_an_abandoned_one() {
    let fake = Fake::sure(LONG, LONG);
    let running = fake.spawn(&[], UNTIL_GATE);
    fake.line("pids");
    let first = fake.hasten(&running, 3000, 3200);
    let tag = fake.shared().calls[0].1["tag"].clone();
    // The next daemon is running, but does not know the command yet.
    fake.shared().writer = None;
    let asked = |fake: &Fake| {
        let shared = fake.shared();
        shared.calls.iter().filter(|(method, _)| method == "DeadlinePage").count()
    };
    wait_until("it was asked", || asked(&fake) > 0);
    fake.shared().writer = Some(writer(LONG, LONG));
    wait_until("the first deadline is long over", || boottime_ms() > first.kill_at + 300);
    fake.write("gate");
    assert_eq!(running.end(), (Some(5), String::new()));
    for (method, parameters) in &fake.shared().calls {
        if method == "DeadlinePage" {
            assert_eq!(parameters["tag"], tag);
        }
    }
}

#[test]
fn a_command_that_the_next_daemon_killed_exits_with_122_with_all_its_descendants() {
    let fake = Fake::sure(LONG, LONG);
    let script = format!("setsid sleep 1000 & echo $! >>child; {UNTIL_GATE}");
    let running = fake.spawn(&[], &script);
    let (command, child) = (fake.line("pids"), fake.line("child"));
    fake.hand_on("rewritten");
    // The next daemon does this too, but the wrapper may learn of the loss first.
    signal(&command, Signal::SIGKILL);
    let (code, said) = running.end();
    assert_eq!(code, Some(122), "{said}");
    assert!(said.contains("canal: lost `db` (token 9) at "), "{said}");
    assert!(said.contains("the history of etcd changed"), "{said}");
    assert!(!lives(&child), "it ran without its lock");
}

#[test]
fn a_command_killed_by_another_process_while_no_daemon_ran_ends_by_that_signal() {
    let fake = Fake::sure(LONG, LONG);
    let running = fake.spawn(&[], UNTIL_GATE);
    let command = fake.line("pids");
    fake.shared().writer = None;
    signal(&command, Signal::SIGKILL);
    let (code, said) = running.end();
    assert!(code != Some(122) && !said.contains("lost"), "{code:?} {said}");
}

#[test]
fn a_command_outlives_its_killed_wrapper() {
    let fake = Fake::sure(LONG, LONG);
    let running = fake.spawn(&[], UNTIL_GATE);
    let command = fake.line("pids");
    running.signal(Signal::SIGKILL);
    assert_eq!(running.code(), None);
    assert!(lives(&command));
    signal(&command, Signal::SIGKILL);
}
