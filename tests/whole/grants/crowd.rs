//! A thousand waiters on one key. (The benchmarks have ten thousand.)

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use canal::sys::pidfd::Pidfd;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::backend::{self, over_engines};
use crate::world::World;
use crate::world::peer::Peer;
use crate::world::process::{Proc, wait_until};

over_engines! {
    "hundreds of entries, and a descriptor more for each request":
        a_thousand_waiters_are_shown_and_granted_in_order,
        clients_beyond_the_descriptors_are_refused_and_the_others_go_on;
}

fn how_many() -> usize {
    if backend::is_engine() { 250 } else { 1_000 }
}

/// The owners of the waiting requests: subshells of one shell, which end with its standard input.
/// A thousand programs would take longer to start than everything that the test does with them.
struct Owners {
    shell: Child,
    pids: Vec<u32>,
}

impl Owners {
    fn start(count: usize) -> Self {
        let script = "exec 3<&0; n=$0; while [ $n -gt 0 ]; do
            n=$((n - 1)); read line <&3 & echo $!
        done; wait";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, &count.to_string()]);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pids = BufReader::new(shell.stdout.take().unwrap()).lines().take(count);
        let pids = pids.map(|pid| pid.unwrap().parse().unwrap()).collect();
        Self { shell, pids }
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[test]
fn a_thousand_waiters_are_shown_and_granted_in_order() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    // Each waiter takes a connection and a pidfd, both here and in the daemon.
    let room = usize::try_from(hard).unwrap_or(usize::MAX).saturating_sub(500) / 3;
    let waiters = how_many().min(room);
    if waiters < how_many() {
        eprintln!("only {waiters} waiters: the limit of descriptors is {hard} (it was {soft})");
    }

    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owners = Owners::start(waiters);
    let items = json!([{ "key": "x", "slots": 1 }]);
    let mut peers: Vec<(usize, Peer)> = Vec::new();
    for (n, owner) in owners.pids.iter().enumerate() {
        let pidfd = Pidfd::open(*owner).unwrap();
        let mut peer = Peer::connect(&world);
        peer.ask(n as u128 + 1, &items, false, Some(&pidfd));
        peers.push((n, peer));
        if n % 500 == 499 || n + 1 == waiters {
            world.until_waiting("x", n as u64 + 1);
        }
    }

    let shown = world.canal(["status", "--json", "x"]).end().code(0).json();
    let queue = shown["keys"][0]["waiters"].as_array().unwrap();
    assert_eq!(queue.len(), waiters);
    let pids: Vec<u64> = queue.iter().map(|w| w["pid"].as_u64().unwrap()).collect();
    if backend::is_engine() {
        // A request that reaches another host at the same time may be ahead.
        let place = |n: usize| pids.iter().position(|pid| *pid == u64::from(owners.pids[n]));
        peers.sort_by_key(|(n, _)| place(*n));
    }
    let asked: Vec<u64> = peers.iter().map(|(n, _)| owners.pids[*n].into()).collect();
    assert_eq!(pids, asked);
    let last = &queue[waiters - 1];
    assert_eq!(last["position"], waiters);
    world.canal(["status"]).end().code(0);
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(0);

    // A tenth of them close their connections, at random places in the queue.
    let mut left: Vec<(usize, Peer)> = Vec::new();
    for (n, peer) in peers {
        if n % 10 != 3 {
            left.push((n, peer));
        }
    }
    world.until_waiting("x", left.len() as u64);

    holder.finish();
    let mut tokens = HashSet::new();
    let mut last = 0;
    for (n, peer) in &mut left {
        let grant = peer.reply().unwrap();
        let token = grant["parameters"]["token"].as_u64().unwrap_or_else(|| panic!("{grant}"));
        assert!(token > last && tokens.insert(token));
        last = token;
        assert_eq!(grant["parameters"]["owner"]["pid"], owners.pids[*n]);
        let confirm = json!({ "tag": format!("{:032x}", *n as u128 + 1) });
        assert!(peer.call("Confirm", &confirm).unwrap().get("error").is_none());
        let release: Value = json!({ "key": "x", "owner_fd": 0 });
        let pidfd = Pidfd::open(owners.pids[*n]).unwrap();
        peer.send("Release", &release, false, Some(&pidfd)).unwrap();
        let released = peer.reply().unwrap();
        assert!(released.get("error").is_none(), "{released}");
    }
    wait_until("all are drained", || world.held("x") == 0);
    world.until_idle();
}

#[test]
fn clients_beyond_the_descriptors_are_refused_and_the_others_go_on() {
    let world = World::new();
    let few = world.sh("ulimit -n 100; exec canal daemon").spawn();
    wait_until("the daemon answers", || world.look().is_some());
    let holder = world.holder(&["-k", "x"]);
    let mut clients: Vec<_> =
        (0..150).map(|_| world.canal(["run", "-k", "x", "--", "true"]).spawn()).collect();
    let mut refused = 0;
    let mut rest = Vec::new();
    // Refused clients end at once; the others wait for the holder.
    wait_until("some are refused", || {
        clients.iter_mut().map(Proc::has_ended).filter(|ended| *ended).count() > 10
    });
    for mut client in clients {
        if client.has_ended() {
            let ended = client.end().code(125);
            assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
            // Over an engine a request takes one more descriptor until it is in the log.
            let why = ["reached its limit on connections", "Too many open files"];
            let why = &why[..if backend::is_engine() { 2 } else { 1 }];
            assert!(why.iter().any(|why| ended.stderr.contains(why)), "{ended:?}");
            refused += 1;
        } else {
            rest.push(client);
        }
    }
    holder.finish().code(0);
    let ended: Vec<_> = rest.into_iter().map(Proc::end).collect();
    let ran = ended.iter().filter(|e| e.code == Some(0)).count();
    refused += ended.iter().filter(|e| e.code == Some(125)).count();
    assert_eq!(ran + refused, 150, "{ended:?}");
    assert!(ran > 10 && refused > 10, "{ran} ran, {refused} were refused");
    assert_eq!(world.daemon_pid(), few.pid(), "the daemon lives on");
    world.until_idle();
}

#[test]
fn the_limit_of_waiters_is_an_error_that_names_the_limit() {
    // The limit applies to each daemon separately.
    let world = World::new().on_one_host();
    let config = "[limits]\nwaiters_per_user = 3\n";
    world.configure(config);
    let holder = world.holder(&["-k", "x"]);
    let waiters = [(); 3].map(|()| world.waiter("x", &[], &["true"]));
    let fourth = world.canal(["run", "-k", "x", "--", "true"]).end().code(125);
    assert!(fourth.stderr.starts_with("canal: "), "{fourth:?}");
    assert!(fourth.stderr.contains('3'), "{fourth:?}");
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    world.canal(["run", "-k", "y", "--", "true"]).end().code(0);
    holder.finish();
    for waiter in waiters {
        waiter.end().code(0);
    }
}
