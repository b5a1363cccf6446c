//! A daemon that is stopped, or that loses its files while it runs.

use std::fs;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::backend::{self, over_engines};
use crate::world::World;
use crate::world::process::{BOUND, alive, signal, state, wait_until};

over_engines! {
    "the daemon has no journal in its folder, and a watcher":
        a_stopped_daemon_is_an_error_within_seconds,
        removing_single_files_under_a_daemon_loses_nothing;
}

#[test]
fn a_stopped_daemon_is_an_error_within_seconds() {
    let world = World::with_daemon().on_one_host();
    let daemon = world.daemon_pid();
    signal(daemon, Signal::SIGSTOP);
    wait_until("it is stopped", || state(daemon) == Some('T'));
    let begun = Instant::now();
    let commands = [
        &["run", "-k", "x", "--", "true"][..],
        &["run", "-n", "-k", "x", "--", "true"],
        &["run", "-w", "1", "-k", "x", "--", "true"],
        &["run", "-k", "x", "--max-run", "60", "--", "true"],
        &["acquire", "-k", "x"],
        &["status"],
        &["release", "--all"],
        &["resize", "x", "--slots", "2"],
    ];
    let asked: Vec<_> = commands.iter().map(|args| world.canal(*args).spawn()).collect();
    for (one, args) in asked.into_iter().zip(commands) {
        let ended = one.end().code(125);
        assert!(ended.stderr.contains("does not answer"), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(&format!("pid {daemon}")), "{args:?}: {ended:?}");
    }
    let took = begun.elapsed();
    assert!(took < BOUND, "{took:?}");
    signal(daemon, Signal::SIGCONT);
    world.canal(["run", "-w", "120", "-k", "x", "--", "true"]).end().code(0);
    assert_eq!(world.daemon_pid(), daemon);
    world.until_idle();
}

#[test]
fn removing_the_folder_under_a_daemon_makes_no_second_table() {
    let world = World::with_daemon();
    let daemon = world.daemon_pid();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    // The daemon may recreate files during the removal.
    wait_until("the folder was removed", || fs::remove_dir_all(world.runtime()).is_ok());
    // The lock never has a second holder: neither while the folder is gone nor later.
    let begun = Instant::now();
    let mut answers = 0;
    while begun.elapsed() < BOUND && answers < 5 {
        let ended = world.canal(["run", "-n", "-k", "x", "--", "true"]).end();
        assert!(matches!(ended.code, Some(75 | 125)), "{ended:?}");
        answers += i32::from(ended.code == Some(75));
    }
    assert_eq!(answers, 5, "the daemon is not reached again");
    assert_eq!(world.daemon_pid(), daemon);
    let key = world.key("x");
    assert_eq!((key.held, key.waiting), (1, 1));
    // A restart works with the files that the daemon recreated. Over an engine the folder needs its
    // configuration, because that names the engine.
    if backend::is_engine() {
        world.configure("");
    }
    world.kill_daemon();
    world.status();
    assert_eq!(world.held("x"), 1);
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    assert!(!alive(daemon));
}

#[test]
fn removing_single_files_under_a_daemon_loses_nothing() {
    for name in ["canal.sock", "lock", "journal.0", "journal.1"] {
        let world = World::with_daemon();
        let holder = world.holder(&["-k", "x"]);
        let _ = fs::remove_file(world.runtime().join(name));
        wait_until("the daemon is reached", || {
            let ended = world.canal(["run", "-n", "-k", "x", "--", "true"]).end();
            assert!(matches!(ended.code, Some(75 | 125)), "{name}: {ended:?}");
            ended.code == Some(75)
        });
        holder.finish();
        world.until_idle();
    }
}
