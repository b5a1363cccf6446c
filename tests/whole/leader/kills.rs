//! Kills the leader repeatedly: there are never two leaders, and the next one follows.
//!
//! The kernel is the witness: each leader takes a flock(2) on one file, without waiting, and
//! records a failure if another process has it. The kernel drops such a lock before it reports a
//! process's death.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::watch::Watcher;
use crate::backend::{self, over_engines};
use crate::world::World;
use crate::world::process::{Proc, installed_or_skip, wait_until};

over_engines! {
    "the next leader is on another host":
        of_leaders_that_are_killed_there_are_never_two_and_the_next_one_follows;
}

/// How often the leader is killed; `CANAL_LEADER_KILLS=100` overrides it.
fn kills() -> usize {
    if backend::is_engine() { 3 } else { 10 }
}

const CANDIDATES: usize = 3;

/// A leader that records its pid, its token and when it began. It is a single process, so a kill
/// leaves nothing behind.
const LEADER: &str = r#"exec perl -e "
    use Fcntl q(:flock);
    use Time::HiRes qw(time);
    sub note { open my \$f, q(>>), shift; syswrite \$f, shift; }
    my \$now = sprintf q(%.6f), time;
    open my \$hand, q(>>), q(only) or die;
    flock \$hand, LOCK_EX | LOCK_NB or note(q(two), qq(\$\$ \$now\\n));
    note(q(leaders), qq(\$\$ \$ENV{CANAL_TOKEN} \$now\\n));
    sleep 600;
""#;

/// A leader as it recorded itself.
#[derive(Clone, Copy, Debug)]
struct Record {
    pid: i32,
    token: u64,
    /// In seconds of the machine's clock.
    began: f64,
}

fn records(world: &World) -> Vec<Record> {
    let text = world.read("leaders");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let record = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (pid, token) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        Record { pid, token, began: words[2].parse().unwrap() }
    };
    whole.lines().map(record).collect()
}

/// Seconds of the machine's clock.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Starts a candidate that waits again after each end.
fn candidate(world: &World, name: usize) -> Proc {
    let run = format!("canal run -q -k leader --note c{name} -- sh -c '{LEADER}'");
    let script = "while [ -e stand ]; do sh -c \"$0\" 2>>errors; sleep 0.01; done";
    world.program("sh", ["-c", script, &run]).spawn()
}

#[test]
fn of_leaders_that_are_killed_there_are_never_two_and_the_next_one_follows() {
    if !installed_or_skip("perl", "the campaign of kills of a leader") {
        return;
    }
    let kills = std::env::var("CANAL_LEADER_KILLS")
        .map_or_else(|_| kills(), |kills| kills.parse().unwrap());
    let world = World::with_daemon();
    fs::write(world.path("work/stand"), "").unwrap();
    let watcher = Watcher::start(&world, "leader");
    let candidates: Vec<Proc> = (0..CANDIDATES).map(|name| candidate(&world, name)).collect();
    let (mut begins, mut words) = (Vec::new(), Vec::new());
    for killed in 0..kills {
        wait_until("somebody leads", || records(&world).len() > killed);
        world.until_waiting("leader", (CANDIDATES - 1) as u64);
        let leader = records(&world)[killed];
        let said = watcher.lines().len();
        let at = now();
        kill(Pid::from_raw(leader.pid), Signal::SIGKILL).unwrap();
        let is_told = |line: &serde_json::Value| {
            line["leader"]["token"].as_u64().is_some_and(|token| token > leader.token)
        };
        wait_until("the watcher names the next leader", || {
            watcher.lines().iter().skip(said).any(is_told)
        });
        words.push(now() - at);
        wait_until("the next leader has begun", || records(&world).len() > killed + 1);
        begins.push(records(&world)[killed + 1].began - at);
    }
    fs::remove_file(world.path("work/stand")).unwrap();
    let records = records(&world);
    assert_eq!(world.read("two"), "", "two led at once");
    assert!(records.windows(2).all(|pair| pair[0].token < pair[1].token), "{records:?}");
    assert!(begins.iter().all(|gap| *gap > 0.0), "one began before the kill: {begins:?}");
    let named: Vec<u64> =
        watcher.lines().iter().filter_map(|line| line["leader"]["token"].as_u64()).collect();
    for record in &records {
        assert!(named.contains(&record.token), "the watcher did not name {record:?}");
    }
    watcher.leaders();
    print("from the kill of a leader to the begin of the next", begins);
    print("from the kill of a leader to the word of a watcher", words);
    drop(candidates);
}

/// Prints figures of times in seconds. It bypasses the macros because the harness hides their
/// output for a passing test.
fn print(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let Some((most, least)) = times.last().zip(times.first()) else { return };
    let median = times[times.len() / 2];
    let ms = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0)).as_micros() as f64 / 1e3;
    let (least, median, most) = (ms(*least), ms(median), ms(*most));
    let line = format!(
        "{what}, {} times: least {least:.1} ms, median {median:.1} ms, most {most:.1} ms\n",
        times.len()
    );
    let _ = std::io::stderr().write_all(line.as_bytes());
}
