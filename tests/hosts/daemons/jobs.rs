//! Background jobs whose supervisor is killed, or whose host loses its membership.

use std::fs;

use nix::sys::signal::Signal;

use crate::hosts::over_each_engine;
use crate::shared_table::{Log, hosts, mortal_and_patient_hosts, until_idle};
use crate::world::World;
use crate::world::process::{self, wait_until};

over_each_engine!(
    a_job_whose_supervisor_is_killed_between_the_grant_and_the_start_never_ran,
    a_waiting_job_keeps_its_number_after_a_lost_membership,
);

/// Submits a job that waits for `x`. Returns its number and the process that waits.
fn queued(world: &World, args: &[&str]) -> (String, i32) {
    let all = [&["submit", "--json", "-k", "x", "--"], args].concat();
    let job = world.canal(all).end().code(0).json()["job"].to_string();
    (job, world.key("x").waiters[0].pid.cast_signed())
}

fn a_job_whose_supervisor_is_killed_between_the_grant_and_the_start_never_ran(log: &Log) {
    let [a] = hosts(log);
    let world = &a.world;
    let busy = world.holder(&["-k", "x"]);
    let (job, child) = queued(world, &["echo", "ran"]);
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let supervisor = after_name.split_whitespace().nth(1).unwrap().parse().unwrap();
    process::signal(supervisor, Signal::SIGSTOP);
    busy.finish().code(0);
    // The child waits for its supervisor once it has the lock, with its deadline page.
    let has_page = || {
        let mut files = fs::read_dir(format!("/proc/{child}/fd")).unwrap();
        files.any(|file| {
            let target = fs::read_link(file.unwrap().path()).unwrap_or_default();
            target.to_string_lossy().contains("canal-deadline")
        })
    };
    wait_until("the child waits", || has_page() && process::state(child) == Some('S'));
    process::signal(supervisor, Signal::SIGKILL);
    let ended = world.canal(["wait", "--json", &job]).end().code(75);
    assert_eq!(ended.json()["how"], "never-ran", "{ended:?}");
    assert_eq!(world.canal(["log", &job]).end().code(0).stdout, "");
    until_idle(&[a]);
}

fn a_waiting_job_keeps_its_number_after_a_lost_membership(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let holder = b.world.holder(&["-k", "x"]);
    a.world.until_held("x", 1);
    let (job, _) = queued(&a.world, &["echo", "ran"]);
    b.world.until_waiting("x", 1);
    a.proxy.cut();
    b.world.until_waiting("x", 0);
    a.proxy.mend();
    b.world.until_waiting("x", 1);
    let name = format!("%{job}");
    let shown = || a.world.canal(["status", &name]).end().code(0).stdout;
    wait_until("it has another session", || shown().contains(&format!("{name} echo ran")));
    assert!(a.world.canal(["status"]).end().code(0).stdout.contains(&format!("{name} echo")));
    a.world.canal(["priority", &job, "3"]).end().code(0);
    assert_eq!(a.world.key("x").waiters[0].priority, 3);
    a.world.canal(["kill", "--yes", &name]).end().code(0);
    a.world.canal(["wait", &job]).end().code(75);
    holder.finish().code(0);
    until_idle(&[a, b]);
}
