//! Nodes behind a real OpenSSH server, over the user's own ssh.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, chown};

use crate::nodes::run::{Nodes, PAST_TTL, coordinator, parent, rests};
use crate::ssh::{Server, Ssh, Sshd, sshd_or_skip};
use crate::world::executable::executable;
use crate::world::process::{Cmd, Ended, Proc, alive, children, root_or_skip, signal, wait_until};
use crate::world::{World, canal};

const HOSTS: [&str; 3] = ["web1", "web2", "web3"];

/// Starts a server for each node.
fn serve(nodes: &Nodes, ssh: &Ssh<'_>) -> [Sshd; 3] {
    [0, 1, 2].map(|node| ssh.serve(&Ssh::server(HOSTS[node], &nodes.nodes[node])))
}

/// `canal run --on ON --ttl 10s ARGS`.
fn run<'a>(nodes: &'a Nodes, ssh: &Ssh<'_>, on: &str, args: &[&str]) -> Cmd<'a> {
    let words = ["run", "--on", on, "--ttl", "10s"];
    ssh.with(nodes.here.canal(words.iter().chain(args)))
}

/// Starts a command that ends with its standard input, and waits until it runs. Returns also its
/// process.
#[track_caller]
fn start(nodes: &Nodes, ssh: &Ssh<'_>, on: &str) -> (Proc, i32) {
    let script = "echo $$ > started.tmp; mv started.tmp started; exec cat";
    let words = ["-k", "x", "--", "sh", "-c", script];
    let run = run(nodes, ssh, on, &words).stdin(Stdio::piped()).spawn();
    wait_until("the command runs", || !nodes.here.read("started").is_empty());
    (run, nodes.here.read("started").trim().parse().unwrap())
}

/// The bridges that run at a node.
fn bridges(node: &World) -> Vec<i32> {
    let is_bridge = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"bridge")
    };
    node.processes().into_iter().filter(is_bridge).collect()
}

/// Waits until no node holds anything or runs a bridge.
#[track_caller]
fn until_nothing_is_left(nodes: &Nodes) {
    nodes.until_free();
    wait_until("no bridge is left", || nodes.nodes.iter().all(|node| bridges(node).is_empty()));
}

/// Checks that a request failed with this message, and that nothing is left.
#[track_caller]
fn failed(nodes: &Nodes, ended: Ended, message: &str, hint: &str) {
    let ended = ended.code(125);
    assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
    assert!(ended.stderr.contains(hint), "{hint}: {}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    until_nothing_is_left(nodes);
}

#[test]
fn a_run_and_a_waiter_over_three_servers_rest() {
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, "wake-ups over ssh") else { return };
    let _servers = serve(&nodes, &ssh);
    let minute = ["run", "--on", "ssh:web1,ssh:web2,ssh:web3", "--ttl", "1m", "-k", "x", "--"];
    let start = |command: &[&str]| {
        let words = minute.iter().chain(command);
        ssh.with(nodes.here.canal(words)).stdin(Stdio::piped()).spawn()
    };
    let holder = start(&["cat"]);
    wait_until("it holds the lock", || nodes.held() == [1, 1, 1]);
    let waiter = start(&["true"]);
    nodes.until_waiting(1);
    std::thread::scope(|scope| {
        for run in [&holder, &waiter] {
            scope.spawn(move || rests(run, 6));
        }
    });
    holder.finish().code(0);
    waiter.end().code(0);
    until_nothing_is_left(&nodes);
}

