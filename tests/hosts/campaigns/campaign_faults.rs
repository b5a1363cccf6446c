//! Three hosts, their clients, and every fault that a test can cause: networks that are cut, slow
//! or silent in one direction; engines that are killed, frozen, compacted or without a majority;
//! daemons, wrappers and commands that are killed or frozen; hosts that lose power.
//! `CANAL_HOSTS_SECONDS` sets the length; the default is a few faults. `CANAL_FAULTS_SEED` repeats
//! the choice of faults, but not their timing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::etcd_server::cluster::leader;
use crate::etcd_server::{Etcd, installed, start_etcd, start_etcd_cluster};
use crate::postgres_server::{self, start_postgres};
use crate::shared_table::figures::print_line;
use crate::shared_table::{Host, Log, mortal_hosts, until_idle};
use crate::world::process::{Cmd, Proc, alive, children, wait_until};

/// How many clients each host has at the same time: few in a short campaign, which shares the
/// machine with other tests.
fn clients_max() -> usize {
    if seconds().is_some() { 10 } else { 2 }
}

/// Longer than the TTL of the hosts, so that a host loses its holds, and shorter than the time that
/// a client waits for a stopped daemon.
const LONG: Duration = Duration::from_millis(4_600);

/// Takes the witness of a lock: `held NAME HOW FILES`; `HOW` is -s or -x. The kernel is the
/// witness: each command takes an flock(2) of its lock's file, without waiting, and keeps it while
/// it lives. A command that cannot take it overlaps with another one. A lock with three slots has
/// three files. If a shell is killed while flock(1) runs for it, the file stays locked for a
/// moment. So a holder counts only if it has written its pid into the file and lives.
const HELD: &str = r#"
has() {
    tail -n 10 $1 | while read -r pid token; do
        case $(readlink /proc/$pid/fd/9) in */$1) echo "pid $pid, token $token" ;; esac
    done
}
held() {
    name=$1 how=$2; shift 2
    while :; do
        taken=0 by=
        for file; do
            exec 9>>witness.$name.$file
            flock -n $how 9 && { echo $$ $CANAL_TOKEN >&9; return; }
            exec 9>&-
            others=$(has witness.$name.$file)
            [ -n "$others" ] && { taken=$((taken + 1)); by="$by; $others"; }
        done
        [ $taken = $# ] && break
        sleep 0.01
    done
    echo "$name: pid $$, token $CANAL_TOKEN beside$by" | tee -a overlaps >&2
    exit 99
}
"#;

/// The engine, and its possible faults.
enum Engine {
    Postgres(postgres_server::Server),
    /// One member, or three.
    Etcd(Vec<Etcd>),
}

/// A fault; `usize` is the number of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Reset(usize),
    Cut(usize),
    Silent(usize),
    Unheard(usize),
    Deaf(usize),
    Slow(usize),
    DaemonKilled(usize),
    DaemonFrozen(usize),
    WrapperKilled(usize),
    WrapperFrozen(usize),
    CommandKilled(usize),
    CommandFrozen(usize),
    PowerOff(usize),
    EngineKilled,
    EngineFrozen,
    MajorityKilled,
    Compacted,
}

impl Fault {
    fn any(random: &mut Rng, engine: &Engine) -> Self {
        let host = random.usize(..3);
        let behind_proxy = !matches!(engine, Engine::Etcd(members) if members.len() > 1);
        loop {
            let fault = match random.u8(..17) {
                0 => Self::Reset(host),
                1 => Self::Cut(host),
                2 => Self::Silent(host),
                3 => Self::Unheard(host),
                4 => Self::Deaf(host),
                5 => Self::Slow(host),
                6 => Self::DaemonKilled(host),
                7 => Self::DaemonFrozen(host),
                8 => Self::WrapperKilled(host),
                9 => Self::WrapperFrozen(host),
                10 => Self::CommandKilled(host),
                11 => Self::CommandFrozen(host),
                12 => Self::PowerOff(host),
                13 => Self::EngineKilled,
                14 => Self::EngineFrozen,
                15 => Self::MajorityKilled,
                _ => Self::Compacted,
            };
            let fits = match fault {
                Self::Reset(_) | Self::Cut(_) | Self::Silent(_) => behind_proxy,
                Self::Unheard(_) | Self::Deaf(_) | Self::Slow(_) => behind_proxy,
                // The test itself has to restart these servers, which makes a short campaign long.
                Self::EngineKilled => seconds().is_some(),
                Self::MajorityKilled => !behind_proxy && seconds().is_some(),
                Self::Compacted => matches!(engine, Engine::Etcd(_)),
                _ => true,
            };
            if fits {
                return fault;
            }
        }
    }

