//! A campaign of random kills. Clients run and acquire in loops, while the test kills clients,
//! commands and daemons at random. It checks that no slot ever has two holders, and that at the end
//! no lock is held and no client is stuck.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::backend::{self, over_engines};
use crate::world::World;
use crate::world::process::{BOUND, Proc, alive, installed_or_skip, state, wait_until};

over_engines! {
    "kills on two hosts":
        random_kills_give_no_slot_to_two_holders_and_leave_no_hold;
}

/// The length of the campaign in seconds; `CAMPAIGN=600` overrides it.
fn length() -> u64 {
    if backend::is_engine() { 3 } else { 5 }
}

/// A command that holds its lock for a while, with the kernel as witness. It takes a flock(2) on a
/// file named by its key and slot number, without waiting, and records an overlap if another
/// process has it. The kernel drops such a lock before it reports a process's death. The command is
/// a single process, so a kill leaves nothing behind.
const WITNESS: &str = r#"exec perl -e "
    use Fcntl q(:flock);
    my (\$key, \$slot) = @ENV{qw(CANAL_KEY CANAL_SLOT)};
    sub note { open my \$f, q(>>), shift; syswrite \$f, shift; }
    open my \$hand, q(>>), qq(slot.\$key.\$slot) or die;
    flock \$hand, LOCK_EX | LOCK_NB or note(q(overlap), qq(\$key \$slot pid \$\$\\n));
    note(q(tokens), qq(\$ENV{CANAL_TOKEN}\\n));
    select undef, undef, undef, 0.15;
""#;

