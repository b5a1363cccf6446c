//! `canal priority`, and jobs named by their numbers.

use crate::backend::over_engines;
use crate::whole::jobs::{holder, submitted};
use crate::world::World;
use crate::world::process::{self, wait_until};

over_engines! {
    "the order of a job is an entry of another host":
        a_priority_moves_a_waiting_job_and_survives_the_daemon;
}

/// The sessions that wait for a key, in order.
fn queue(world: &World, key: &str) -> Vec<String> {
    let waiters = world.key(key).waiters;
    waiters.iter().map(|waiter| waiter.session.trim_start_matches('s').to_owned()).collect()
}

#[test]
fn a_priority_moves_a_waiting_job_and_survives_the_daemon() {
    let world = World::with_daemon().on_one_host();
    let busy = world.holder(&["-k", "a"]);
    let [one, two, three] = [(); 3].map(|()| submitted(&world, &["-k", "a", "--", "true"]));
    assert_eq!(queue(&world, "a"), [&*one, &two, &three]);
    // Without a number, it goes before all others.
    let first = world.canal(["priority", &three]).end().code(0);
    assert_eq!(first.stdout, format!("job {three}: priority 1 (previously 0); next in line\n"));
    assert_eq!(queue(&world, "a"), [&*three, &one, &two]);
    let again = world.canal(["priority", "--json", &three]).end().code(0).json();
    assert_eq!((&again["priority"], &again["position"]), (&1.into(), &1.into()));
    world.canal(["priority", &one, "-1"]).end().code(0);
    assert_eq!(queue(&world, "a"), [&*three, &two, &one]);
    world.kill_daemon();
    world.daemons_return();
    world.until_waiting("a", 3);
    assert_eq!(queue(&world, "a"), [&*three, &two, &one]);
    busy.finish();
    for job in [&one, &two, &three] {
        world.canal(["wait", job]).end().code(0);
    }
    let done = world.canal(["priority", &one, "3"]).end().code(125);
    assert!(done.stderr.contains("is not waiting"), "{done:?}");
}

#[test]
fn a_priority_grants_at_once_what_only_the_order_kept_back() {
    let world = World::with_daemon().on_one_host();
    let busy = world.holder(&["-k", "a", "-j", "2"]);
    let large = submitted(&world, &["-k", "a", "-j", "2", "--count", "2", "--", "true"]);
    let small = submitted(&world, &["-k", "a", "-j", "2", "--", "true"]);
    assert_eq!(queue(&world, "a"), [&*large, &small]);
    world.canal(["priority", &small, "1"]).end().code(0);
    world.canal(["wait", &small]).end().code(0);
    assert_eq!(queue(&world, "a"), [&*large]);
    busy.finish();
    world.canal(["wait", &large]).end().code(0);
}

#[test]
fn status_history_and_kill_take_the_number_of_a_job() {
    let world = World::with_daemon().on_one_host();
    let running = submitted(&world, &["-k", "a", "--", "sleep", "600"]);
    let waiting = submitted(&world, &["-k", "a", "--", "sleep", "601"]);
    let command = holder(&world, "a");
    for name in [format!("%{running}"), running.clone()] {
        let shown = world.canal(["status", "--json", &name]).end().code(0).json();
        let keys = shown["keys"].as_array().unwrap();
        assert_eq!(keys.len(), 1, "{shown}");
        assert_eq!(keys[0]["holders"].as_array().unwrap().len(), 1, "{shown}");
        assert_eq!(keys[0]["waiters"].as_array().unwrap().len(), 0, "{shown}");
        let text = world.canal(["status", &name]).end().code(0).stdout;
        assert!(text.contains(&format!("%{running} sleep 600")), "{text}");
        assert!(!text.contains("sleep 601"), "{text}");
    }
    // `canal status` shows the numbers, also on one line for each.
    for args in [&["status"][..], &["status", "-1"]] {
        let text = world.canal(args).end().code(0).stdout;
        for job in [format!("%{running} sleep 600"), format!("%{waiting} sleep 601")] {
            assert!(text.contains(&job), "{text}");
        }
    }
    let shown = world.canal(["status", "--json", "a"]).end().code(0).json();
    assert_eq!(shown["keys"][0]["waiters"][0]["job"].to_string(), waiting, "{shown}");
    // A script must not end a job in place of a key that is idle now.
    let refused = world.canal(["kill", "--yes", &running]).end().code(125);
    assert!(refused.stderr.contains(&format!("canal kill --yes %{running}")), "{refused:?}");
    assert!(process::alive(command));
    world.canal(["kill", "--yes", &format!("%{waiting}")]).end().code(0);
    world.canal(["wait", &waiting]).end().code(75);
    world.canal(["kill", "--yes", &format!("%{running}")]).end().code(0);
    assert_eq!(world.canal(["wait", &running]).end().signal, Some(15));
    for name in [format!("%{running}"), running.clone()] {
        let mut records = Vec::new();
        wait_until("it is recorded", || {
            let found = world.canal(["history", "--json", &name]).end().code(0).json();
            records = found["records"].as_array().unwrap().clone();
            !records.is_empty()
        });
        assert_eq!(records.len(), 1, "{records:?}");
        assert_eq!(records[0]["session"], format!("s{running}"));
        assert_eq!(records[0]["job"].to_string(), running);
        let text = world.canal(["history", &name]).end().code(0).stdout;
        assert!(text.contains(&format!("%{running} sleep 600")), "{text}");
    }
}

#[test]
fn a_key_in_use_goes_before_a_job_of_the_same_name() {
    let world = World::with_daemon().on_one_host();
    let job = submitted(&world, &["-k", "a", "--", "sleep", "600"]);
    let other = world.holder(&["--key-literal", &job]);
    let shown = world.canal(["status", "--json", &job]).end().code(0).json();
    assert_eq!(shown["keys"][0]["key"], job.as_str(), "{shown}");
    world.canal(["kill", "--yes", &job]).end().code(0);
    other.end();
    assert!(process::alive(holder(&world, "a")));
}

#[test]
fn the_history_has_the_exit_status_on_old_kernels_too() {
    let world = World::of_linux_5_10().on_one_host();
    for (script, expected) in [("exit 7", "exit"), ("kill -9 $$", "signal")] {
        let job = submitted(&world, &["-k", "a", "-c", script]);
        world.canal(["wait", &job]).end();
        let found = world.canal(["history", "--json", &format!("%{job}")]).end().code(0).json();
        assert!(found["records"][0][expected].is_u64(), "{found}");
    }
}