    /// Whether both faults together leave no process on a host that could end a command in time,
    /// which the manual names as a limit, or whether both are the same fault.
    fn excludes(self, other: Self) -> bool {
        let place = |fault: Self| match fault {
            Self::Reset(n) | Self::Cut(n) | Self::Silent(n) => (n, 0),
            Self::Unheard(n) | Self::Deaf(n) | Self::Slow(n) => (n, 0),
            Self::DaemonKilled(n) | Self::DaemonFrozen(n) | Self::WrapperKilled(n) => (n, 1),
            Self::WrapperFrozen(n) | Self::CommandKilled(n) | Self::CommandFrozen(n) => (n, 1),
            Self::PowerOff(n) => (n, 1),
            Self::EngineKilled | Self::EngineFrozen | Self::MajorityKilled => (9, 0),
            Self::Compacted => (9, 0),
        };
        place(self) == place(other)
    }
}

/// Undoes a fault.
type Mend = Box<dyn FnOnce(&Scene<'_>, &mut Engine)>;

struct Scene<'a> {
    hosts: &'a [Host; 3],
}

impl Scene<'_> {
    /// Causes a fault. Returns the function that undoes it.
    fn cause(
        &self,
        fault: Fault,
        engine: &mut Engine,
        clients: &[Vec<Proc>],
        random: &mut Rng,
    ) -> Mend {
        let proxy = |n: usize| &self.hosts[n].proxy;
        let mended = |n: usize| -> Mend { Box::new(move |scene, _| scene.hosts[n].proxy.mend()) };
        let nothing: Mend = Box::new(|_, _| ());
        match fault {
            Fault::Reset(n) => proxy(n).cut_once(),
            Fault::Cut(n) => {
                proxy(n).cut();
                return mended(n);
            }
            Fault::Silent(n) => {
                proxy(n).fall_silent();
                return mended(n);
            }
            Fault::Unheard(n) => {
                proxy(n).fall_silent_one_way(true);
                return mended(n);
            }
            Fault::Deaf(n) => {
                proxy(n).fall_silent_one_way(false);
                return mended(n);
            }
            Fault::Slow(n) => {
                proxy(n).slow_down(Duration::from_millis(random.u64(20..200)));
                return mended(n);
            }
            Fault::DaemonKilled(n) => send(self.daemon(n), Signal::SIGKILL),
            Fault::DaemonFrozen(n) => return frozen(self.daemon(n)),
            Fault::WrapperKilled(n) => send(wrapper(&clients[n], random), Signal::SIGKILL),
            Fault::WrapperFrozen(n) => return frozen(wrapper(&clients[n], random)),
            Fault::CommandKilled(n) => send(command(&clients[n], random), Signal::SIGKILL),
            Fault::CommandFrozen(n) => return frozen(command(&clients[n], random)),
            Fault::PowerOff(n) => self.power_off(n, &clients[n]),
            Fault::EngineKilled => {
                let killed = engine.kill_one();
                return Box::new(move |_, engine| engine.start(&[killed]));
            }
            Fault::EngineFrozen => {
                engine.freeze(true);
                return Box::new(|_, engine| engine.freeze(false));
            }
            Fault::MajorityKilled => {
                let Engine::Etcd(members) = engine else { return nothing };
                let first = random.usize(..3);
                let killed = [first, (first + 1) % 3];
                killed.iter().for_each(|n| members[*n].kill());
                return Box::new(move |_, engine| engine.start(&killed));
            }
            Fault::Compacted => {
                let Engine::Etcd(members) = engine else { return nothing };
                let revision = members[0].revision().to_string();
                members[0].ctl(&["compact", &revision]);
                members[0].ctl(&["defrag"]);
            }
        }
        nothing
    }

    fn daemon(&self, host: usize) -> Option<i32> {
        let status = self.hosts[host].world.look()?;
        Some(status.daemon.pid.cast_signed())
    }

    /// Kills every process of a host at once.
    fn power_off(&self, host: usize, clients: &[Proc]) {
        let pids: Vec<i32> = clients.iter().map(|it| it.child.id().cast_signed()).collect();
        let commands: Vec<i32> = pids.iter().flat_map(|pid| children(*pid)).collect();
        send(self.daemon(host), Signal::SIGKILL);
        pids.into_iter().chain(commands).for_each(|pid| send(Some(pid), Signal::SIGKILL));
    }
}

impl Engine {
    fn log(&self) -> Log {
        match self {
            Self::Postgres(server) => Log::in_postgres(server),
            Self::Etcd(members) if members.len() == 1 => Log::in_etcd(&members[0].endpoint(), None),
            Self::Etcd(members) => Log::in_cluster(members),
        }
    }

    /// Kills the server, or the leader of three. Returns its number.
    fn kill_one(&mut self) -> usize {
        match self {
            Self::Postgres(server) => {
                server.crash();
                0
            }
            Self::Etcd(members) => {
                let which = if members.len() == 1 { 0 } else { leader(members) };
                members[which].kill();
                which
            }
        }
    }

