//! The records and logs of ended jobs are bounded.

use std::fs;

use crate::whole::jobs::submitted;
use crate::world::{World, journal_only};

#[test]
fn the_oldest_ended_jobs_make_room_and_running_ones_stay() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let world = World::new();
    world.configure("[jobs]\nmax = 3000\n");
    let runs =
        submitted(&world, &["-k", "x", "--", "sh", "-c", "head -c 2000 /dev/zero; exec sleep 600"]);
    let ended: Vec<String> = (0..3)
        .map(|_| {
            let job = submitted(&world, &["-k", "y", "-c", "head -c 1000 /dev/zero"]);
            world.canal(["wait", &job]).end().code(0);
            job
        })
        .collect();
    let next = world.canal(["submit", "-k", "y", "--", "true"]).end().code(0);
    assert!(next.stderr.contains("`jobs.max` is 3000"), "{next:?}");
    world.canal(["log", &ended[0]]).end().code(125);
    assert_eq!(world.canal(["log", &runs]).end().code(0).stdout.len(), 2000);
    let next = next.stdout.split(' ').next().unwrap().to_owned();
    world.canal(["wait", &next]).end().code(0);
    let pruned = world.canal(["log", "--prune", "--all", "--json"]).end().code(0).json();
    assert!(pruned["jobs"].as_u64().unwrap() >= 1, "{pruned}");
    world.canal(["log", &next]).end().code(125);
    world.canal(["log", &runs]).end().code(0);
    let files = fs::read_dir(world.runtime().join("jobs")).unwrap().count();
    assert_eq!(files, 2, "the record and the log of the job that runs");
    let config = world.canal(["config"]).end().code(0).stdout;
    assert!(config.contains("jobs.max"), "{config}");
}
