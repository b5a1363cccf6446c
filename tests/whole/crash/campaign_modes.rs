//! A campaign of random kills among readers, writers, counted jobs and nested scripts. It checks
//! that no writer ever runs while another session holds its key or a key above or below it. It also
//! checks that at the end no lock is held and no client is stuck or in a deadlock.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use canal::protocol::{Mode, Status};
use nix::sys::signal::Signal;

use crate::backend::{self, over_engines};
use crate::script::until_nothing;
use crate::whole::crash::campaign::{Random, descendants, go_on, send, stop_for};
use crate::world::World;
use crate::world::process::{BOUND, Cmd, Proc, alive, installed_or_skip, wait_until};

over_engines! {
    "kills on two hosts":
        random_kills_let_no_writer_run_beside_another_and_leave_no_hold;
}

/// The length of the campaign in seconds; `CAMPAIGN=600` overrides it.
fn length() -> u64 {
    if backend::is_engine() { 3 } else { 5 }
}

/// `perl witness r:KEY w:KEY c:KEY` holds its locks for a while, with the kernel as witness. A key
/// stands for the leaves of the tree below it. The program takes a flock(2) on every leaf of each
/// of its keys, shared or exclusive, without waiting, and records an overlap if that fails. Two
/// keys share a leaf if and only if one is the other or is above it. The kernel drops such a lock
/// before it reports a process's death. The program is a single process, so a kill leaves nothing
/// behind.
const WITNESS: &str = r#"
    use Fcntl qw(:flock);
    sub note { open my $f, '>>', shift; syswrite $f, shift; }
    my @leaves = qw(t/a/1 t/a/2 t/b);
    my @hands;
    sub take {
        my ($file, $how, $what) = @_;
        $file =~ tr{/}{.};
        open my $hand, '>>', $file or die;
        flock $hand, $how | LOCK_NB or note('overlap', "$what pid $$\n");
        push @hands, $hand;
    }
    my %seen;
    for my $item (@ARGV) {
        my ($mode, $key) = split /:/, $item;
        for my $leaf (grep { $_ eq $key || index($_, "$key/") == 0 } @leaves) {
            take("leaf.$leaf", $mode eq 'w' ? LOCK_EX : LOCK_SH, "$item at $leaf")
                unless $seen{$leaf}++;
        }
        take("slot.$key.$ENV{CANAL_SLOT}", LOCK_EX, "$item slot $ENV{CANAL_SLOT}")
            if $mode eq 'c';
    }
    note('runs', "@ARGV\n");
    select undef, undef, undef, 0.01 + rand 0.08;
"#;

/// The first clients hold nothing while they wait, so no deadlock refuses them. The others can be
/// refused repeatedly: if a session is in several deadlocks at once, canal refuses its request,
/// because that resolves them all, however old the session is.
const ALWAYS_SERVED: usize = 8;

/// The commands of the clients, each run in a loop. Other clients check the outer locks with a
/// witness. A command checks an inner lock together with the outer one only if both locks belong to
/// one process, because a kill may end the outer process alone.
const CLIENTS: [&str; 17] = [
    "exec canal run --read t -- perl witness r:t",
    "exec canal run --read t/a/1 -- perl witness r:t/a/1",
    "exec canal run --write t/a/2 -- perl witness w:t/a/2",
    "exec canal run --write t -w 100 -- perl witness w:t",
    "exec canal run -k t/a/1 -j 2 -- perl witness c:t/a/1",
    "exec canal run -k t/a/1 -j 2 -- perl witness c:t/a/1",
    "exec canal run -k t/b --per 1 --buckets 3 -- perl witness c:t/b",
    "exec canal run --max-run 100 --write t/a -- perl witness w:t/a",
    "canal run -q -n --write t/b -- perl witness w:t/b; code=$?; sleep 0.1; exit $code",
    "exec canal run --write t -w 2 -- perl witness w:t",
    // Nested, in opposite orders.
    "canal run --write t/a -- sh -c 'canal run --write t/b -- perl witness w:t/b; exit $?'",
    "canal run --write t/b -- sh -c 'canal run --write t/a -- perl witness w:t/a; exit $?'",
    "canal run -k t/b --per 1 --buckets 3 -- sh -c 'canal run --read t/a -- perl witness r:t/a; exit $?'",
    // The command of the outer lock becomes `canal run` itself.
    "exec canal run --write t/a/2 -- canal run --write t/b -- perl witness w:t/b $OUTER",
    // Upgrades.
    "canal run --read t/a -- sh -c 'canal run --write t/a -- perl witness w:t/a; exit $?'",
    "canal acquire -q -w 60 --pid $$ --read t/b && canal acquire -w 60 --pid $$ --write t/b &&
        exec perl witness w:t/b",
    // Two locks of one process, acquired in sequence.
    "canal acquire -q -w 60 --pid $$ --read t/b && canal acquire -w 60 --pid $$ --write t/a/2 &&
        canal release -q --pid $$ t/b && exec perl witness w:t/a/2",
];