    fn start(&mut self, which: &[usize]) {
        match self {
            Self::Postgres(server) => server.start(),
            Self::Etcd(members) => {
                let (last, first) = which.split_last().unwrap();
                first.iter().for_each(|n| members[*n].spawn());
                members[*last].start();
                first.iter().for_each(|n| members[*n].wait());
            }
        }
    }

    fn freeze(&self, freeze: bool) {
        let signal = if freeze { Signal::SIGSTOP } else { Signal::SIGCONT };
        match self {
            Self::Postgres(server) => {
                let file = std::fs::read_to_string(server.data().join("postmaster.pid")).unwrap();
                let main: i32 = file.lines().next().unwrap().parse().unwrap();
                [main].into_iter().chain(children(main)).for_each(|pid| send(Some(pid), signal));
            }
            Self::Etcd(members) => members.iter().for_each(|member| member.signal(signal)),
        }
    }
}

fn send(pid: Option<i32>, signal: Signal) {
    if let Some(pid) = pid.filter(|pid| alive(*pid)) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

fn frozen(pid: Option<i32>) -> Mend {
    send(pid, Signal::SIGSTOP);
    Box::new(move |_, _| send(pid, Signal::SIGCONT))
}

/// One of `pids`. The next random choice does not depend on their number.
fn any_of(pids: &[i32], random: &mut Rng) -> Option<i32> {
    let at = random.usize(..1 << 20);
    pids.get(at.checked_rem(pids.len())?).copied()
}

fn wrapper(clients: &[Proc], random: &mut Rng) -> Option<i32> {
    let running = clients.iter().map(|it| it.child.id().cast_signed());
    let running: Vec<i32> = running.filter(|pid| !children(*pid).is_empty()).collect();
    any_of(&running, random)
}

fn command(clients: &[Proc], random: &mut Rng) -> Option<i32> {
    let commands = clients.iter().flat_map(|it| children(it.child.id().cast_signed()));
    any_of(&commands.collect::<Vec<i32>>(), random)
}

/// A client of any kind.
fn client<'a>(host: &'a Host, random: &mut Rng) -> Cmd<'a> {
    let nap = format!("sleep 0.{:02} 9>&-", random.u8(..20));
    let run = |args: &[&str], held: &str| {
        let script = format!("{HELD}{held}; {nap}");
        host.world.canal(["run"]).args(args).args(["--", "bash", "-c", &script])
    };
    let one = |name: &str| format!("held {name} -x 1; echo $CANAL_TOKEN >>tokens.{name}");
    match random.u8(..10) {
        0 => run(&["--read", "doc"], "held doc -s 1"),
        1 => run(&["--write", "doc"], &one("doc")),
        2 => run(&["--write", "doc/part"], "held doc -s 1; held part -x 1"),
        3 => run(&["-k", "x", "-k", "y"], &format!("{}; held y -x 1", one("x"))),
        4 => run(&["-k", "y", "-k", "x"], &format!("held x -x 1; {}", one("y"))),
        5 => {
            let take = "grant=$(canal acquire --pid $$ -k own) || exit; eval \"$grant\"";
            let script = format!("{HELD}{take}; {}; {nap}", one("own"));
            host.world.program("bash", ["-c", &script])
        }
        6 | 7 => run(&["-k", "x"], &one("x")),
        _ => run(&["--per", "3", "--buckets", "1", "-k", "db"], "held db -x 1 2 3"),
    }
}

/// The results of the clients, and the tokens.
#[derive(Default)]
struct Figures {
    ends: BTreeMap<String, usize>,
    faults: BTreeMap<String, usize>,
    back: Vec<Duration>,
}

impl Figures {
    fn ended(&mut self, client: Proc) {
        let ended = client.end();
        assert_ne!(ended.code, Some(99), "two at once: {ended:?}");
        let end = match (ended.code, ended.signal) {
            (Some(0), _) => "ran".to_owned(),
            (Some(122), _) => "lost its lock".to_owned(),
            // The test killed it, or its host's deadline did.
            (Some(137), _) | (_, Some(9)) => "killed".to_owned(),
            (Some(143), _) | (_, Some(15)) => "asked to end".to_owned(),
            // On a slow machine a daemon stays frozen for longer.
            (Some(125), _) if ended.stderr.contains("does not answer") => "gave up".to_owned(),
            _ => panic!("{ended:?}"),
        };
        *self.ends.entry(end).or_default() += 1;
    }

