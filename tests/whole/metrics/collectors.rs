//! Collectors of all kinds, and what the daemon serves to them.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::servers::free_port::free_port;
use crate::whole::metrics::value;
use crate::world::process::{BOUND, wait_until};
use crate::world::{World, journal_only};

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A world whose daemon serves metrics on this port.
fn world_at(port: u16) -> World {
    let world = World::new();
    world.configure(&format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n"));
    world.status();
    wait_until("metrics are offered", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    world
}

/// Sends a request and returns the whole answer, which is empty if the daemon closed the connection
/// without one.
fn ask(port: u16, request: &[u8]) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(answer).unwrap(),
    }
}

#[test]
fn a_collector_reads_from_a_port_what_the_command_prints() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let port = free_port();
    let world = world_at(port);
    let holder = world.holder(&["-k", "db"]);
    let mut answer = String::new();
    // Within a second the daemon repeats its last figures.
    wait_until("the hold is told", || {
        answer = ask(port, GET.as_bytes());
        value(&answer, "canal_key_held_slots{key=\"db\"}") == Some(1.0)
    });
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let names = |text: &str| -> Vec<String> {
        let kinds = text.lines().filter(|line| line.starts_with("# TYPE"));
        kinds.map(str::to_owned).collect()
    };
    let printed = crate::whole::metrics::metrics(&world);
    assert!(names(&printed).len() > 10, "{printed}");
    assert_eq!(names(body), names(&printed));
    holder.finish();
    let shown = world.canal(["config"]).end().code(0).stdout;
    assert!(shown.contains(&format!("127.0.0.1:{port}")), "{shown}");
    assert_eq!(world.canal(["doctor", "--json"]).end().code(0).json()["problems"], 0);
}

#[test]
fn what_is_no_request_for_metrics_is_refused_and_harms_nobody() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let port = free_port();
    let world = world_at(port);
    let huge =
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(20_000));
    for (request, status) in [
        (GET.replace("GET", "POST").as_str(), "405 Method Not Allowed"),
        (&GET.replace("/metrics", "/"), "404 Not Found"),
        (&GET.replace("localhost", "rebound.example"), "403 Forbidden"),
        (&GET.replace("Host: localhost\r\n", ""), "400 Bad Request"),
        (&GET.replace("HTTP/1.1", "HTTP/3"), "505 "),
        ("\x16\x03\x01\r\n\r\n", "400 Bad Request"),
        (&huge, "431 "),
        (&"x".repeat(9_000), "431 "),
    ] {
        let answer = ask(port, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
        assert!(!answer.contains("canal_grants"), "{answer}");
    }
    // Random bytes, some of which look like a request.
    let mut rng = fastrand::Rng::new();
    for _ in 0..200 {
        let mut bytes: Vec<u8> = GET.as_bytes()[..rng.usize(..GET.len())].to_vec();
        // No request contains this byte.
        bytes.push(0xff);
        let more = rng.usize(..200);
        bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(more));
        bytes.extend(b"\r\n\r\n");
        let answer = ask(port, &bytes);
        assert!(!answer.contains("\ncanal_"), "{bytes:?}: {answer}");
    }
    assert!(ask(port, GET.as_bytes()).starts_with("HTTP/1.1 200 OK"));
    world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
}

#[test]
fn collectors_that_say_nothing_keep_nobody_waiting() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let port = free_port();
    let world = world_at(port);
    let mut idle: Vec<TcpStream> = Vec::new();
    for n in 0..60 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // Each of them stops in the middle of its request.
        let _ = stream.write_all(&GET.as_bytes()[..n % GET.len()]);
        idle.push(stream);
    }
    for _ in 0..3 {
        wait_until("another one is served", || {
            ask(port, GET.as_bytes()).starts_with("HTTP/1.1 200 OK")
        });
        world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    }
    let open = fs::read_dir(format!("/proc/{}/fd", world.daemon_pid())).unwrap().count();
    assert!(open < 50, "{open} descriptors are open");
    drop(idle);
    world.canal(["daemon", "--stop"]).end().code(0);
    wait_until("the port is free", || TcpListener::bind(("127.0.0.1", port)).is_ok());
}

#[test]
fn a_port_in_use_is_noted_and_taken_when_it_is_free() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let port = free_port();
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let world = World::new();
    world.configure(&format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n"));
    world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    let note = format!("cannot serve metrics on 127.0.0.1:{port}: Address already in use");
    wait_until("it is noted", || {
        world.canal(["status", "-v"]).end().code(0).stdout.contains(&note)
    });
    let found = world.canal(["doctor"]).end().stdout;
    assert!(found.contains("cannot serve metrics"), "{found}");
    let log = fs::read_to_string(world.runtime().join("daemon.log")).unwrap();
    assert_eq!(log.matches(&note).count(), 1, "{log}");
    drop(taken);
    // A process started by another test has a copy of the test's socket until it executes its
    // program.
    wait_until("it is taken", || ask(port, GET.as_bytes()).starts_with("HTTP/1.1 200 OK"));
    let told = world.canal(["status", "-v"]).end().code(0).stdout;
    assert!(!told.contains("cannot serve metrics"), "{told}");
}

#[test]
fn an_address_that_other_machines_can_reach_is_refused() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let world = World::new();
    world.configure("[metrics]\nlisten = \"0.0.0.0:9632\"\n");
    let refused = world.canal(["status"]).end().code(125).stderr;
    let what = "line 2: metrics need a loopback address, and 0.0.0.0 is not one";
    assert!(refused.contains(what), "{refused}");
}

fn ask_socket(path: &Path) -> Option<String> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_socket_is_removed_by_its_daemon_and_taken_over_from_a_killed_one() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let world = World::new();
    let socket = world.path("metrics.sock");
    world.configure(&format!("[metrics]\nlisten = \"{}\"\n", socket.display()));
    let serves = || ask_socket(&socket).is_some_and(|it| it.starts_with("HTTP/1.1 200 OK"));
    world.status();
    wait_until("it serves", serves);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let before = world.daemon_pid();
    world.kill_daemon_quietly();
    assert!(socket.exists());
    assert_ne!(world.daemon_pid(), before);
    wait_until("the next one serves", serves);
    world.canal(["daemon", "--stop"]).end().code(0);
    wait_until("it is gone", || !socket.exists());
}
