//! Nodes in separate networks, with links that are cut and mended while a command runs.
//!
//! The client and each node's server have a network namespace. The namespaces belong to processes
//! and have no names in /run/netns, so none is left when the test ends. The daemons are also
//! reached from outside, so that the test sees the holds of a node that is cut off.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::nodes::leader::until;
use crate::nodes::run::{NAMES, Nodes, TTL};
use crate::ssh::{Server, Ssh, Sshd};
use crate::world::World;
use crate::world::process::{
    Cmd, Proc, alive, in_time, installed_or_skip, root_or_skip, skipped, wait_until,
};

const HOSTS: [&str; 3] = ["web1", "web2", "web3"];

/// The processes on the client's machine. Fields are dropped in this order.
struct Network<'w> {
    servers: Vec<Sshd>,
    ssh: Ssh<'w>,
    client: Proc,
    machines: Vec<Proc>,
    nodes: &'w Nodes,
}

/// How a link is cut.
#[derive(Clone, Copy)]
enum Cut {
    /// Nothing passes.
    BothWays,
    /// The node receives the client's messages, and its answers are lost.
    Answers,
}

/// Whether this machine lets the test create networks. If not, prints so. In CI that is a failure
/// only where it could work: the tests are root with both capabilities, as on a dedicated runner.
/// In a container without them it cannot work.
fn networks_or_skip(world: &World, what: &str) -> bool {
    if !root_or_skip(what) || !installed_or_skip("ip", what) || !installed_or_skip("nsenter", what)
    {
        return false;
    }
    let script = "ip link add test-a type veth peer name test-b && ip link set test-a up";
    let tried = world.program("unshare", ["-n", "sh", "-c", script]).end();
    if tried.code == Some(0) {
        return true;
    }
    skipped(&format!("no network namespaces here: {what}: {}", tried.stderr.trim()));
    false
}

/// A process in a new network namespace.
fn machine(world: &World) -> Proc {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let proc = world.program("unshare", ["-n", "sleep", "infinity"]).spawn();
    let network = || fs::read_link(format!("/proc/{}/ns/net", proc.pid()));
    wait_until("it has a network of its own", || network().is_ok_and(|network| network != own));
    proc
}

impl<'w> Network<'w> {
    /// Three machines, each with a link to the client's.
    fn new(nodes: &'w Nodes, what: &str) -> Option<Self> {
        let here = &nodes.here;
        if !networks_or_skip(here, what) {
            return None;
        }
        let ssh = Ssh::new(here, what)?;
        let client = machine(here);
        let machines: Vec<Proc> = nodes.nodes.iter().map(|_| machine(here)).collect();
        let mut network = Self { servers: Vec::new(), ssh, client, machines, nodes };
        network.ip(&network.client, "link set lo up");
        for (node, host) in HOSTS.iter().enumerate() {
            let (machine, client) = (&network.machines[node], &network.client);
            let link =
                format!("link add to{node} type veth peer name eth0 netns {}", machine.pid());
            network.ip(client, &link);
            network.ip(client, &format!("addr add 10.77.{node}.1/24 dev to{node}"));
            network.ip(client, &format!("link set to{node} up"));
            network.ip(machine, &format!("addr add 10.77.{node}.2/24 dev eth0"));
            network.ip(machine, "link set lo up");
            network.ip(machine, "link set eth0 up");
            let server = Server {
                address: &format!("10.77.{node}.2"),
                network_of: Some(machine.pid()),
                ..Ssh::server(host, &nodes.nodes[node])
            };
            let server = network.ssh.serve(&server);
            network.servers.push(server);
        }
        // Meets the nodes, and waits until they grant.
        let on = HOSTS.map(|host| format!("ssh:{host}")).join(",");
        let words = ["run", "--on", &on, "--ttl", "10s", "-k", "x", "--", "true"];
        // For a node that was never met, ssh has 10 s to connect.
        wait_until("the nodes are met", || network.canal(&words).end().code == Some(0));
        Some(network)
    }