    fn tell(&mut self, engine: &str, lasted: Duration, tokens: usize) {
        self.back.sort_unstable();
        let ends: Vec<String> = self.ends.iter().map(|(end, n)| format!("{n} {end}")).collect();
        let faults: Vec<String> = self.faults.iter().map(|(it, n)| format!("{n} {it}")).collect();
        print_line(&format!(
            "faults over {engine}: {:.0} s; clients: {}; {tokens} tokens in order; faults: {}; a host \
             was granted something again within {:?} (median {:?}) of the mending",
            lasted.as_secs_f64(),
            ends.join(", "),
            faults.join(", "),
            self.back.last(),
            self.back.get(self.back.len() / 2),
        ));
    }
}

fn seconds() -> Option<u64> {
    std::env::var("CANAL_HOSTS_SECONDS").ok().and_then(|it| it.parse().ok())
}

fn campaign(name: &str, mut engine: Engine) {
    let given = std::env::var("CANAL_FAULTS_SEED").ok().and_then(|it| it.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    print_line(&format!("faults over {name}: CANAL_FAULTS_SEED={seed}"));
    let mut random = Rng::with_seed(seed);
    let mut any_client = Rng::with_seed(seed);
    let log = engine.log();
    let hosts: [Host; 3] = mortal_hosts(&log);
    let scene = Scene { hosts: &hosts };
    let mut figures = Figures::default();
    let mut clients: Vec<Vec<Proc>> = hosts.iter().map(|_| Vec::new()).collect();
    let begun = Instant::now();
    let is_over = |rounds: usize| match seconds() {
        Some(seconds) => begun.elapsed().as_secs() >= seconds,
        None => rounds >= 3,
    };
    let mut rounds = 0;
    while !is_over(rounds) {
        rounds += 1;
        let mut faults = vec![Fault::any(&mut random, &engine)];
        let second = Fault::any(&mut random, &engine);
        if random.bool() && !second.excludes(faults[0]) {
            faults.push(second);
        }
        let mut mends = Vec::new();
        for fault in faults {
            let name = format!("{fault:?}");
            let name = name.split('(').next().unwrap().to_owned();
            *figures.faults.entry(name).or_default() += 1;
            if seconds().is_some() {
                print_line(&format!("{:.1} s: {fault:?}", begun.elapsed().as_secs_f64()));
            }
            mends.push(scene.cause(fault, &mut engine, &clients, &mut random));
        }
        let lasts =
            if random.u8(..4) == 0 { LONG } else { Duration::from_millis(random.u64(50..1_500)) };
        work(&hosts, &mut clients, &mut figures, &mut any_client, lasts);
        mends.into_iter().for_each(|mend| mend(&scene, &mut engine));
        let mended = Instant::now();
        if rounds % 3 == 0 {
            for host in &hosts {
                host.world.canal(["run", "-k", "probe", "--", "true"]).end().code(0);
                figures.back.push(mended.elapsed());
            }
        }
        let pause = Duration::from_millis(random.u64(100..1_500));
        work(&hosts, &mut clients, &mut figures, &mut any_client, pause);
    }
    clients.into_iter().flatten().for_each(|client| figures.ended(client));
    assert_eq!(hosts[0].world.read("overlaps"), "", "two at once");
    let tokens = ["x", "y", "doc", "own"].map(|name| in_order(&hosts[0], name)).iter().sum();
    figures.tell(name, begun.elapsed(), tokens);
    // The daemons killed last have no client left that would start the next ones.
    hosts.iter().for_each(|host| {
        wait_until("a daemon answers", || {
            host.world.status();
            host.state() == "member"
        });
    });
    until_idle(&hosts);
}

/// Keeps the clients at work.
fn work(
    hosts: &[Host; 3],
    clients: &mut [Vec<Proc>],
    figures: &mut Figures,
    random: &mut Rng,
    lasts: Duration,
) {
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        for (host, clients) in hosts.iter().zip(&mut *clients) {
            clients.extract_if(.., Proc::has_ended).for_each(|client| figures.ended(client));
            while clients.len() < clients_max() {
                clients.push(client(host, random).spawn());
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many tokens were recorded. Checks that each is greater than the one before.
#[track_caller]
fn in_order(host: &Host, name: &str) -> usize {
    let text = host.world.read(&format!("tokens.{name}"));
    // A killed command may have written part of a line.
    let tokens: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for (before, token) in tokens.iter().zip(tokens.iter().skip(1)) {
        assert!(before < token, "{name}: token {token} after {before}");
    }
    tokens.len()
}

#[test]
fn no_two_holders_overlap_under_any_fault_over_postgres() {
    let Some(server) = start_postgres() else { return };
    campaign("PostgreSQL", Engine::Postgres(server));
}

#[test]
fn no_two_holders_overlap_under_any_fault_over_etcd() {
    if installed() {
        campaign("etcd", Engine::Etcd(vec![start_etcd()]));
    }
}

#[test]
fn no_two_holders_overlap_under_any_fault_over_three_members_of_etcd() {
    if installed() {
        campaign("three members of etcd", Engine::Etcd(start_etcd_cluster(3)));
    }
}
