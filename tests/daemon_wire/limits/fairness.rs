//! Users take turns: however much one user asks, the daemon serves other users' calls in between.
//!
//! Other users are processes of this program that run one ignored test under their uid.
#![expect(clippy::print_stdout, reason = "other users tell the test by their output")]

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use canal::sys::process::{RunState, run_state};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::isolation::for_every_user;
use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Peer, call, mutex};

/// How many calls of a connection the daemon serves before it turns to the next connection. The
/// daemon uses the same number.
const CALLS_AHEAD_MAX: usize = 256;

/// How many connections the flooding user has.
const FLOODING: usize = 16;

/// How many times the others ask during a flood.
const CALLS: u128 = 20;

/// The flooding user, and a user with a larger uid, because the daemon serves users in the order of
/// their uids.
const FLOODER: u32 = 12345;
const BYSTANDER: u32 = 54321;

/// The variable that names the part of the other user.
const ROLE: &str = "TEST_FAIR_ROLE";

/// A process of another user.
struct Other {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Other {
    fn start(daemon: &Daemon, uid: u32, role: &str) -> Self {
        let mut command = Command::new(for_every_user(&std::env::current_exe().unwrap()));
        command.args([
            "--ignored",
            "--exact",
            "--nocapture",
            "daemon_wire::limits::fairness::as_another_user",
        ]);
        command.env(ROLE, role).env("TEST_FAIR_SOCKET", daemon.socket()).uid(uid).gid(uid);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    /// Waits until the process prints `what`. Returns the rest of that line.
    #[track_caller]
    fn until(&mut self, what: &str) -> String {
        for line in self.stdout.by_ref().lines() {
            // The first line begins with the output of the test harness.
            if let Some((_, rest)) = line.unwrap().split_once(what) {
                return rest.trim().to_owned();
            }
        }
        panic!("it ended before it said `{what}`");
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"\n").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon that other users can reach; `None` if this user cannot become another user.
fn shared() -> Option<Daemon> {
    if !nix::unistd::geteuid().is_root() {
        crate::isolation::skipped("only root can ask as other users");
        return None;
    }
    let daemon = Daemon::start();
    let folder = daemon.path("");
    for (path, mode) in
        [(folder.parent().unwrap(), 0o711), (&folder, 0o711), (&daemon.socket(), 0o666)]
    {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    Some(daemon)
}

fn token(granted: &Value) -> u64 {
    granted["token"].as_u64().unwrap()
}

/// The daemon is stopped while all users call, so it finds all calls at once. The tokens show the
/// order of its grants.
#[test]
fn calls_of_other_users_wait_for_at_most_one_connection_of_a_flooding_user() {
    const OTHERS: usize = 10;
    let Some(daemon) = shared() else { return };
    let mut flooder = Other::start(&daemon, FLOODER, "queue");
    let mut bystander = Other::start(&daemon, BYSTANDER, "queue one");
    flooder.until("connected");
    bystander.until("connected");
    let mut others: Vec<Peer> = (0..OTHERS).map(|_| daemon.connect()).collect();
    let first = token(&others[0].call("Acquire", mutex(0, "first")));
    others[0].call("Release", json!({ "all": true }));
    for other in &mut others {
        other.call("org.varlink.service.GetInfo", json!({}));
    }
    daemon.signal(Signal::SIGSTOP);
    wait_until("it is stopped", || run_state(daemon.pid()) == RunState::Stopped);
    flooder.go_on();
    flooder.until("queued");
    bystander.go_on();
    bystander.until("queued");
    for (n, other) in (1..).zip(&mut others) {
        other.send("Acquire", mutex(n, &format!("other/{n}")));
    }
    daemon.signal(Signal::SIGCONT);
    let granted: Vec<u64> = others.iter_mut().map(|it| token(&it.returned("Acquire"))).collect();
    let bystander: u64 = bystander.until("token").parse().unwrap();
    for (n, granted) in (1..).zip(granted) {
        let before = granted - first;
        assert!(before <= n * (CALLS_AHEAD_MAX as u64 + 2), "{before} grants before the {n}th");
    }
    let before = bystander - first;
    assert!(before <= CALLS_AHEAD_MAX as u64 + 3, "{before} grants before the bystander's");
    // The daemon really had that many calls to serve.
    let mut tag = 1_000;
    wait_until("the flood was served", || {
        tag += 1;
        let granted = token(&daemon.connect().call("Acquire", mutex(tag, &format!("end/{tag}"))));
        granted - first > (FLOODING * CALLS_AHEAD_MAX) as u64
    });
}

#[test]
fn a_flooding_user_does_not_keep_other_users_from_being_answered() {
    let Some(daemon) = shared() else { return };
    let mut flooder = Other::start(&daemon, FLOODER, "flood");
    flooder.until("flooding");
    let mut bystander = Other::start(&daemon, BYSTANDER, "ask");
    let mut other = daemon.connect();
    for tag in 0..CALLS {
        other.call("Acquire", mutex(tag, "other"));
        other.call("Release", json!({ "key": "other" }));
        daemon.connect().call("Status", json!({ "key": "other" }));
    }
    assert_eq!(bystander.until("answered"), CALLS.to_string());
    // The flood never stopped.
    flooder.go_on();
    let (before, after) = (flooder.until("so far"), flooder.until("later"));
    assert_ne!(before, after);
}

/// Plays the part of the other user. This is not a separate test.
#[test]
#[ignore = "the part of another user in the tests above, which start it"]
fn as_another_user() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket = std::env::var_os("TEST_FAIR_SOCKET").unwrap();
    let socket = Path::new(&socket);
    match role.as_str() {
        "queue" => queue(socket, FLOODING, 2 * CALLS_AHEAD_MAX),
        "queue one" => queue(socket, 1, 1),
        "flood" => flood(socket),
        _ => ask(socket),
    }
}

fn wait_for_a_line() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Connects, and later sends `calls` on each connection without waiting for replies.
fn queue(socket: &Path, connections: usize, calls: usize) {
    let mut peers: Vec<Peer> = (0..connections).map(|_| Peer::connect(socket).unwrap()).collect();
    for peer in &mut peers {
        peer.call("org.varlink.service.GetInfo", json!({}));
    }
    println!("connected");
    wait_for_a_line();
    let uid = nix::unistd::geteuid();
    for (n, peer) in peers.iter_mut().enumerate() {
        let tag = |at: usize| u128::from(uid.as_raw()) << 64 | (n << 32 | at) as u128;
        let acquire = |at| call("Acquire", mutex(tag(at), &format!("{uid}/{n}")), json!({}));
        let bytes: Vec<u8> = (0..calls).flat_map(acquire).collect();
        // The daemon accepts only as many as a socket can queue.
        assert!(
            peer.send_until_full(&bytes) >= bytes.len().min(CALLS_AHEAD_MAX * bytes.len() / calls)
        );
    }
    println!("queued");
    println!("token {}", token(&peers[0].returned("Acquire")));
    wait_for_a_line();
}

/// Calls endlessly on many connections.
fn flood(socket: &Path) {
    let answers = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..FLOODING {
            let answers = &answers;
            scope.spawn(move || {
                let mut peer = Peer::connect(socket).unwrap();
                let key = format!("flood/{n}");
                let mut bytes = call("Acquire", mutex(1 << 100 | n as u128, &key), json!({}));
                bytes.extend(call("Release", json!({ "key": key }), json!({})));
                bytes.extend(call("Status", json!({ "key": key }), json!({})));
                bytes.extend(call("Why", json!({ "session": "s1" }), json!({})));
                let bytes = bytes.repeat(50);
                // Until the test ends this process.
                loop {
                    peer.raw(&bytes).unwrap();
                    for _ in 0..200 {
                        peer.reply().unwrap();
                    }
                    answers.fetch_add(200, Ordering::Relaxed);
                }
            });
        }
        let count = || answers.load(Ordering::Relaxed);
        let more_than = |before| wait_until("more is answered", || count() > before);
        more_than(FLOODING * 200);
        println!("flooding");
        wait_for_a_line();
        let before = count();
        println!("so far {before}");
        more_than(before);
        println!("later {}", count());
    });
}

/// Calls repeatedly, each time after the reply.
fn ask(socket: &Path) {
    let mut peer = Peer::connect(socket).unwrap();
    for tag in 0..CALLS {
        peer.call("Acquire", mutex(2 << 100 | tag, "bystander"));
        peer.call("Release", json!({ "key": "bystander" }));
        Peer::connect(socket).unwrap().call("Status", json!({ "key": "bystander" }));
    }
    println!("answered {CALLS}");
}