    #[track_caller]
    fn ip(&self, machine: &Proc, words: &str) {
        let pid = machine.pid_text();
        let args = ["-t", &pid, "-n", "ip"].into_iter().chain(words.split(' '));
        self.nodes.here.program("nsenter", args).end().code(0);
    }

    /// `canal ARGS` on the client's machine.
    fn canal(&self, args: &[&str]) -> Cmd<'w> {
        let pid = self.client.pid_text();
        let canal = crate::world::canal().to_str().unwrap();
        let words = ["-t", &pid, "-n", canal].into_iter().chain(args.iter().copied());
        self.ssh.with(self.nodes.here.program("nsenter", words))
    }

    /// Starts a command over all nodes that ends with its standard input, and waits until it runs.
    /// Returns also its process.
    #[track_caller]
    fn start(&self, ttl: Duration, require: &str) -> (Proc, i32) {
        let script = "echo $$ > started.tmp; mv started.tmp started; exec cat";
        let _ = fs::remove_file(self.nodes.here.path("work").join("started"));
        let on = HOSTS.map(|host| format!("ssh:{host}")).join(",");
        let ttl = format!("{}s", ttl.as_secs());
        let words = ["run", "--on", &on, "--require", require, "--ttl", &ttl, "-k", "x", "--"];
        let words = [&words[..], &["sh", "-c", script]].concat();
        let run = self.canal(&words).stdin(Stdio::piped()).spawn();
        let started = || self.nodes.here.read("started");
        wait_until("the command runs", || !started().is_empty());
        (run, started().trim().parse().unwrap())
    }

    #[track_caller]
    fn cut(&self, node: usize, how: Cut) {
        let machine = &self.machines[node];
        match how {
            Cut::BothWays => self.ip(machine, "link set eth0 down"),
            Cut::Answers => self.ip(machine, &format!("route add blackhole 10.77.{node}.1")),
        }
    }

    #[track_caller]
    fn mend(&self, node: usize, how: Cut) {
        let machine = &self.machines[node];
        match how {
            Cut::BothWays => self.ip(machine, "link set eth0 up"),
            Cut::Answers => self.ip(machine, &format!("route del blackhole 10.77.{node}.1")),
        }
    }
}

/// How often these words occur in the output of a command so far.
fn times(run: &Proc, words: &str) -> usize {
    run.stderr().matches(words).count()
}

#[test]
fn a_majority_outlives_every_cut_of_one_link() {
    std::thread::scope(|scope| {
        for (node, how) in [(0, Cut::BothWays), (1, Cut::Answers), (2, Cut::BothWays)] {
            scope.spawn(move || in_time(TTL, |ttl| a_majority_outlives_a_cut(node, how, ttl)));
        }
    });
}

