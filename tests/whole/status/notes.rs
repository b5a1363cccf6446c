//! Notes: texts that requests show to people.

use crate::backend::over_engines;
use crate::lease::Lease;
use crate::script::until_nothing;
use crate::world::World;
use crate::world::process::wait_until;

over_engines! {
    "notes are read from the log":
        notes_outlive_the_daemon;
}

/// The notes of the holders and of the waiters of a key.
fn notes(world: &World, key: &str) -> [Vec<Option<String>>; 2] {
    let shown = world.key(key);
    let holders = shown.holders.into_iter().map(|holder| holder.note).collect();
    [holders, shown.waiters.into_iter().map(|waiter| waiter.note).collect()]
}

#[track_caller]
fn until_noted(world: &World, key: &str, note: Option<&str>) {
    let noted = || notes(world, key)[0] == [note.map(str::to_owned)];
    wait_until(&format!("the holder of {key} has the note {note:?}"), noted);
}

#[test]
fn the_notes_of_holders_and_waiters_are_shown() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x", "--note", "https://ci/run/7"]);
    let waiter = world.canal(["run", "-k", "x", "--", "sh", "-c", "echo \"$CANAL_NOTE\""]);
    let waiter = waiter.env("CANAL_NOTE", "run 8").spawn();
    world.until_waiting("x", 1);
    let shown = [vec![Some("https://ci/run/7".to_owned())], vec![Some("run 8".to_owned())]];
    wait_until("both notes are shown", || notes(&world, "x") == shown);
    wait_until("both notes are on the page", || {
        let page = world.canal(["status"]).end().code(0).stdout;
        page.contains("note: https://ci/run/7\n") && page.contains("note: run 8\n")
    });
    let busy = world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75).stderr;
    assert!(busy.contains(", note: https://ci/run/7\n"), "{busy}");
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "run 8\n", "the variable is left as it is");
    until_nothing(&world);
}

#[test]
fn a_ci_job_is_known_by_the_address_of_its_run() {
    let world = World::with_daemon();
    let job = |args: &[&str]| {
        let job = world.canal([&["run", "-k", "x"][..], args, &["--", "cat"]].concat());
        job.env("GITLAB_CI", "true").env("CI_JOB_URL", "https://ci/job/7")
    };
    let noted = job(&[]).stdin(std::process::Stdio::piped()).spawn();
    until_noted(&world, "x", Some("https://ci/job/7"));
    noted.finish();
    let without = job(&["--note", ""]).stdin(std::process::Stdio::piped()).spawn();
    world.until_held("x", 1);
    until_noted(&world, "x", None);
    without.finish();
    until_nothing(&world);
}

#[test]
fn a_note_cannot_steer_a_terminal_and_is_not_long() {
    let world = World::with_daemon();
    let odd = " a\n\u{2028}b\u{1b}[2J\u{202e}c ";
    let holder = world.holder(&["-k", "x", "--note", odd]);
    until_noted(&world, "x", Some("a b?[2J?c"));
    holder.finish();
    let long = "x".repeat(513);
    for canal in [
        world.canal(["run", "-k", "x", "--note", &long, "--", "true"]),
        world.canal(["run", "-k", "x", "--", "true"]).env("CANAL_NOTE", &long),
    ] {
        let said = canal.end().code(125).stderr;
        assert!(said.contains(" has 513 bytes; a note can have at most 512\nhint: "), "{said}");
    }
    until_nothing(&world);
}

#[test]
fn a_renewal_replaces_the_note_of_the_lease() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "x", "--note", "step 1"]);
    until_noted(&world, "x", Some("step 1"));
    for (args, note) in [
        (&[][..], Some("step 1")),
        (&["--note", "step 2"], Some("step 2")),
        (&["--note", "step 2"], Some("step 2")),
        (&[], Some("step 2")),
        (&["--note", ""], None),
        (&["--note", "step 3"], Some("step 3")),
    ] {
        let renew = world.canal(["renew"]).args(args).env("CANAL_HANDLE", &lease.handle);
        renew.end().code(0);
        until_noted(&world, "x", note);
    }
    let token = lease.token.to_string();
    let broken = world.canal(["release", "--force", "--token", &token]).end().code(0).stderr;
    assert!(broken.contains("step 3"), "{broken}");
    until_nothing(&world);
}

#[test]
fn notes_outlive_the_daemon() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x", "--note", "run 7"]);
    let lease = Lease::take(&world, "10m", &["-k", "y", "--note", "step 1"]);
    let renew = world.canal(["renew", "--note", "step 2"]).env("CANAL_HANDLE", &lease.handle);
    renew.end().code(0);
    world.kill_daemon();
    world.daemons_return();
    world.status();
    until_noted(&world, "x", Some("run 7"));
    until_noted(&world, "y", Some("step 2"));
    holder.finish();
    lease.release(&world).code(0);
    until_nothing(&world);
}