fn clients(world: &World) -> Vec<Proc> {
    fs::write(world.path("work/witness"), WITNESS).unwrap();
    fs::write(world.path("work/stop"), "").unwrap();
    let looping =
        "while [ -e stop ]; do sh -c \"$0\" 2>>errors; echo $1 $? >>ends; sleep 0.05; done";
    // Over an engine the outer `canal run` stays as the parent of the witness, and a kill of the
    // parent alone frees the outer lock.
    let outer = if backend::is_engine() { "" } else { "w:t/a/2" };
    let numbered = CLIENTS.iter().enumerate();
    let spawned = numbered.map(|(number, script)| {
        world.program("sh", ["-c", looping, script, &number.to_string()]).env("OUTER", outer)
    });
    spawned.map(Cmd::spawn).collect()
}

/// After the kills have stopped, each client gets its turn, or a refusal.
fn each_gets_its_turn(world: &World) {
    let before = world.read("ends").lines().count();
    for (number, client) in CLIENTS.iter().enumerate() {
        let mine = format!("{number} ");
        let good: &[&str] = if number < ALWAYS_SERVED { &["0"] } else { &["0", "75"] };
        wait_until(&format!("`{client}` has its turn"), || {
            let ends = world.read("ends");
            let mut mine = ends.lines().skip(before).filter_map(|end| end.strip_prefix(&mine));
            // The first exit may be that of a command that began before the kills stopped.
            mine.next().is_some() && mine.any(|code| good.contains(&code))
        });
    }
}

/// Checks in the daemon's report that no writer runs at the same time as another session.
#[track_caller]
fn no_writer_has_company(status: &Status) {
    let covers = |a: &str, b: &str| b.strip_prefix(a).is_some_and(|rest| rest.starts_with('/'));
    for key in &status.keys {
        for writer in key.holders.iter().filter(|holder| holder.mode == Some(Mode::Write)) {
            for other in &status.keys {
                let related = key.key == other.key
                    || covers(&key.key, &other.key)
                    || covers(&other.key, &key.key);
                let alone = other.holders.iter().all(|one| one.session == writer.session);
                assert!(!related || alone, "{writer:?} has {} with {other:?}", key.key);
            }
        }
    }
}

/// How many processes and daemons the test has killed.
#[derive(Debug, Default)]
struct Done {
    kills: u32,
    daemons: u32,
}

impl Done {
    fn enough(&self) -> bool {
        self.kills > 30 && self.daemons > 2
    }
}

/// Whether enough commands ran, and some were in a deadlock.
fn ran(world: &World) -> bool {
    world.read("runs").lines().count() > 50 && world.read("errors").contains("deadlock on ")
}

fn kill_at_random(world: &World, loops: &[Proc], random: &mut Random, campaign: Duration) -> Done {
    let mut done = Done::default();
    let mut stopped: Vec<(Instant, i32)> = Vec::new();
    let begun = Instant::now();
    // On a busy machine the campaign continues until enough has happened.
    while begun.elapsed() < campaign || begun.elapsed() < BOUND && !(done.enough() && ran(world)) {
        let until = Instant::now() + Duration::from_millis(5 + random.below(80) as u64);
        wait_until("the next kill is due", || Instant::now() >= until);
        go_on(&mut stopped, Instant::now());
        let descendants = descendants(loops);
        let process = descendants.get(random.below(descendants.len().max(1))).copied();
        let seen = world.hosts.glance();
        if let Some(status) = &seen {
            no_writer_has_company(status);
        }
        match (random.below(20), process, seen) {
            (0, _, Some(_)) => {
                let pids = world.daemon_pids();
                let one = pids.get(random.below(pids.len().max(1)));
                one.into_iter().for_each(|pid| send(*pid, Signal::SIGKILL));
                done.daemons += 1;
            }
            (1..5, Some(process), _) => {
                let pause = Duration::from_millis(random.below(300) as u64);
                stopped.push(stop_for(process, pause));
            }
            (5..14, Some(process), _) => {
                send(process, Signal::SIGKILL);
                done.kills += 1;
            }
            _ => {}
        }
        assert_eq!(world.read("overlap"), "");
    }
    go_on(&mut stopped, Instant::now() + campaign);
    done
}

#[test]
fn random_kills_let_no_writer_run_beside_another_and_leave_no_hold() {
    if !installed_or_skip("perl", "the campaign of kills among readers and writers") {
        return;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = std::env::var("SEED").map_or(now.as_nanos() as u64, |seed| seed.parse().unwrap());
    eprintln!("SEED={}", seed | 1);
    let length =
        std::env::var("CAMPAIGN").map_or_else(|_| length(), |length| length.parse().unwrap());
    let world = World::with_daemon();
    let loops = clients(&world);
    let done = kill_at_random(&world, &loops, &mut Random(seed | 1), Duration::from_secs(length));
    each_gets_its_turn(&world);
    fs::remove_file(world.path("work/stop")).unwrap();
    for one in loops {
        one.end();
    }
    world.status();
    until_nothing(&world);
    assert_eq!(world.read("overlap"), "");
    let errors = world.read("errors");
    for bad in ["panicked", "is not valid", "cannot parse", "damaged", "refuses"] {
        assert!(!errors.contains(bad), "{errors}");
    }
    let runs = world.read("runs").lines().count();
    let rings = errors.matches("deadlock on ").count();
    let told = format!("{runs} runs, {rings} deadlocks, {done:?}");
    eprintln!("{told}");
    assert!(runs > 50 && rings > 0 && done.enough(), "{told}");
    world.canal(["run", "-n", "--write", "t", "--", "true"]).end().code(0);
    assert!(alive(world.daemon_pid()));
}
