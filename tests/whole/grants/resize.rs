//! Stored sizes, set by `canal resize` and by the configuration.

use std::fs;

use crate::backend::over_engines;
use crate::world::World;
use crate::world::process::Proc;

over_engines! {
    "sizes are entries that a host reads when it joins again":
        a_pause_survives_a_restart_of_the_daemon,
        a_stored_view_survives_a_restart_of_the_daemon;
}

fn resize(world: &World, args: &[&str]) {
    let mut all = vec!["resize"];
    all.extend(args);
    world.canal(all).end().code(0);
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
fn a_paused_key_keeps_its_waiters_and_says_how_to_resume_it() {
    let world = World::with_daemon();
    resize(&world, &["x", "--slots", "2"]);
    // `--slots 0` is the older form.
    for pause in [&["x", "--slots", "0"][..], &["x", "--pause"]] {
        resize(&world, pause);
        let parked: Proc = world.waiter("x", &[], &["echo", "on"]);
        let shown = world.canal(["status", "x"]).end().code(0);
        assert!(shown.stdout.contains("0 of 2 held, 1 waiting, stored, paused"), "{shown:?}");
        assert!(shown.stdout.contains("canal resize x --resume"), "{shown:?}");
        assert!(world.key("x").paused);
        for wait in ["0", "0.1"] {
            let refused = world.canal(["run", "-w", wait, "-k", "x", "--", "true"]).end().code(75);
            assert!(refused.stderr.contains("paused"), "{refused:?}");
            assert!(refused.stderr.contains("canal resize x --resume"), "{refused:?}");
        }
        // Another size does not resume the key.
        let resized = world.canal(["resize", "x", "--slots", "2"]).end().code(0);
        assert!(resized.stdout.contains("still paused"), "{resized:?}");
        assert_eq!(world.key("x").waiting, 1);
        resize(&world, &["x", "--resume"]);
        assert_eq!(parked.end().code(0).stdout, "on\n");
        assert!(!world.key("x").paused);
    }
}

#[test]
fn a_command_inside_a_paused_lock_goes_on() {
    let world = World::with_daemon();
    let script = "canal resize x --pause >/dev/null; canal run -n -k x -- echo in";
    let ended = world.program("canal", ["run", "-k", "x", "-c", script]).spawn().end().code(0);
    assert_eq!(ended.stdout, "in\n");
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
}

#[test]
fn a_pause_survives_a_restart_of_the_daemon() {
    let world = World::with_daemon();
    resize(&world, &["x", "--pause"]);
    for restart in [true, false] {
        if restart {
            world.canal(["daemon", "--stop"]).end().code(0);
        } else {
            world.kill_daemon();
        }
        world.status();
        assert!(world.key("x").paused);
    }
    resize(&world, &["x", "--resume"]);
    world.kill_daemon();
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
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

/// A higher number in a workflow must not break the builds that overlap, so a difference is no
/// error. canal prints the note once per user, because cron mails every line.
#[test]
fn each_caller_counts_by_its_own_size_and_hears_once_that_it_differs() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x=1"]);
    let wider = ["run", "-n", "-k", "x", "-j", "2", "--", "echo", "in"];
    let note = "canal: `x` is in use with the size 1, but this request passes the size 2\n";
    let said: Vec<String> = (0..6)
        .map(|_| {
            let ended = world.canal(wider).end().code(0);
            assert_eq!(ended.stdout, "in\n");
            ended.stderr
        })
        .filter(|said| !said.is_empty())
        .collect();
    // Over an engine the clients are spread over two daemons.
    assert!(matches!(said.len(), 1..=2) && said.iter().all(|said| said == note), "{said:?}");
    let owner = world.program("sleep", ["600"]).spawn();
    let json = ["acquire", "-n", "--json", "-k", "x=2", "--pid", &owner.pid().to_string()];
    let told = world.canal(json).end().code(0);
    let grant: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(grant["notes"][0]["followed"], "1", "JSON always has it: {told:?}");
    world.canal(["run", "-n", "-k", "x=2", "--", "true"]).end().code(75);
    // A different kind of lock is an error.
    let kind = world.canal(["run", "-n", "-k", "x=1x1", "--", "true"]).end().code(125);
    assert!(kind.stderr.contains("slots"), "{kind:?}");
    holder.finish();
}

#[test]
fn a_stored_size_counts_for_everybody_and_those_who_state_another_hear_it() {
    let world = World::with_daemon();
    resize(&world, &["x", "--slots", "1"]);
    let holder = world.holder(&["-k", "x=5"]);
    let refused = world.canal(["run", "-n", "-k", "x", "-j", "7", "--", "true"]).end().code(75);
    let note = "canal: `x` has the stored size 1, which replaces the given size 7\n";
    assert!(refused.stderr.starts_with(note), "{refused:?}");
    resize(&world, &["x", "--forget"]);
    world.canal(["run", "-n", "-k", "x=7", "--", "true"]).end().code(0);
    holder.finish();
}

#[test]
fn who_states_no_size_follows_who_holds() {
    let world = World::with_daemon();
    let stated = world.holder(&["-k", "x=3"]);
    let follower = world.holder(&["-k", "x"]);
    assert_eq!(world.key("x").capacity, Some(3));
    stated.finish();
    world.until_held("x", 1);
    // The follower passes no size: a job that must run alone passes `-j 1`.
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert_eq!(world.key("x").capacity, Some(1));
    follower.finish();
}

#[test]
fn what_can_never_fit_is_refused_at_once_with_the_command_that_helps() {
    let world = World::with_daemon();
    let refused = world.canal(["run", "-E", "0", "-k", "x:2", "--", "true"]).end().code(125);
    assert!(refused.stderr.contains("because `:` starts a count"), "{refused:?}");
    let refused =
        world.canal(["run", "-E", "0", "-k", "x", "--count", "2", "--", "true"]).end().code(125);
    assert!(refused.stderr.contains("hint: give --slots 2"), "{refused:?}");
    resize(&world, &["x", "--slots", "1"]);
    let refused = world.canal(["run", "-k", "x=9:2", "--", "true"]).end().code(125);
    assert!(
        refused.stderr.contains("hint: make room with `canal resize x --slots 2`"),
        "{refused:?}"
    );
    world.canal(["run", "-k", "y=3x0", "--", "true"]).end().code(75);
    // While the key is paused, its size may be about to change. So canal checks the request when
    // the key is resumed.
    resize(&world, &["x", "--pause"]);
    let parked: Proc = world.waiter("x", &["--count", "2"], &["echo", "on"]);
    let fits: Proc = world.waiter("x", &[], &["echo", "on"]);
    resize(&world, &["x", "--resume"]);
    assert!(parked.end().code(125).stderr.contains("can never be granted"));
    fits.end().code(0);
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
    // A size set at run time takes precedence over the configuration, even after a restart.
    resize(&world, &["gpu", "--slots", "3"]);
    world.kill_daemon();
    world.status();
    assert_eq!(shown("gpu").as_deref(), Some("3"));
    world.canal(["run", "-n", "-k", "gpu", "--", "true"]).end().code(0);
    drop(holders);
}