fn a_majority_outlives_a_cut(node: usize, how: Cut, ttl: Duration) -> Option<()> {
    let nodes = Nodes::new();
    let what = "a majority and a link that is cut";
    let Some(network) = Network::new(&nodes, what) else { return Some(()) };
    let (run, command) = network.start(ttl, "majority");
    // On a machine that is too slow to renew the other nodes' leases within this TTL, the command
    // ends.
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        wait_until(what, || !alive(command) || is_so());
        alive(command).then_some(())
    };
    until("the third holds it, too", &|| nodes.held() == [1, 1, 1])?;
    let host = HOSTS[node];
    let [away, back] =
        ["has not answered since", "is answering"].map(|what| format!("ssh:{host} {what}"));
    let said = (times(&run, &away), times(&run, &back));
    network.cut(node, how);
    let cut_until = Instant::now() + ttl + ttl / 2;
    until("it is said to be away", &|| times(&run, &away) > said.0)?;
    // The node receives nothing, and its part ends by its own clock.
    if matches!(how, Cut::BothWays) {
        until("its lease has ended", &|| nodes.nodes[node].held("x") == 0)?;
    }
    while Instant::now() < cut_until {
        if !alive(command) || nodes.held().iter().sum::<u64>() < 2 {
            return None;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    network.mend(node, how);
    until("it is said to answer", &|| times(&run, &back) > said.1)?;
    until("it holds the lock again", &|| nodes.held() == [1, 1, 1])?;
    if run.stderr().contains("of 2 nodes") {
        return None;
    }
    run.finish().code(0);
    nodes.until_free();
    Some(())
}

/// Starts another request for the same lock, over the same nodes by other ways. Its command notes
/// whether the first command is alive.
fn contend(nodes: &Nodes, first: i32) -> Proc {
    let script = format!(
        "grep -q '^State:.[RSDT]' /proc/{first}/status 2>>errors && echo both >>overlaps; \
         echo done >contended"
    );
    let on = NAMES.join(",");
    let words = ["run", "--on", &on, "--ttl", "10s", "-k", "x", "--", "sh", "-c", &script];
    nodes.here.canal(words).spawn()
}

#[test]
fn a_cut_ends_the_command_in_time_where_too_few_nodes_are_left() {
    std::thread::scope(|scope| {
        for (require, cut, how) in [
            ("all", &[0][..], Cut::BothWays),
            ("majority", &[0, 1], Cut::Answers),
            ("majority", &[0, 1, 2], Cut::BothWays),
        ] {
            scope.spawn(move || a_cut_ends_the_command_in_time(require, cut, how));
        }
    });
}

#[track_caller]
fn a_cut_ends_the_command_in_time(require: &str, cut: &[usize], how: Cut) {
    let nodes = Nodes::new();
    let what = "links that are cut, and a command that must end";
    let Some(network) = Network::new(&nodes, what) else { return };
    let (run, command) = network.start(TTL, require);
    let contender = contend(&nodes, command);
    let waiting = || nodes.nodes.iter().map(|node| node.key("x").waiting).sum::<u64>();
    wait_until("another request waits", || waiting() > 0);
    cut.iter().for_each(|node| network.cut(*node, how));
    wait_until("canal ends the command", || !alive(command));
    let ended = run.end().code(122);
    assert!(ended.stderr.contains("lost `x`"), "{}", ended.stderr);
    let named = format!("ssh:{}", HOSTS[cut[0]]);
    assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    // The nodes that are cut off become free by their own clocks.
    contender.end().code(0);
    assert_eq!(nodes.here.read("contended"), "done\n");
    assert_eq!(nodes.here.read("overlaps"), "", "{require}: two commands ran at once");
    nodes.until_free();
}

/// Each link loses everything that is sent in short periods, one after the other, which add up to
/// about half of the time.
#[test]
fn links_that_lose_packets_never_let_two_commands_run() {
    let nodes = Nodes::new();
    let Some(network) = Network::new(&nodes, "links that lose packets") else { return };
    let (run, command) = network.start(TTL, "all");
    let contender = contend(&nodes, command);
    let waiting = || nodes.nodes.iter().map(|node| node.key("x").waiting).sum::<u64>();
    wait_until("another request waits", || waiting() > 0);
    let how = |node| if node == 0 { Cut::BothWays } else { Cut::Answers };
    let mut lossy = [false; 3];
    // Some leases end meanwhile, and some are renewed.
    let until = Instant::now() + 3 * TTL;
    while Instant::now() < until && alive(command) {
        let node = fastrand::usize(..3);
        match lossy[node] {
            true => network.mend(node, how(node)),
            false => network.cut(node, how(node)),
        }
        lossy[node] = !lossy[node];
        std::thread::sleep(Duration::from_millis(fastrand::u64(20..400)));
    }
    (0..3).filter(|node| lossy[*node]).for_each(|node| network.mend(node, how(node)));
    let ended = run.finish();
    assert!(matches!(ended.code, Some(0 | 122)), "{ended:?}");
    contender.end().code(0);
    assert_eq!(nodes.here.read("contended"), "done\n");
    assert_eq!(nodes.here.read("overlaps"), "", "two commands ran at once");
    nodes.until_free();
}

#[test]
fn a_link_that_is_mended_before_the_deadline_costs_a_command_nothing() {
    // Half of the TTL must be enough to notice the cut and to connect again.
    in_time(4 * TTL, mended_in_time);
}

fn mended_in_time(ttl: Duration) -> Option<()> {
    let nodes = Nodes::new();
    let Some(network) = Network::new(&nodes, "a link that is mended in time") else {
        return Some(());
    };
    let (run, command) = network.start(ttl, "all");
    let (away, back) = (
        format!("ssh:{} has not answered since", HOSTS[0]),
        format!("ssh:{} is answering", HOSTS[0]),
    );
    let cut_at = Instant::now();
    network.cut(0, Cut::BothWays);
    for (what, words) in [("it is said to be away", away), ("it is said to answer", back)] {
        wait_until(what, || !alive(command) || times(&run, &words) > 0);
        network.mend(0, Cut::BothWays);
    }
    // It continues past the earlier deadline.
    while cut_at.elapsed() < ttl + ttl / 10 {
        if !alive(command) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(nodes.held(), [1, 1, 1]);
    run.finish().code(0);
    nodes.until_free();
    Some(())
}

/// The old bridge of the request would live for its TTL, which is longer than the test.
#[test]
fn what_a_request_left_behind_a_cut_is_not_in_its_way() {
    let nodes = Nodes::new();
    let Some(network) = Network::new(&nodes, "a request whose link is cut and mended") else {
        return;
    };
    let node = &nodes.nodes[1];
    let job = node.canal(["run", "-k", "x", "--", "cat"]).stdin(Stdio::piped()).spawn();
    wait_until("the job runs", || node.held("x") == 1);
    let on = HOSTS.map(|host| format!("ssh:{host}")).join(",");
    let words = ["run", "--on", &on, "--ttl", "30m", "-k", "x", "--", "true"];
    let request = network.canal(&words).spawn();
    wait_until("it waits", || node.key("x").waiting == 1);
    network.cut(1, Cut::BothWays);
    let said = |words: &str| times(&request, &format!("ssh:{} {words}", HOSTS[1])) > 0;
    wait_until("it has given the connection up", || said("has not answered since"));
    network.mend(1, Cut::BothWays);
    wait_until("it has another", || said("is answering again"));
    job.finish().code(0);
    request.end().code(0);
    nodes.until_free();
}

#[test]
fn who_leads_is_known_as_long_as_a_majority_can_be_reached() {
    let nodes = Nodes::new();
    let Some(network) = Network::new(&nodes, "a watcher of a leader whose links are cut") else {
        return;
    };
    let on = HOSTS.map(|host| format!("ssh:{host}")).join(",");
    // The candidate asks the nodes by other ways.
    let words = ["--require", "majority", "--ttl", "1m", "-k", "x", "--note", "one", "--"];
    let leads = ["run", "--on", "@all"].iter().chain(&words).chain(&["sleep", "600"]);
    let candidate = nodes.here.canal(leads).spawn();
    let watcher = network.canal(&["leader", "x", "--on", &on, "--watch"]).spawn();
    until(&watcher, "one");
    network.cut(2, Cut::BothWays);
    let away =
        |node: usize| watcher.stderr().contains(&format!("ssh:{} is unreachable", HOSTS[node]));
    wait_until("the third is said to be away", || away(2));
    network.cut(1, Cut::Answers);
    until(&watcher, "?");
    network.mend(1, Cut::Answers);
    network.mend(2, Cut::BothWays);
    until(&watcher, "one");
    candidate.signal(Signal::SIGTERM);
    until(&watcher, "-");
    candidate.end();
}
