//! Jobs outlive the session that submits them, and the daemon.

use std::fs;

use crate::backend::over_engines;
use crate::terminal::Terminal;
use crate::whole::jobs::{holder, submitted};
use crate::world::World;
use crate::world::process::{self, wait_until};

over_engines! {
    "jobs of a host that joins again":
        an_array_of_jobs_survives_its_session_and_runs_in_order;
}

/// Submits forty jobs, as a user does in an ssh session, and says so.
const ARRAY: &str = "
    for n in $(seq 40); do
        canal submit -k sweep -j 4 -- sh -c 'echo \"output of $0\"; exit $(($0 % 3))' $n || exit
    done > \"$1\"
    echo all are submitted
    exec sleep 600";

#[test]
fn an_array_of_jobs_survives_its_session_and_runs_in_order() {
    let world = World::with_daemon().on_one_host();
    let busy = world.holder(&["-k", "sweep", "-j", "4", "--count", "4"]);
    let list = world.path("list");
    let mut terminal = Terminal::start(&world, &["sh", "-c", ARRAY, "sh", list.to_str().unwrap()]);
    terminal.until("all are submitted");
    assert_eq!(world.key("sweep").waiting, 40);
    // The kernel sends SIGHUP to the leader of the session and to its foreground.
    let ended = terminal.hang_up().end();
    assert_eq!(ended.signal, Some(1), "{ended:?}");
    assert_eq!(world.key("sweep").waiting, 40);
    busy.finish();
    let list = fs::read_to_string(list).unwrap();
    let jobs: Vec<&str> = list.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(jobs.len(), 40);
    assert!(jobs.is_sorted_by_key(|job| job.parse::<u64>().unwrap()));
    for (job, n) in jobs.iter().zip(1..) {
        world.canal(["wait", job]).end().code(n % 3);
        let output = world.canal(["log", job]).end().code(0).stdout;
        assert_eq!(output, format!("output of {n}\n"));
    }
    // Tokens are the order of the grants.
    let mut records = Vec::new();
    wait_until("all are recorded", || {
        let found = world.canal(["history", "--json", "sweep"]).end().code(0).json();
        records = found["records"].as_array().unwrap().clone();
        records.len() == 41
    });
    let token = |job: &&str| {
        let session = format!("s{job}");
        let record = records.iter().find(|record| record["session"] == session.as_str());
        record.unwrap()["token"].as_u64().unwrap()
    };
    assert!(jobs.iter().map(token).collect::<Vec<_>>().is_sorted());
}

#[test]
fn jobs_outlive_the_daemon() {
    let world = World::with_daemon().on_one_host();
    let go = world.path("go");
    let script = "until [ -e \"$0\" ]; do sleep 0.01; done; exit 5";
    let running = ["-k", "a", "--", "sh", "-c", script, go.to_str().unwrap()];
    let running = submitted(&world, &running);
    let command = holder(&world, "a");
    let waiting = submitted(&world, &["-k", "a", "-c", "echo later; exit 6"]);
    world.kill_daemon();
    world.daemons_return();
    world.until_waiting("a", 1);
    assert!(process::alive(command));
    fs::write(&go, "").unwrap();
    world.canal(["wait", &running]).end().code(5);
    world.canal(["wait", &waiting]).end().code(6);
    assert_eq!(world.canal(["log", &waiting]).end().code(0).stdout, "later\n");
}