/// The clients: each is a shell loop that restarts its command after a kill.
fn clients(world: &World) -> Vec<Proc> {
    let acquire = "answer=$(canal acquire -q --json -w 60 -k a=2 --pid $$) || exit
        CANAL_KEY=a CANAL_SLOT=$(echo \"$answer\" | sed 's/.*\"slot\":\\([0-9]*\\).*/\\1/') CANAL_TOKEN=0
        export CANAL_KEY CANAL_SLOT CANAL_TOKEN";
    let scripts = [
        format!("exec canal run -k a=2 -- sh -c '{WITNESS}'"),
        format!("exec canal run -k b=1x2 -- sh -c '{WITNESS}'"),
        format!("exec canal run -k b=1x2 -w 0.4 -- sh -c '{WITNESS}'"),
        format!("exec canal run -k a=2 --max-run 5 -- sh -c '{WITNESS}'"),
        format!("exec canal run -k c --with-children -- sh -c '{WITNESS}'"),
        "canal run -n -q -k c -- true; sleep 0.1".to_owned(),
        format!("{acquire}; {WITNESS}"),
        "canal acquire -q -w 60 -k b=1x2 --pid $$ && canal acquire -q -n -k d --pid $$
            canal release -q --all --pid $$; sleep 0.05"
            .to_owned(),
    ];
    let looped = |script: &String| {
        fs::write(world.path("work/stop"), "").unwrap();
        let looping = "while [ -e stop ]; do sh -c \"$0\" 2>>errors; sleep 0.05; done";
        let mut cmd = world.program("sh", ["-c", looping, script]);
        cmd = cmd.env("CLIENT", "1");
        cmd.spawn()
    };
    scripts.iter().chain(&scripts).map(looped).collect()
}

/// A small random number generator. The test prints its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Sends a signal to a process that may be gone.
pub(crate) fn send(pid: i32, which: Signal) {
    let _ = kill(Pid::from_raw(pid), which);
}

/// Stops a process. Returns the time at which to continue it, and the process.
pub(crate) fn stop_for(process: i32, pause: Duration) -> (Instant, i32) {
    send(process, Signal::SIGSTOP);
    // It may be or become a daemon, and a stopped daemon cannot answer, so ask the kernel.
    let goes_on = || matches!(state(process), Some('R' | 'S' | 'D'));
    wait_until("it is stopped", || !goes_on());
    (Instant::now() + pause, process)
}

/// Continues the stopped processes whose pause is over.
pub(crate) fn go_on(stopped: &mut Vec<(Instant, i32)>, now: Instant) {
    for (_, pid) in stopped.extract_if(.., |(until, _)| *until <= now) {
        send(pid, Signal::SIGCONT);
    }
}

/// All descendants of the loops.
pub(crate) fn descendants(loops: &[Proc]) -> Vec<i32> {
    let mut found = Vec::new();
    let mut next: Vec<i32> = loops.iter().map(Proc::pid).collect();
    while let Some(pid) = next.pop() {
        let below = crate::world::process::children(pid);
        found.extend(&below);
        next.extend(below);
    }
    found
}

#[test]
fn random_kills_give_no_slot_to_two_holders_and_leave_no_hold() {
    a_campaign_in(&World::new());
}

#[test]
fn random_kills_give_no_slot_to_two_holders_on_an_older_kernel() {
    a_campaign_in(&World::of_linux_5_10());
}

fn a_campaign_in(world: &World) {
    if !installed_or_skip("perl", "the campaign of kills") {
        return;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed =
        std::env::var("SEED").map_or(now.as_nanos() as u64, |seed| seed.parse().unwrap()) | 1;
    eprintln!("SEED={seed}");
    let length =
        std::env::var("CAMPAIGN").map_or_else(|_| length(), |length| length.parse().unwrap());
    let campaign = Duration::from_secs(length);
    let mut random = Random(seed);
    world.status();
    let loops = clients(world);
    let begun = Instant::now();
    let (mut kills, mut daemons) = (0, 0);
    let mut stopped: Vec<(Instant, i32)> = Vec::new();
    // On a busy machine the campaign continues until enough has happened.
    let runs = || world.read("tokens").lines().count();
    let enough = |kills, daemons| kills > 50 && daemons > 3 && runs() > 60;
    while begun.elapsed() < campaign || begun.elapsed() < BOUND && !enough(kills, daemons) {
        let pause = Duration::from_millis(5 + random.below(60) as u64);
        let until = Instant::now() + pause;
        wait_until("the next kill is due", || Instant::now() >= until);
        go_on(&mut stopped, Instant::now());
        let descendants = descendants(&loops);
        let one =
            |random: &mut Random| descendants.get(random.below(descendants.len().max(1))).copied();
        match (random.below(20), one(&mut random), world.hosts.glance()) {
            (0, _, Some(_)) => {
                let pids = world.daemon_pids();
                let one = pids.get(random.below(pids.len().max(1)));
                one.into_iter().for_each(|pid| send(*pid, Signal::SIGKILL));
                daemons += 1;
            }
            (1..5, Some(process), _) => {
                let pause = Duration::from_millis(random.below(500) as u64);
                stopped.push(stop_for(process, pause));
            }
            (_, Some(process), _) => {
                send(process, Signal::SIGKILL);
                kills += 1;
            }
            _ => {}
        }
        if let Some(status) = world.hosts.glance() {
            for key in &status.keys {
                let capacity = if matches!(&*key.key, "c" | "d") { 1 } else { 2 };
                assert!(key.held <= capacity, "{key:?}");
            }
        }
        assert_eq!(world.read("overlap"), "", "SEED={seed}");
    }
    go_on(&mut stopped, Instant::now() + campaign);
    fs::remove_file(world.path("work/stop")).unwrap();
    for one in loops {
        one.end();
    }
    world.status();
    world.until_idle();
    assert_eq!(world.read("overlap"), "", "SEED={seed}");
    let errors = world.read("errors");
    for bad in ["panicked", "is not valid", "cannot parse", "damaged", "refuses"] {
        assert!(!errors.contains(bad), "SEED={seed}: {errors}");
    }
    let tokens = world.read("tokens");
    let mut numbers: Vec<u64> = tokens.lines().map(|l| l.parse().unwrap()).collect();
    numbers.retain(|token| *token != 0);
    let all = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all, "a token was used twice; SEED={seed}");
    eprintln!("{all} runs, {kills} kills, {daemons} daemons");
    assert!(all > 50 && enough(kills, daemons), "{all} runs, {kills} kills, {daemons} daemons");
    for key in ["a=2", "b=1x2", "c"] {
        world.canal(["run", "-n", "-k", key, "--", "true"]).end().code(0);
    }
    assert!(alive(world.daemon_pid()));
}
