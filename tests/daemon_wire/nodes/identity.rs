//! A daemon's identity as a node, when it acts as one, and what a restricted connection may do.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::{COLLECT, CONFIRM_AT, confirm, failed, hex, id_of, node, node_configured, part, with};
use crate::wire::daemon::{Daemon, wait_until};

const IDENTIFY: &str = "io.canal.Nodes.Identify";

#[test]
fn a_node_keeps_its_id_and_no_other_has_it() {
    let mut one = node();
    let identity = one.connect().call(IDENTIFY, json!({}));
    assert_eq!(identity["place"], one.path("").to_str().unwrap().trim_end_matches('/'));
    assert_eq!(identity["uid"], nix::unistd::geteuid().as_raw());
    assert_eq!((&identity["lasting"], &identity["grants_from_ms"]), (&true.into(), &json!(null)));
    let id = id_of(&one);
    assert_eq!(id.len(), 32);
    assert_ne!(id_of(&node()), id);
    one.kill();
    super::forget_the_journal(&one);
    one.run(|_| {});
    assert_eq!(id_of(&one), id);
}

#[test]
fn a_node_with_a_new_state_grants_nothing_over_nodes_for_the_longest_ttl() {
    let config = "[nodes]\nlongest_ttl = \"10s\"\n";
    let mut daemon = Daemon::lasting_folder();
    std::fs::write(daemon.path("canal.toml"), config).unwrap();
    daemon.run(|_| {});
    let mut peer = daemon.connect();
    let left = peer.call(IDENTIFY, json!({}))["grants_from_ms"].as_u64().unwrap();
    assert!((1..=10_000).contains(&left), "{left}");
    let asked = with(part(&daemon, 1, "a"), "ttl_ms", 10_000.into());
    let (name, parameters) = failed(&mut peer, COLLECT, asked.clone());
    assert_eq!(name, "NotYet");
    assert!(parameters["left_ms"].as_u64().is_some_and(|left| left <= 10_000), "{parameters}");
    // This does not concern requests to this daemon alone.
    peer.call("Acquire", crate::wire::peer::mutex(2, "a-process"));
    // The restart does not make it forget that it lacks its earlier grants.
    daemon.kill();
    daemon.run(|_| {});
    assert_eq!(failed(&mut daemon.connect(), COLLECT, asked.clone()).0, "NotYet");
    wait_until("it grants", || {
        daemon.connect().call(IDENTIFY, json!({}))["grants_from_ms"].is_null()
    });
    daemon.connect().call(COLLECT, asked.clone());
    wait_until("it notes that", || daemon.path("leases.log").exists());
    // From then on it grants at once, even after a reboot.
    daemon.kill();
    super::forget_the_journal(&daemon);
    daemon.run(|_| {});
    daemon.connect().call(COLLECT, asked.clone());
    // But not after it has lost its grants.
    daemon.kill();
    super::forget_the_journal(&daemon);
    std::fs::remove_file(daemon.path("leases.log")).unwrap();
    daemon.run(|_| {});
    assert_eq!(failed(&mut daemon.connect(), COLLECT, asked).0, "NotYet");
}