#[test]
fn a_lock_is_held_over_three_servers_and_survives_the_end_of_every_connection() {
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, "a lock over three machines") else { return };
    let servers = serve(&nodes, &ssh);
    let on = "ssh:web1,ssh:web2,ssh:web3";
    let env = run(&nodes, &ssh, on, &["-k", "x", "--", "env"]).end().code(0);
    let names = env.stdout.lines().find_map(|line| line.strip_prefix("CANAL_NODES=")).unwrap();
    let mut names: Vec<&str> = names.split(',').collect();
    names.sort_unstable();
    assert_eq!(names, ["ssh:web1", "ssh:web2", "ssh:web3"]);
    // Each node is met for the first time, and the message names it with its user.
    assert!(env.stderr.contains("ssh:web3 is the "), "{}", env.stderr);
    until_nothing_is_left(&nodes);

    let (holder, command) = start(&nodes, &ssh, on);
    assert_eq!(nodes.held(), [1, 1, 1]);
    // With -n, a machine that is out of reach for 5 s is a failure.
    wait_until("another request is refused", || {
        let busy = run(&nodes, &ssh, on, &["-n", "-k", "x", "--", "true"]).end();
        assert!(matches!(busy.code, Some(75 | 125)), "{busy:?}");
        busy.code == Some(75) && busy.stderr.contains("is full")
    });
    let renewals = || {
        nodes.nodes.each_ref().map(|node| {
            let lease = node.key("x").holders.into_iter().next().and_then(|holder| holder.lease);
            lease.map_or(0, |lease| lease.renewals)
        })
    };
    // Each connection must have served a renewal before all connections end again.
    let until_renewed = || {
        let before = renewals();
        wait_until("each lease is renewed", || {
            !alive(command) || renewals().iter().zip(&before).all(|(now, before)| now > before)
        });
    };

    // All ssh processes die, then all processes of the servers.
    until_renewed();
    let all_bridges = || nodes.nodes.iter().flat_map(bridges).collect::<Vec<i32>>();
    let before = all_bridges();
    for ssh in children(coordinator(parent(command), command).unwrap()) {
        signal(ssh, Signal::SIGKILL);
    }
    wait_until("there are other bridges", || {
        let now = all_bridges();
        now.len() == 3 && !now.iter().any(|bridge| before.contains(bridge))
    });
    until_renewed();
    for bridge in all_bridges() {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(bridge), Signal::SIGKILL);
    }
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "the command keeps running");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(nodes.held(), [1, 1, 1]);
    holder.finish().code(0);
    until_nothing_is_left(&nodes);
    drop(servers);
}

#[test]
fn the_jump_hosts_and_shared_connections_of_the_user_are_used_and_none_is_made() {
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, "the configuration of the user's ssh") else { return };
    let servers = serve(&nodes, &ssh);
    let accepted = |server: usize| servers[server].log().matches("Accepted publickey").count();
    let quick = |on: &str| run(&nodes, &ssh, on, &["-k", "x", "--", "true"]).end().code(0);
    ssh.configure("Host web2\n    ProxyJump web1\n");
    quick("ssh:web2");
    assert!(accepted(0) > 0, "{}", servers[0].log());

    let socket = nodes.here.path("ssh/master");
    let path = socket.display();
    let shared = format!(
        "Host web3\n    ControlMaster auto\n    ControlPersist 60\n    ControlPath \"{path}\"\n"
    );
    ssh.configure(&shared);
    quick("ssh:web3");
    assert!(!socket.exists(), "it would outlive the command");
    let earlier = accepted(2);
    let master = ssh.with(nodes.here.sh("exec ssh -N -o ControlPersist=no web3")).spawn();
    // Its server logs this a moment later.
    wait_until("there is a connection to share", || socket.exists() && accepted(2) > earlier);
    let before = accepted(2);
    quick("ssh:web3");
    assert_eq!(accepted(2), before, "{}", servers[2].log());

    // The command continues when the shared connection ends.
    let (holder, command) = start(&nodes, &ssh, "ssh:web3");
    master.kill();
    wait_until("there is another connection", || accepted(2) > before);
    let until = Instant::now() + PAST_TTL;
    while Instant::now() < until {
        assert!(alive(command), "the command keeps running");
        std::thread::sleep(Duration::from_millis(200));
    }
    holder.finish().code(0);
    until_nothing_is_left(&nodes);
}

