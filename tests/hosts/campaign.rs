//! Three hosts, many clients, few slots, and daemons that are killed, stopped and cut off: never
//! over capacity by what the commands themselves record, and nothing stuck afterwards.
//!
//! `CANAL_HOSTS_SECONDS` says how long it goes on; a few seconds by default.

use std::time::{Duration, Instant};

use crate::over_each_engine;
use crate::process::Proc;
use crate::record::Events;
use crate::scene::{Host, Log, hosts, recorded, until_idle};

over_each_engine!(never_over_capacity_whatever_becomes_of_daemons);

/// So many clients of each host at once.
fn clients() -> usize {
    if is_long() { 20 } else { 8 }
}

fn is_long() -> bool {
    seconds() >= 30
}

fn seconds() -> u64 {
    std::env::var("CANAL_HOSTS_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(8)
}

fn never_over_capacity_whatever_becomes_of_daemons(log: &Log) {
    let hosts: [Host; 3] = hosts(log);
    let body = recorded("sleep 0.0$((RANDOM % 5))");
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut running: Vec<Vec<Proc>> = vec![Vec::new(), Vec::new(), Vec::new()];
    let (mut started, mut disturbed) = (0, 0);
    let mut last_disturbance = Instant::now();
    while Instant::now() < until {
        for (host, running) in hosts.iter().zip(&mut running) {
            running.retain_mut(|client| !client.has_ended());
            while running.len() < clients() {
                started += 1;
                let name = format!("c{started}");
                let args =
                    ["run", "-q", "-j", "3", "-k", "x", "--", "bash", "-c", &body, "sh", &name];
                running.push(host.world.canal(args).spawn());
            }
        }
        if last_disturbance.elapsed() > Duration::from_millis(700) {
            disturbed += 1;
            disturb(&hosts[disturbed % 3], disturbed);
            last_disturbance = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for client in running.into_iter().flatten() {
        let _ = client.end();
    }
    let events = Events::of(&hosts[0].world);
    assert!(events.most_at_once() <= 3, "{} at once", events.most_at_once());
    assert!(events.started().len() > 20, "only {} ran of {started}", events.started().len());
    until_idle(&hosts);
}

fn disturb(host: &Host, number: usize) {
    // Longer than its TTL: the host loses what it holds.
    let lose = Duration::from_millis(3_500);
    match number % 11 {
        5 if is_long() => {
            host.proxy.cut();
            std::thread::sleep(lose);
            return host.proxy.mend();
        }
        8 if is_long() => {
            let pid = host.freeze();
            std::thread::sleep(lose);
            return Host::go_on(pid);
        }
        _ => {}
    }
    match number % 3 {
        0 => {
            host.world.kill_daemon();
        }
        1 => host.proxy.cut_once(),
        _ => {
            let pid = host.freeze();
            std::thread::sleep(Duration::from_millis(400));
            Host::go_on(pid);
        }
    }
}
