//! A campaign: many runs over three nodes, which three kinds of clients reach by different names,
//! while faults are drawn: kills, reboots, links that fall silent, waiters that are frozen, TTLs
//! that a command shortens, and other lists of nodes. No two commands run at once, tokens grow, and
//! each waiter that is not killed itself is served.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::nodes::faults::killed::{coordinator, kill_now, signal_quietly, with_words};
use crate::nodes::faults::rebooted::{IN_MEMORY, reboot};
use crate::nodes::run::Nodes;
use crate::world::World;
use crate::world::process::{Cmd, Proc, children, wait_until};

/// For how many seconds faults are drawn. `CAMPAIGN=600` sets another number.
const SECONDS: u64 = 15;

const KEYS: [&str; 4] = ["w", "x", "y", "z"];

/// The nodes by the names of their hosts.
const SSH: &str = "ssh:a,ssh:b,ssh:c";

/// How many runs compete at any time.
const RUNS: usize = 8;

/// A command that holds a lock of the kernel while it runs, and notes if another one has it. It
/// appends its token to the grants of its key. It is one process, so the lock ends with it.
const COMMAND: &str = r#"
    cd "$0" || exit; exec 9>>witness-$1; flock -n 9 || echo "$1" >>overlaps
    echo $CANAL_TOKEN >>grants-$1
    [ -z "$3" ] || CANAL_HANDLE=$CANAL_UNDER canal renew --ttl 10s 9>&- || :
    exec sleep $2
"#;

/// A run, and what happened to it.
struct Run {
    proc: Proc,
    key: &'static str,
    /// Whether one of the two processes that watch over its command was killed. Without both, no
    /// process ends the command in time.
    is_killed: bool,
    /// Whether its list of nodes is another one than that of the others. It may be refused.
    is_foreign: bool,
}

/// Processes that are stopped, and what happens to them afterwards.
struct Stopped {
    until: Instant,
    pids: Vec<i32>,
    then: Signal,
}

struct Campaign<'n> {
    nodes: &'n Nodes,
    /// A client that names the nodes by their sockets only.
    stranger: &'n World,
    path: String,
    rng: fastrand::Rng,
    runs: Vec<Run>,
    stopped: Vec<Stopped>,
    faults: [u32; 7],
}

impl Campaign<'_> {
    /// The nodes by their sockets.
    fn sockets(&self) -> String {
        let name = |node: &World| format!("unix:{}", node.socket().display());
        self.nodes.nodes.iter().map(name).collect::<Vec<_>>().join(",")
    }

    /// Meets all nodes under all their names, because a request fails if a node that canal has
    /// never reached is out of reach.
    fn meet(&self) {
        let (here, sockets) = (&self.nodes.here, self.sockets());
        for (world, on) in [(here, "@all"), (here, SSH), (self.stranger, &sockets)] {
            let run = world.canal(["run", "--on", on, "--ttl", "10s", "-k", "met", "--", "true"]);
            run.env("PATH", &self.path).end().code(0);
        }
    }

    fn start(&mut self) {
        let sockets = self.sockets();
        let rng = &mut self.rng;
        let key = KEYS[rng.usize(..KEYS.len())];
        let is_foreign = rng.u8(..20) == 0;
        let (world, on) = match rng.u8(..3) {
            _ if is_foreign => (&self.nodes.here, "b,c".to_owned()),
            0 => (&self.nodes.here, "@all".to_owned()),
            1 => (&self.nodes.here, SSH.to_owned()),
            _ => (self.stranger, sockets),
        };
        let require = ["all", "majority"][rng.usize(..2)];
        let shortens = rng.u8(..10) == 0;
        let ttl = if shortens { "20s" } else { "10s" };
        let seconds = ["0", "0.1", "0.5"][rng.usize(..3)];
        let run: Cmd<'_> =
            world.canal(["run", "--on", &on, "--ttl", ttl, "-k", key, "--require", require]);
        let folder = self.nodes.here.path("work");
        let words = ["-w", "5m", "--", "sh", "-c", COMMAND];
        let run = run.args(words).arg(folder).args([key, seconds]);
        let run = if shortens { run.arg("shortens") } else { run };
        let proc = run.env("PATH", &self.path).spawn();
        self.runs.push(Run { proc, key, is_killed: false, is_foreign });
    }

    fn fault(&mut self) {
        let at = self.rng.usize(..self.runs.len());
        let run = &mut self.runs[at];
        let parent = run.proc.pid();
        let fault = self.rng.usize(..self.faults.len());
        let node = &self.nodes.nodes[self.rng.usize(..3)];
        let long = Duration::from_millis(self.rng.u64(500..15_000));
        match fault {
            0 if !run.is_killed => coordinator(parent).into_iter().for_each(kill_now),
            1 if !run.is_killed => kill_now(parent),
            2 => node.daemon_pids().into_iter().for_each(kill_now),
            3 => reboot(node, IN_MEMORY),
            4 => {
                let ssh = coordinator(parent).map(children).unwrap_or_default();
                ssh.into_iter().for_each(kill_now);
            }
            5 => self.silence_a_link(long),
            6 => self.freeze(at, long),
            _ => return,
        }
        self.runs[at].is_killed |= fault < 2;
        self.faults[fault] += 1;
    }

    /// Stops a link, which both ends hold for alive, and cuts it later.
    fn silence_a_link(&mut self, long: Duration) {
        let links =
            [&self.nodes.here, self.stranger].map(|it| with_words(it, &["canal", "bridge"]));
        let links = links.concat();
        if let Some(link) = self.rng.choice(links) {
            signal_quietly(link, Signal::SIGSTOP);
            let until = Instant::now() + long;
            self.stopped.push(Stopped { until, pids: vec![link], then: Signal::SIGKILL });
        }
    }

    /// Freezes all processes of a run that waits. A command that runs is not frozen: its lock of
    /// the kernel would outlive its lock on the nodes.
    fn freeze(&mut self, at: usize, long: Duration) {
        let parent = self.runs[at].proc.pid();
        signal_quietly(parent, Signal::SIGSTOP);
        let mut pids = vec![parent];
        let mut next = 0;
        while let Some(pid) = pids.get(next).copied() {
            signal_quietly(pid, Signal::SIGSTOP);
            pids.extend(children(pid));
            next += 1;
        }
        let waits = children(parent).into_iter().all(|pid| Some(pid) == coordinator(parent));
        let until = if waits { Instant::now() + long } else { Instant::now() };
        self.stopped.push(Stopped { until, pids, then: Signal::SIGCONT });
    }

    /// Continues or ends the stopped processes whose time has come, or all.
    fn thaw(&mut self, all: bool) {
        let now = Instant::now();
        for stopped in self.stopped.extract_if(.., |it| all || it.until <= now) {
            stopped.pids.into_iter().for_each(|pid| signal_quietly(pid, stopped.then));
        }
    }

    /// Checks the runs that have ended.
    fn collect(&mut self, seed: u64) {
        assert_eq!(self.nodes.here.read("overlaps"), "", "two ran at once; CANAL_SEED={seed}");
        for Run { proc, key, is_killed, is_foreign } in
            self.runs.extract_if(.., |run| run.proc.has_ended()).collect::<Vec<_>>()
        {
            let ended = proc.end();
            assert!(!ended.stderr.contains("panicked"), "CANAL_SEED={seed}: {ended:?}");
            let served = ended.code == Some(0) || is_killed || is_foreign;
            assert!(served, "{key} was not served; CANAL_SEED={seed}: {ended:?}");
        }
    }
}