#[test]
fn a_restricted_key_is_good_for_leases_under_its_keys_and_for_nothing_else() {
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, "a restricted key") else { return };
    // The server's PATH leads to it.
    let restriction = "command=\"canal bridge --leases --keys deploy/\",restrict ".to_owned();
    let server = Server { restriction, ..Ssh::server("web1", &nodes.nodes[0]) };
    let _server = ssh.serve(&server);
    for key in ["deploy/web", "deploy"] {
        run(&nodes, &ssh, "ssh:web1", &["-k", key, "--", "true"]).end().code(0);
    }
    for (lock, key) in [("-k", "db"), ("-k", "deployment"), ("--write", "db")] {
        let ended = run(&nodes, &ssh, "ssh:web1", &[lock, key, "--", "true"]).end();
        let message =
            "ssh:web1: this connection is restricted to node leases on keys under `deploy`";
        failed(&nodes, ended, message, "");
    }
    // An allowed key in the same request does not help.
    let words = ["-k", "deploy/web", "-k", "db", "--", "true"];
    failed(&nodes, run(&nodes, &ssh, "ssh:web1", &words).end(), "is restricted to node leases", "");

    // The bridge refuses every other call over the connection.
    let _holder = nodes.nodes[0].holder(&["-k", "db"]);
    for (method, parameters) in [
        ("Status", "{}"),
        (
            "Acquire",
            "{\"tag\":\"0123456789abcdef0123456789abcdef\",\"command\":\"x\",\"items\":[{\"key\":\"deploy/x\"}]}",
        ),
        ("Release", "{\"key\":\"db\",\"token\":1}"),
        ("Resize", "{\"key\":\"db\",\"slots\":7}"),
        ("Stop", "{}"),
        ("Graph", "{}"),
    ] {
        let call = format!("{{\"method\":\"io.canal.Lock.{method}\",\"parameters\":{parameters}}}");
        let sent = format!("printf '{call}\\0' | ssh web1");
        let out = ssh.with(nodes.here.sh(&sent)).end().code(0).stdout;
        assert!(out.contains("io.canal.Lock.Denied"), "{method}: {out}");
        assert!(!out.contains("\"db\""), "{method}: {out}");
    }
    assert_eq!(nodes.nodes[0].key("db").held, 1);
    // The bridge runs no command that a client names, and allows no terminal and no forwarding.
    let file = nodes.here.path("work/touched");
    ssh.with(nodes.here.sh("ssh web1 touch \"$PWD/touched\" </dev/null")).end().code(0);
    assert!(!file.exists());
    let forward = "ssh -o ExitOnForwardFailure=yes -R 0:127.0.0.1:22 web1 </dev/null";
    let ended = ssh.with(nodes.here.sh(forward)).end();
    assert_ne!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn what_a_server_refuses_is_said_with_what_to_do_and_leaves_nothing() {
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, "servers that refuse") else { return };
    let node = &nodes.nodes[1];
    let plain = |name| Ssh::server(name, node);
    // Programs with the name of canal, and a folder without one.
    let programs = |name: &str, script: Option<&str>| {
        let dir = nodes.here.path(name);
        fs::create_dir(&dir).unwrap();
        if let Some(script) = script {
            executable(dir.join("canal"), &format!("#!/bin/sh\n{script}\n"));
        }
        let path = format!("{}:/usr/bin:/bin", dir.display());
        // This must not find a `canal` of the machine that runs the tests.
        let path = if script.is_some() { path } else { dir.display().to_string() };
        vec![("PATH", path.into())]
    };
    let first = "echo 'canal: unknown command `bridge`' >&2; exit 125";
    let second = "printf '{\"error\":\"org.varlink.service.InterfaceNotFound\",\"parameters\":\
                  {\"interface\":\"io.canal.Nodes\"}}\\0'; cat >/dev/null";
    let servers = [
        Server {
            options: "PubkeyAuthentication no\nPasswordAuthentication yes",
            ..plain("password")
        },
        Server { options: "AuthorizedKeysFile none", ..plain("denied") },
        plain("changed"),
        plain("unknown"),
        Server { environment: programs("none", None), ..plain("none") },
        Server { environment: programs("first", Some(first)), ..plain("first") },
        Server { environment: programs("second", Some(second)), ..plain("second") },
        Server { options: "ForceCommand echo welcome; cat", ..plain("talks") },
        Server { options: "ForceCommand exit 3", ..plain("closed") },
    ];
    let running = servers.each_ref().map(|server| ssh.serve(server));
    ssh.forget("changed", true);
    ssh.forget("unknown", false);
    for (host, message, hint) in [
        (
            "password",
            "permission denied; it asks for a password, which canal cannot enter",
            "`ssh-copy-id`",
        ),
        ("denied", "permission denied", "work without a prompt"),
        ("changed", "its host key has changed", "ssh-keygen -R changed"),
        ("unknown", "its host key is not known yet", "compare the key that it shows"),
        ("none", "there is no `canal` on that machine", "install canal there"),
        (
            "first",
            "the canal there is older and does not support nodes",
            "install the same version",
        ),
        (
            "second",
            "the canal there is older and does not support nodes",
            "install the same version",
        ),
        ("talks", "expected an answer from canal, but the other side sent", "login scripts"),
        ("closed", "the bridge there ended with code 3", ""),
    ] {
        let on = format!("a,ssh:{host}");
        let ended = run(&nodes, &ssh, &on, &["-k", "x", "--", "true"]).end();
        failed(&nodes, ended, message, hint);
    }
    // No server listens.
    let log = running.map(|server| server.log());
    let ended = run(&nodes, &ssh, "a,ssh:closed", &["-k", "x", "--", "true"]).end();
    failed(&nodes, ended, "ssh: connection refused", "");
    assert!(log[0].contains("Connection from"), "{log:?}");
}

#[test]
fn a_host_key_that_changes_ends_a_request_for_all_at_once_and_none_for_a_majority() {
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, "a host key that changes") else { return };
    let _servers = serve(&nodes, &ssh);
    let on = "ssh:web1,ssh:web2,ssh:web3";
    run(&nodes, &ssh, on, &["-k", "x", "--", "true"]).end().code(0);
    ssh.forget("web2", true);
    let ended = run(&nodes, &ssh, on, &["-k", "x", "--", "true"]).end();
    failed(&nodes, ended, "ssh:web2: its host key has changed", "ssh-keygen -R web2");
    let words = ["--require", "majority", "-k", "x", "--", "true"];
    run(&nodes, &ssh, on, &words).end().code(0);
    until_nothing_is_left(&nodes);
}

