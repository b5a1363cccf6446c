//! Waiters whose output has no reader left.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::terminal::Terminal;
use crate::world::World;
use crate::world::process::{Proc, state, wait_until};

/// The two ends of a pipe: the reading end and the writing end.
fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

/// Starts a waiter for `x` with these descriptors as its output.
fn waiter(world: &World, options: &[&str], stdout: OwnedFd, stderr: OwnedFd) -> Proc {
    let args = ["run", "-k", "x"].iter().chain(options).chain(&["--", "touch", "ran"]);
    let waiter = world.canal(args).stdout(stdout).stderr(stderr).spawn();
    world.until_waiting("x", 1);
    waiter
}

/// How the last ended request for `x` ended.
fn last_end(world: &World) -> String {
    let args = ["history", "--json", "-n", "1", "x"];
    let shown: Value = world.canal(args).end().code(0).json();
    shown["records"][0]["how"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn assert_gives_up(world: &World, waiter: Proc) {
    waiter.end().code(75);
    world.until_waiting("x", 0);
    wait_until("its end is recorded", || last_end(world) == "abandoned");
    assert!(!world.path("work/ran").exists());
}

/// Checks that the waiter sleeps, gets the lock when its holder ends, and runs its command.
#[track_caller]
fn assert_waits_on(world: &World, holder: Proc, waiter: Proc) {
    let mut asleep = 0;
    wait_until("it sleeps, and does not poll in a circle", || {
        asleep = if state(waiter.pid()) == Some('S') { asleep + 1 } else { 0 };
        asleep == 20
    });
    assert_eq!(world.key("x").waiting, 1);
    holder.finish().code(0);
    waiter.end().code(0);
    assert!(world.path("work/ran").exists());
}

#[test]
fn a_waiter_gives_up_when_both_its_pipes_have_lost_their_readers() {
    let world = World::with_daemon();
    let _holder = world.holder(&["-k", "x"]);
    for options in [&[] as &[&str], &["-q"], &["--max-run", "1h"], &["--progress", "none"]] {
        let ((out, stdout), (err, stderr)) = (pipe(), pipe());
        let waiter = waiter(&world, options, stdout, stderr);
        drop(out);
        assert_eq!(world.key("x").waiting, 1);
        drop(err);
        assert_gives_up(&world, waiter);
    }
}

#[test]
fn a_waiter_gives_up_when_one_connection_for_both_is_shut_down() {
    let world = World::with_daemon();
    let _holder = world.holder(&["-k", "x"]);
    let (ours, its) = UnixStream::pair().unwrap();
    let waiter = waiter(&world, &[], its.try_clone().unwrap().into(), its.into());
    ours.shutdown(std::net::Shutdown::Both).unwrap();
    assert_gives_up(&world, waiter);
}

#[test]
fn a_waiter_that_ignores_the_hang_up_of_its_terminal_gives_up_after_it() {
    let world = World::with_daemon();
    let _holder = world.holder(&["-k", "x"]);
    let script = "trap '' HUP; canal run -k x -- touch ran; echo $? >code";
    let terminal = Terminal::start(&world, &["sh", "-c", script]);
    world.until_waiting("x", 1);
    let session = terminal.hang_up();
    session.end();
    assert_eq!(world.read("code"), "75\n");
    world.until_waiting("x", 0);
    wait_until("its end is recorded", || last_end(&world) == "abandoned");
}

#[test]
fn a_waiter_of_which_one_output_is_read_or_is_a_file_waits_on() {
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    let null = || OwnedFd::from(File::options().write(true).open("/dev/null").unwrap());
    for other in [&file as &dyn Fn() -> OwnedFd, &null] {
        for stdout_breaks in [true, false] {
            let world = World::with_daemon();
            let holder = world.holder(&["-k", "x"]);
            let (reader, writer) = pipe();
            let waiter = match stdout_breaks {
                true => waiter(&world, &[], writer, other()),
                false => waiter(&world, &[], other(), writer),
            };
            drop(reader);
            assert_waits_on(&world, holder, waiter);
        }
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let ((out, stdout), (_err, stderr)) = (pipe(), pipe());
    let waiter = waiter(&world, &[], stdout, stderr);
    drop(out);
    assert_waits_on(&world, holder, waiter);
}

#[test]
fn acquire_gives_up_too_unless_it_is_unattended() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owner = world.program("sleep", ["infinity"]).spawn();
    let acquire = |option: &str| {
        let ((out, stdout), (err, stderr)) = (pipe(), pipe());
        let args = ["acquire", "-k", "x", "--pid", &owner.pid_text(), option];
        let waiter = world.canal(args).stdout(stdout).stderr(stderr).spawn();
        world.until_waiting("x", 1);
        drop((out, err));
        waiter
    };
    assert_gives_up(&world, acquire("-q"));
    let waiter = acquire("--unattended");
    holder.finish().code(0);
    waiter.end().code(0);
    assert_eq!(world.held("x"), 1);
}

#[test]
fn an_unattended_waiter_waits_on_without_a_reader() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let ((out, stdout), (err, stderr)) = (pipe(), pipe());
    let waiter = waiter(&world, &["--unattended"], stdout, stderr);
    drop((out, err));
    assert_waits_on(&world, holder, waiter);
}

#[test]
fn a_lock_that_is_free_is_taken_whether_or_not_anybody_reads() {
    let world = World::with_daemon();
    let ((out, stdout), (err, stderr)) = (pipe(), pipe());
    drop((out, err));
    let run = world.canal(["run", "-k", "x", "--", "touch", "ran"]);
    run.stdout(stdout).stderr(stderr).end().code(0);
    assert!(fs::exists(world.path("work/ran")).unwrap());
}
