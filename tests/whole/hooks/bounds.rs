//! No program of a hook runs forever, and a hook never runs two at once. No program can stop the
//! daemon.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::whole::hooks::{KEEP, hook, lose_a_lease, pids, told, until_told, world_with};
use crate::world::process::{alive, wait_until};
use crate::world::{World, canal};

/// Starts processes that only SIGKILL ends: one in the program's group, one in its own group, and
/// the program itself.
const STAY: &str = "trap '' TERM HUP INT\n\
                    sleep 600 &\nstay=$!\nsetsid sleep 601 &\n\
                    printf '%s\\n' $$ $stay $! >\"$0.new\"; mv \"$0.new\" \"$0.pids\"\n\
                    wait; sleep 602";

#[track_caller]
fn until_stays(world: &World) -> Vec<i32> {
    wait_until("the program runs", || pids(world, "stay.pids").len() == 3);
    pids(world, "stay.pids")
}

#[track_caller]
fn until_gone(what: &str, pids: &[i32]) {
    wait_until(what, || !pids.iter().any(|pid| alive(*pid)));
}

/// The notes that the daemon reports about itself.
fn notes(world: &World) -> String {
    world.canal(["status", "-v"]).end().code(0).stdout
}

/// Lets leases expire until the program that stays is running. A busy machine may start it so
/// slowly that its time-out passes first. Returns the processes, and how many leases there were.
#[track_caller]
fn until_one_stays(world: &World, key: &str) -> (Vec<i32>, usize) {
    let runs = || pids(world, "stay.pids").len() == 3;
    let note = || {
        let all = notes(world);
        all.lines().find(|line| line.contains("its hooks[0], ")).map(str::to_owned)
    };
    for leases in 1..=20 {
        let before = note();
        lose_a_lease(world, &format!("{key}{leases}"));
        wait_until("the program runs, or was ended before", || runs() || note() != before);
        if runs() {
            return (pids(world, "stay.pids"), leases);
        }
    }
    panic!("too slow, however often");
}

#[test]
fn at_the_time_out_the_program_and_all_that_it_started_are_killed() {
    let world = world_with(|world| {
        let stay = hook(world, "stay", &["lost-lease"], "timeout = \"1s\"", STAY);
        stay + &hook(world, "other", &["lost-lease"], "", KEEP)
    });
    let (running, leases) = until_one_stays(&world, "a");
    until_told(&world, "other", leases);
    until_gone("the time-out ends all of it", &running);
    wait_until("the note is there", || notes(&world).contains("ran longer than 1s"));
    assert!(notes(&world).contains("its hooks[0], "), "{}", notes(&world));
    // The hook continues with the next event.
    fs::remove_file(world.path("stay.pids")).unwrap();
    until_gone("the next one ends, too", &until_one_stays(&world, "b").0);
}

#[test]
fn when_the_daemon_is_killed_or_stopped_its_programs_end() {
    let world = world_with(|world| hook(world, "stay", &["lost-lease"], "timeout = \"1h\"", STAY));
    lose_a_lease(&world, "a");
    let running = until_stays(&world);
    world.kill_daemon_quietly();
    until_gone("what a killed daemon ran has ended", &running);
    fs::remove_file(world.path("stay.pids")).unwrap();
    world.status();
    lose_a_lease(&world, "b");
    let running = until_stays(&world);
    world.canal(["daemon", "--stop"]).end().code(0);
    until_gone("what a stopped daemon ran has ended", &running);
}

#[test]
fn what_a_program_leaves_behind_ends_with_it() {
    let script = "setsid sleep 600 &\nsleep 600 &\necho $! >\"$0.pids\"\ncat >>\"$0.told\"";
    let world = world_with(|world| hook(world, "leave", &["lost-lease"], "", script));
    lose_a_lease(&world, "a");
    until_told(&world, "leave", 1);
    until_gone("nothing is left", &pids(&world, "leave.pids"));
}

#[test]
fn a_hook_runs_one_program_at_a_time() {
    let script = "mkdir \"$0.runs\" || echo >>\"$0.overlaps\"\n\
                  cat >>\"$0.told\"; sleep 0.1; rmdir \"$0.runs\"";
    let world = world_with(|world| hook(world, "one", &["lost-lease"], "", script));
    for key in ["a", "b", "c", "d"] {
        lose_a_lease(&world, key);
    }
    until_told(&world, "one", 4);
    assert!(!world.path("one.overlaps").exists());
}

#[test]
fn a_program_that_cannot_be_started_is_a_note_and_nothing_more() {
    let world = world_with(|world| {
        let missing = hook(world, "missing", &["lost-lease"], "", KEEP);
        fs::remove_file(world.path("missing")).unwrap();
        missing + &hook(world, "fails", &["lost-lease"], "", "cat >>\"$0.told\"; exit 3")
    });
    lose_a_lease(&world, "a");
    until_told(&world, "fails", 1);
    let mut found = String::new();
    wait_until("both are noted", || {
        found = notes(&world);
        ["its hooks[0], ", "its hooks[1], "].iter().all(|hook| found.contains(hook))
    });
    assert!(found.contains("could not be started: cannot read it: No such file"), "{found}");
    assert!(found.contains("ended with exit code 3"), "{found}");
    world.canal(["run", "-n", "-k", "a", "--", "true"]).end().code(0);
    // The next event starts it again.
    drop(hook(&world, "missing", &["lost-lease"], "", KEEP));
    lose_a_lease(&world, "b");
    until_told(&world, "missing", 1);
    wait_until("its note is gone", || !notes(&world).contains("its hooks[0], "));
}

#[test]
fn a_program_may_call_canal() {
    let world = world_with(|world| {
        let words = [canal().as_os_str(), world.socket().as_os_str()]
            .map(OsStrExt::as_bytes)
            .join(&b"\n"[..]);
        fs::write(world.path("call.words"), words).unwrap();
        let script = format!(
            "canal() {{ \"$(sed 1q \"$0.words\")\" --socket \"$(sed 1d \"$0.words\")\" \"$@\"; }}\n\
             canal status --json >\"$0.status\" && canal run -k of-hook -- true && {KEEP}"
        );
        hook(world, "call", &["lost-lease"], "", &script)
    });
    lose_a_lease(&world, "a");
    until_told(&world, "call", 1);
    let status = fs::read_to_string(world.path("call.status")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["daemon"]["pid"].as_i64().unwrap(), i64::from(world.daemon_pid()));
}

#[test]
fn who_has_many_events_gets_some_of_them_and_the_number_of_the_others() {
    let world = world_with(|world| hook(world, "tell", &["lost-lease"], "", KEEP));
    for number in 1..=60 {
        lose_a_lease(&world, &format!("lease{number}"));
    }
    wait_until("the number of those that were dropped is told", || {
        told(&world, "tell").iter().any(|one| one["dropped"].as_u64().unwrap() > 0)
    });
    assert!(told(&world, "tell").len() < 60);
}
