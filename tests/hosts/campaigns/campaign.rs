//! Three hosts, many clients, few slots, and daemons that are killed, stopped and cut off. The
//! records of the commands show that they never exceed the size. Afterwards nothing is stuck.
//!
//! `CANAL_HOSTS_SECONDS` sets the length; the default is a few seconds. The campaign prints how
//! many commands ran, and the time from the end of one to the start of the next. With
//! `CANAL_HOSTS_CALM=1` it does nothing to daemons.

use std::time::{Duration, Instant};

use crate::hosts::over_each_engine;
use crate::shared_table::figures::{print_line, quantiles};
use crate::shared_table::{Host, Log, hosts, mortal_hosts, recorded, until_idle};
use crate::world::process::{BOUND, Proc};
use crate::world::record::Events;

over_each_engine!(capacity_is_never_exceeded_while_daemons_fail);

/// How many commands may run at once.
const ROOM: usize = 3;

/// The minimum number of commands to run.
const ENOUGH: usize = 20;

/// How many clients each host has at the same time.
fn clients() -> usize {
    if is_long() { 20 } else { 6 }
}

fn is_long() -> bool {
    seconds() >= 30
}

fn seconds() -> u64 {
    std::env::var("CANAL_HOSTS_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(5)
}

fn capacity_is_never_exceeded_while_daemons_fail(log: &Log) {
    // In a short campaign no host may lose a hold; in a long one hosts are away for too long.
    let hosts: [Host; 3] = if is_long() { mortal_hosts(log) } else { hosts(log) };
    // A short campaign shares the machine with other tests.
    let body = timed(if is_long() { "sleep 0.0$((RANDOM % 5))" } else { "sleep 0.1" });
    let calm = std::env::var_os("CANAL_HOSTS_CALM").is_some();
    let begun = Instant::now();
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut running: Vec<Vec<Proc>> = vec![Vec::new(), Vec::new(), Vec::new()];
    let pause = Duration::from_millis(if is_long() { 700 } else { 400 });
    let (mut started, mut disturbed, mut lost) = (0, 0, 0);
    let mut last_disturbance = Instant::now();
    // Some commands must have run, however slow the machine is.
    let enough = || Events::of(&hosts[0].world).started().len() > ENOUGH;
    while Instant::now() < until || !enough() && begun.elapsed() < BOUND {
        for (host, running) in hosts.iter().zip(&mut running) {
            lost += running.extract_if(.., Proc::has_ended).filter_map(is_lost).count();
            while running.len() < clients() {
                started += 1;
                let name = format!("c{started}");
                let args = ["run", "--per", "3", "--buckets", "1", "-k", "x", "--", "bash", "-c"];
                running.push(host.world.canal(args).args([&body, "sh", &name]).spawn());
            }
        }
        if !calm && last_disturbance.elapsed() > pause {
            disturbed += 1;
            disturb(&hosts[disturbed % 3], disturbed);
            last_disturbance = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let lasted = begun.elapsed();
    lost += running.into_iter().flatten().filter_map(is_lost).count();
    let events = Events::of(&hosts[0].world);
    tell(log, &events, &hosts[0], lasted, disturbed);
    assert!(is_long() || lost == 0, "{lost} lost their locks within their TTL");
    assert!(events.most_at_once() <= ROOM, "{} at once", events.most_at_once());
    assert!(events.started().len() > ENOUGH, "only {} ran of {started}", events.started().len());
    until_idle(&hosts);
}

/// Whether a client lost its lock. Otherwise checks that its command ran to its end.
fn is_lost(client: Proc) -> Option<()> {
    let ended = client.end();
    // A daemon that was stopped just before it sent a grant kills that client, because the grant
    // arrived too late. The client may not even have reported the grant to its parent.
    if is_long() && ended.signal == Some(9) {
        return Some(());
    }
    assert!(matches!(ended.code, Some(0 | 122)), "{ended:?}");
    let lost = ended.code == Some(122);
    assert!(!lost || ended.stderr.contains("lost `x` (token "), "{ended:?}");
    lost.then_some(())
}

/// A command that also records the times.
fn timed(body: &str) -> String {
    recorded(body).replace("$1", "$1 $EPOCHREALTIME")
}

fn tell(log: &Log, events: &Events, host: &Host, lasted: Duration, disturbed: usize) {
    let mut handed = hand_overs(&host.world.read("events"));
    let count = events.started().len();
    print_line(&format!(
        "3 hosts x {} clients over {}: {count} commands in {:.0} s, {:.0} per second; from one's end \
         to the next one's start {}; {disturbed} daemons were killed, stopped or cut off",
        clients(),
        log.engine(),
        lasted.as_secs_f64(),
        count as f64 / lasted.as_secs_f64(),
        quantiles(&mut handed),
    ));
}

/// The times from each end to the start that followed it. Some commands always wait, so each end
/// but the last allows one start.
fn hand_overs(text: &str) -> Vec<Duration> {
    let at = |line: &str| {
        let seconds: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        Duration::from_secs_f64(seconds)
    };
    let of = |sign: char| text.lines().filter(move |line| line.starts_with(sign)).map(at);
    of('-').zip(of('+').skip(ROOM)).map(|(end, start)| start.saturating_sub(end)).collect()
}

fn disturb(host: &Host, number: usize) {
    // Longer than its TTL, so the host loses its holds.
    let lose = Duration::from_millis(4_500);
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