#[test]
fn a_daemon_whose_state_lies_in_memory_is_no_node() {
    if nix::sys::statfs::statfs("/dev/shm")
        .is_ok_and(|it| it.filesystem_type() != nix::sys::statfs::TMPFS_MAGIC)
    {
        return crate::isolation::skipped("/dev/shm is not in memory");
    }
    let folder = tempfile::Builder::new().prefix("canal-").tempdir_in("/dev/shm").unwrap();
    let socket = folder.path().join("canal.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_canal"));
    command.arg("daemon").arg("--socket").arg(&socket).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut peer = None;
    wait_until("it listens", || {
        peer = crate::wire::peer::Peer::connect(&socket).ok();
        peer.is_some()
    });
    let mut peer = peer.unwrap();
    let identity = peer.call(IDENTIFY, json!({}));
    assert_eq!(identity["lasting"], false);
    let asked = json!({
        "run": hex(1), "tag": hex(1), "handle": hex(1), "ttl_ms": 10_000, "command": "x",
        "items": [{ "key": "a", "slots": 1 }], "nodes": [identity["node"]], "require": "all",
    });
    let (name, parameters) = failed(&mut peer, COLLECT, asked);
    assert_eq!(name, "NotLasting");
    assert!(parameters["message"].as_str().unwrap().contains("in memory"), "{parameters}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_lease_over_nodes_lives_no_longer_than_the_node_allows() {
    let daemon = node_configured("[nodes]\nlongest_ttl = \"1m\"\n");
    let mut peer = daemon.connect();
    let asked = |ttl_ms: u64| with(part(&daemon, 1, "a"), "ttl_ms", ttl_ms.into());
    let (name, parameters) = failed(&mut peer, COLLECT, asked(60_001));
    assert_eq!(name, "BadRequest");
    assert!(parameters["message"].as_str().unwrap().contains("at most 1m00s"), "{parameters}");
    assert_eq!(failed(&mut peer, COLLECT, asked(999)).0, "BadRequest");
    peer.call(COLLECT, asked(60_000));
}

#[test]
fn a_restricted_connection_does_leases_over_nodes_under_its_keys_and_nothing_else() {
    let daemon = node();
    let mut peer = daemon.connect();
    let restrict = |keys: &[&str]| json!({ "keys": keys });
    peer.call("io.canal.Nodes.Restrict", restrict(&["deploy/", "db"]));
    peer.call("io.canal.Nodes.Restrict", restrict(&[]));
    for (method, parameters) in [
        ("Acquire", crate::wire::peer::mutex(9, "deploy/x")),
        ("Status", json!({})),
        ("Graph", json!({})),
        ("Resize", json!({ "key": "deploy", "slots": 3 })),
        ("Release", json!({ "token": 1 })),
        ("Release", json!({ "all": true })),
        ("Stop", json!({})),
        ("Kill", json!({ "token": 1, "signal": 9 })),
        (COLLECT, part(&daemon, 1, "other")),
        (COLLECT, part(&daemon, 1, "deployment")),
    ] {
        let (name, said) = failed(&mut peer, method, parameters);
        assert_eq!(name, "Denied", "{method}");
        assert!(said["message"].as_str().unwrap().contains("under `deploy`, `db`"), "{said}");
    }
    peer.call(IDENTIFY, json!({}));
    peer.call("org.varlink.service.GetInfo", json!({}));
    let token = peer.call(COLLECT, part(&daemon, 1, "deploy/x"))["token"].as_u64().unwrap();
    peer.call(CONFIRM_AT, confirm(1, token));
    peer.call("Renew", json!({ "handle": hex(1) }));
    peer.call("io.canal.Nodes.Report", json!({ "handle": hex(1), "need": 2, "held": 1 }));
    peer.call("Release", json!({ "handle": hex(1) }));
    // A later restriction narrows the first one, and restores nothing.
    peer.call("io.canal.Nodes.Restrict", restrict(&["deploy/web", "other"]));
    for key in ["deploy", "db", "other"] {
        assert_eq!(failed(&mut peer, COLLECT, part(&daemon, 2, key)).0, "Denied");
    }
    peer.call(COLLECT, part(&daemon, 2, "deploy/web/1"));
    assert_eq!(failed(&mut peer, "io.canal.Nodes.Restrict", restrict(&["a//b"])).0, "BadRequest");
}

#[test]
fn an_interface_of_its_own_is_described() {
    let daemon = node();
    let mut peer = daemon.connect();
    let info = peer.call("org.varlink.service.GetInfo", json!({}));
    assert!(info["interfaces"].as_array().unwrap().contains(&"io.canal.Nodes".into()));
    let asked = json!({ "interface": "io.canal.Nodes" });
    let text = peer.call("org.varlink.service.GetInterfaceDescription", asked);
    assert!(text["description"].as_str().unwrap().contains("method Collect("));
    peer.send("io.canal.Nodes.Nothing", json!({}));
    assert_eq!(peer.error().0, "MethodNotFound");
    assert!(Duration::from_secs(10) < crate::wire::daemon::BOUND, "the wait of a new state fits");
}
