//! Stored sizes, set by `canal resize` and by the configuration.

use std::fs;

use crate::world::World;
use crate::world::process::Proc;

fn resize(world: &World, args: &[&str]) {
    let mut all = vec!["resize"];
    all.extend(args);
    world.canal(all).end().code(0);
}

#[test]
fn a_resize_grants_waiters() {
    let world = World::with_daemon();
    resize(&world, &["x", "--slots", "1"]);
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    resize(&world, &["x", "--slots", "2"]);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    holder.finish();
}

#[test]
fn resizing_a_held_lock_of_buckets_grants_waiters() {
    let world = World::with_daemon();
    resize(&world, &["db", "--per", "2", "--buckets", "1"]);
    let holders = [world.holder(&["-k", "db"]), world.holder(&["-k", "db"])];
    let waiter = world.waiter("db", &[], &["sh", "-c", "echo $CANAL_SLOT $CANAL_BUCKET"]);
    resize(&world, &["db", "--per", "2", "--buckets", "2"]);
    assert_eq!(waiter.end().code(0).stdout, "2 1\n");
    resize(&world, &["db", "--per", "1", "--buckets", "1"]);
    assert_eq!(world.held("db"), 2, "running commands keep their slots");
    world.canal(["run", "-n", "-k", "db", "--", "true"]).end().code(75);
    for holder in holders {
        holder.finish();
    }
    world.canal(["run", "-n", "-k", "db", "--", "true"]).end().code(0);
}

#[test]
fn a_lock_resized_to_zero_keeps_its_waiters_and_shows_that() {
    let world = World::with_daemon();
    resize(&world, &["x", "--slots", "0"]);
    let parked: Proc = world.waiter("x", &[], &["echo", "on"]);
    let shown = world.canal(["status", "x"]).end().code(0);
    assert!(shown.stdout.contains("drained"), "{shown:?}");
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    resize(&world, &["x", "--slots", "1"]);
    assert_eq!(parked.end().code(0).stdout, "on\n");
}

#[test]
fn a_stored_view_survives_a_restart_of_the_daemon() {
    let world = World::with_daemon();
    resize(&world, &["x", "--slots", "3"]);
    resize(&world, &["db", "--per", "3", "--buckets", "2"]);
    world.canal(["daemon", "--stop"]).end().code(0);
    let shown = |key: &str| {
        world.status();
        let key = world.key(key);
        (key.capacity, key.view, key.stored)
    };
    assert_eq!(shown("x"), (Some(3), Some("3".to_owned()), true));
    assert_eq!(shown("db"), (Some(6), Some("3x2".to_owned()), true));
    world.kill_daemon();
    assert_eq!(shown("x").0, Some(3));
    resize(&world, &["x", "--forget"]);
    world.kill_daemon();
    assert_eq!(shown("x"), (None, None, false));
}

#[test]
fn a_stored_view_survives_the_loss_of_the_journal() {
    let world = World::with_daemon();
    resize(&world, &["x", "--slots", "3"]);
    world.canal(["daemon", "--stop"]).end().code(0);
    let before = world.canal(["run", "-k", "y", "-c", "echo $CANAL_TOKEN"]).end().code(0);
    world.canal(["daemon", "--stop"]).end().code(0);
    for name in ["journal.0", "journal.1"] {
        let _ = fs::remove_file(world.runtime().join(name));
    }
    world.status();
    assert_eq!(world.key("x").capacity, Some(3));
    let after = world.canal(["run", "-k", "y", "-c", "echo $CANAL_TOKEN"]).end().code(0);
    let token = |text: &str| text.trim().parse::<u64>().unwrap();
    assert!(token(&after.stdout) > token(&before.stdout), "a token was used again");
}

#[test]
fn a_size_that_differs_from_the_size_in_use_is_an_error_with_both_numbers() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x=3"]);
    let ended = world.canal(["run", "-n", "-k", "x=5", "--", "true"]).end().code(125);
    assert!(ended.stderr.contains('3') && ended.stderr.contains('5'), "{ended:?}");
    assert!(ended.stderr.contains("canal resize x --slots 5"), "{ended:?}");
    let kind = world.canal(["run", "-n", "-k", "x=1x1", "--", "true"]).end().code(125);
    assert!(kind.stderr.contains("slots"), "{kind:?}");
    holder.finish();
}

#[test]
fn views_come_from_the_configuration() {
    let world = World::new();
    let config = "[keys.gpu]\nslots = 2\n\n[keys.\"db/main\"]\nper = 3\nbuckets = 2\n";
    world.configure(config);
    world.status();
    let shown = |key: &str| world.key(key).view;
    assert_eq!(shown("gpu").as_deref(), Some("2"));
    assert_eq!(shown("db/main").as_deref(), Some("3x2"));
    let holders = [world.holder(&["-k", "gpu"]), world.holder(&["-k", "gpu"])];
    world.canal(["run", "-n", "-k", "gpu", "--", "true"]).end().code(75);
    // A size that was set at run time takes precedence over the configuration, also after a
    // restart.
    resize(&world, &["gpu", "--slots", "3"]);
    world.kill_daemon();
    world.status();
    assert_eq!(shown("gpu").as_deref(), Some("3"));
    world.canal(["run", "-n", "-k", "gpu", "--", "true"]).end().code(0);
    drop(holders);
}