/// The tokens of the grants of each key, in the order in which their commands ran.
fn grants(nodes: &Nodes, seed: u64) -> usize {
    let of_key = |key: &&str| {
        let text = nodes.here.read(&format!("grants-{key}"));
        let tokens: Vec<u64> = text.lines().map(|token| token.parse().unwrap()).collect();
        assert!(tokens.is_sorted_by(|one, next| one < next), "CANAL_SEED={seed}: {key} {tokens:?}");
        tokens.len()
    };
    KEYS.iter().map(of_key).sum()
}

#[test]
fn a_campaign_of_faults_never_lets_two_commands_run_and_serves_each_waiter() {
    let (nodes, stranger) = (Nodes::new(), World::new());
    let seconds = std::env::var("CAMPAIGN").map_or(SECONDS, |length| length.parse().unwrap());
    let seed =
        std::env::var("CANAL_SEED").map_or_else(|_| fastrand::u64(..), |it| it.parse().unwrap());
    let mut campaign = Campaign {
        path: nodes.path_with_ssh(),
        nodes: &nodes,
        stranger: &stranger,
        rng: fastrand::Rng::with_seed(seed),
        runs: Vec::new(),
        stopped: Vec::new(),
        faults: [0; 7],
    };
    campaign.meet();
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut next_fault = Instant::now();
    while Instant::now() < until {
        while campaign.runs.len() < RUNS {
            campaign.start();
        }
        std::thread::sleep(Duration::from_millis(20));
        campaign.thaw(false);
        if Instant::now() >= next_fault {
            campaign.fault();
            next_fault = Instant::now() + Duration::from_millis(campaign.rng.u64(..2_000));
        }
        campaign.collect(seed);
    }
    campaign.thaw(true);
    wait_until("each run ends", || {
        campaign.collect(seed);
        campaign.runs.is_empty()
    });
    let granted = grants(&nodes, seed);
    let faults = campaign.faults;
    eprintln!("{granted} grants in {seconds} s; faults by kind: {faults:?}; CANAL_SEED={seed}");
    assert!(granted > 0 && faults.iter().sum::<u32>() > 0, "{granted} grants, {faults:?}");
    nodes.here.until_no_process("no process is left");
    let held = || nodes.nodes.iter().map(|node| KEYS.map(|key| node.held(key)));
    wait_until("nothing is left on any node", || held().flatten().all(|held| held == 0));
}