#[test]
fn the_set_up_of_the_page_leads_from_nothing_to_a_lock() {
    let (here, node) = (World::new(), World::new());
    let Some(ssh) = Ssh::new(&here, "the set-up of docs/nodes.md") else { return };
    let _server = ssh.serve(&Ssh::server("web1", &node));
    let page = include_str!("../../docs/nodes.md");
    let part = page.split("\n## Set-up\n").nth(1).unwrap();
    let commands = part.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    // Programs find the user's files by HOME, and canal its configuration beside the socket.
    let home = here.path("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::create_dir_all(home.join(".config")).unwrap();
    std::os::unix::fs::symlink(here.runtime(), home.join(".config/canal")).unwrap();
    // A server without passwords admits no new key; it already admits that of the test.
    let copy = "#!/bin/sh\ntest \"$1\" = -i && test -s \"$2\" && exec ssh \"$3\" true\n";
    let bin = here.path("bin");
    fs::create_dir(&bin).unwrap();
    executable(bin.join("ssh-copy-id"), copy);
    let script = format!("set -e; PATH=\"$STAND_INS:$PATH\"\n{commands}");
    let began = Instant::now();
    let followed = ssh.with(here.sh(&script)).env("HOME", &home).env("STAND_INS", &bin).end();
    let followed = followed.code(0);
    assert!(followed.stdout.ends_with("hello\n"), "{}", followed.stdout);
    assert!(!followed.stderr.contains("new node"), "it waited: {}", followed.stderr);
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
}

/// Another user, which has no name on this machine.
const STRANGER: u32 = 12_345;

#[test]
fn a_daemon_of_another_user_is_named_and_is_not_taken_for_ones_own() {
    let what = "a daemon of another user";
    if !root_or_skip(what) || !sshd_or_skip(what) {
        return;
    }
    let nodes = Nodes::new();
    let Some(ssh) = Ssh::new(&nodes.here, what) else { return };
    // Inside the folder of this world, so that processes from there end with it.
    let (program, theirs) = (nodes.here.path("canal"), nodes.here.path("theirs"));
    fs::set_permissions(nodes.here.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    // A descriptor of this process for writing could be inherited by another test's child.
    let copied = std::process::Command::new("cp").arg(canal()).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(theirs.join("canal.toml"), "[nodes]\nlongest_ttl = \"10s\"\n").unwrap();
    for path in [theirs.join("canal.toml"), theirs.clone()] {
        chown(&path, Some(Uid::from_raw(STRANGER)), Some(Gid::from_raw(STRANGER))).unwrap();
    }
    let as_them = |socket: &str| {
        format!(
            "command=\"cd / && CANAL_SOCKET=${socket} exec setpriv --reuid {STRANGER} --regid {STRANGER} \
             --clear-groups \\\"$PROGRAM\\\" bridge\",restrict "
        )
    };
    let mut own = Ssh::server("web1", &nodes.nodes[0]);
    let socket = theirs.join("canal.sock");
    own.environment.push(("PROGRAM", program.into()));
    own.environment.push(("THEIRS", socket.into()));
    let _server = ssh.serve(&Server { restriction: as_them("THEIRS"), ..own });
    let again = || run(&nodes, &ssh, "ssh:web1", &["-w", "100s", "-k", "x", "--", "true"]).end();
    // Its state is new: it grants after 10 s.
    let first = again().code(0);
    let met = format!("ssh:web1 is the daemon of user {STRANGER} at {}", theirs.display());
    assert!(first.stderr.contains(&met), "{}", first.stderr);
    let alone = "it does not share locks with other users' daemons there";
    assert!(first.stderr.contains(alone), "{}", first.stderr);
    let known = again().code(0).stderr;
    assert!(!known.contains(" is the daemon of "), "it is known now: {known}");

    // The same address leads to the daemon of the user that runs the tests.
    ssh.authorize("web1", "");
    let before = format!("(previously the daemon of user {STRANGER}");
    failed(&nodes, again(), "ssh:web1 is now a different daemon: the daemon of ", &before);
    // The address leads to a daemon whose folder belongs to another user.
    ssh.authorize("web1", &as_them("CANAL_SOCKET"));
    let ended = run(&nodes, &ssh, "ssh:web1", &["-n", "-k", "x", "--", "true"]).end();
    failed(&nodes, ended, "canal: ssh:web1: ", "");
}
