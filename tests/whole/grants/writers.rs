//! Writers among many readers and jobs: a writer waits for the running ones, blocks later ones, and
//! gets its turn.

use std::fs;
use std::process::Stdio;

use crate::script::{holder, is_free, until_nothing, waiter, words};
use crate::world::World;
use crate::world::process::{Proc, wait_until};
use crate::world::record::{Events, recorded};

/// Starts eight jobs under `LOCK`. Each records its start and end, and ends with its standard
/// input.
fn eight(world: &World, lock: &str, name: &str) -> Vec<Proc> {
    let body = recorded("cat");
    let job = |n: usize| {
        let name = format!("{name}{n}");
        let command = ["--", "sh", "-c", &body, "sh", &name];
        let args = [&["run"][..], &words(lock), &command].concat();
        world.canal(args).stdin(Stdio::piped()).spawn()
    };
    (0..8).map(job).collect()
}

fn all_finish(jobs: Vec<Proc>) {
    for job in jobs {
        job.finish().code(0);
    }
}

/// Eight jobs run, a migration of `db` starts to wait, and eight more jobs follow. The migration
/// runs alone, between the two groups.
#[test]
fn a_migration_runs_alone_among_readers_and_jobs_over_a_restart() {
    let world = World::with_daemon();
    let (early, late) = ("-k db/x --per 8 --buckets 8", "--read db/y/z");
    let first = eight(&world, early, "early");
    wait_until("eight run", || Events::of(&world).started().len() == 8);
    let body = recorded("cat");
    let migration = waiter(&world, "--write db", &["sh", "-c", &body, "sh", "migration"]);
    let more = eight(&world, late, "late");
    let waiting = || world.look().map_or(0, |s| s.keys.iter().map(|key| key.waiting).sum::<u64>());
    wait_until("all new jobs wait", || waiting() == 9);
    // They wait only for the migration.
    assert!(!is_free(&world, late));
    assert!(is_free(&world, "-k other=64 --read d --write dbx"), "other keys are free");
    world.kill_daemon();
    world.status();
    wait_until("all waiters are back", || waiting() == 9);
    all_finish(first);
    wait_until("the migration runs", || Events::of(&world).started().contains(&"migration"));
    let events = Events::of(&world);
    assert_eq!((events.started().len(), events.ended()), (9, 8), "it runs alone");
    assert!(!is_free(&world, late) && !is_free(&world, "--read db/z"));
    migration.finish().code(0);
    wait_until("all others run", || Events::of(&world).started().len() == 17);
    all_finish(more);
    assert_eq!(Events::of(&world).ended(), 17);
    until_nothing(&world);
}

#[test]
fn a_job_below_one_key_does_not_block_a_write_of_its_neighbour() {
    let world = World::with_daemon();
    let job = holder(&world, "-k db/x -j 4");
    assert!(is_free(&world, "--write db/y"));
    assert!(is_free(&world, "--write db/x1"));
    assert!(is_free(&world, "--read db"), "a counted job is a reader");
    assert!(!is_free(&world, "--write db") && !is_free(&world, "--write db/x/1"));
    let keys: Vec<String> = world.look().unwrap().keys.into_iter().map(|key| key.key).collect();
    assert_eq!(keys, ["db/x"], "nothing is created for unused keys");
    job.finish().code(0);
}

#[test]
fn a_writer_among_readers_that_keep_arriving_gets_its_turn() {
    let world = World::with_daemon();
    // The reads of four loops overlap. If readers could always share, the writer would starve.
    fs::write(world.path("work/on"), "").unwrap();
    let body = recorded("sleep 0.1");
    let script = format!(
        "while [ -e on ]; do canal run --read r/x -- sh -c '{body}' sh reader || echo bad >>bad; done"
    );
    let loops: Vec<Proc> = (0..4).map(|_| world.sh(&script).spawn()).collect();
    wait_until("readers come and go", || Events::of(&world).ended() > 8);
    for turn in 1..=2 {
        let body = recorded(":");
        let writers =
            |events: &Events| events.started().iter().filter(|name| **name == "writer").count();
        let args = ["run", "--write", "r", "--", "sh", "-c", &body, "sh", "writer"];
        let writer = world.canal(args).spawn();
        wait_until("the writer waits or has run", || {
            world.key("r").waiting == 1 || writers(&Events::of(&world)) == turn
        });
        let asked = Events::of(&world);
        writer.end().code(0);
        let events = Events::of(&world);
        let later = events.started().split_off(asked.started().len());
        let before = later.iter().position(|name| *name == "writer");
        // One reader of each loop may have got its lock earlier without having recorded it yet.
        assert!(
            writers(&asked) == turn || before.is_some_and(|n| n <= 4),
            "{before:?} of {later:?}"
        );
        let seen = events.started().len();
        wait_until("readers come and go again", || Events::of(&world).started().len() > seen + 8);
    }
    fs::remove_file(world.path("work/on")).unwrap();
    for one in loops {
        one.end().code(0);
    }
    assert_eq!(world.read("bad"), "");
    until_nothing(&world);
}
