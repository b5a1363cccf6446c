//! An engine that is unreachable when a daemon starts, or that is not the expected one.

use std::fs;

use serde_json::json;

use crate::etcd_server::proxy::Proxy;
use crate::hosts::over_each_engine;
use crate::shared_table::commands::answered;
use crate::shared_table::{Log, hosts, until_idle};
use crate::world::World;
use crate::world::peer::Peer;
use crate::world::process::wait_until;

over_each_engine!(
    a_daemon_starts_without_its_engine_and_joins_later,
    a_host_waits_for_a_name_that_another_host_has,
    a_release_without_the_engine_is_done_when_the_engine_is_back,
    megabytes_of_requests_without_the_engine_are_granted_when_it_is_back,
);

fn a_daemon_starts_without_its_engine_and_joins_later(log: &Log) {
    let [a] = hosts(log);
    a.world.canal(["daemon", "--stop"]).end().code(0);
    a.proxy.cut();
    a.world.status();
    a.until("away");
    let waiter = a.world.canal(["run", "-k", "x", "--", "echo", "on"]).spawn();
    a.world.canal(["run", "-n", "-k", "x", "--", "echo", "on"]).end().code(125);
    let over = a.world.canal(["run", "-w", "0.5", "-k", "x", "--", "echo", "on"]).end().code(75);
    assert!(over.stderr.contains("engine"), "{over:?}");
    a.proxy.mend();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    until_idle(&[a]);
}

fn a_host_waits_for_a_name_that_another_host_has(log: &Log) {
    let [a] = hosts(log);
    let config = fs::read_to_string(a.world.runtime().join("canal.toml")).unwrap();
    let twin = World::new();
    fs::write(twin.runtime().join("canal.toml"), config).unwrap();
    twin.status();
    let mut why = String::new();
    wait_until("the twin says so", || {
        let engine = twin.look().and_then(|status| status.engine).unwrap();
        why = engine.why.unwrap_or_default();
        engine.state != "joining" || !why.is_empty()
    });
    let refused = twin.canal(["run", "-n", "-k", "x", "--", "echo", "on"]).end().code(125);
    assert!(refused.stderr.contains('a'), "{refused:?} {why}");
    answered(&a, ["run", "-n", "-k", "x", "--", "true"]).code(0);
}

fn a_release_without_the_engine_is_done_when_the_engine_is_back(log: &Log) {
    let [a, b] = hosts(log);
    let mut owner = a
        .world
        .sh("canal acquire -q --pid $$ -k x; echo told; read line")
        .stdin(std::process::Stdio::piped())
        .spawn();
    b.world.until_held("x", 1);
    wait_until("it has printed the grant", || owner.stdout().contains("told"));
    a.proxy.cut();
    a.until("away");
    let pid = owner.pid_text();
    let failed = a.world.canal(["release", "--pid", &pid, "x"]).end().code(125);
    assert!(failed.stderr.contains("once the engine is reachable"), "{failed:?}");
    assert_eq!(b.world.held("x"), 1);
    a.proxy.mend();
    b.world.until_held("x", 0);
    drop(owner.child.stdin.take());
    until_idle(&[a, b]);
}

#[test]
fn status_reports_an_engine_that_was_never_reached() {
    let world = World::new();
    let nobody = Proxy::to(9);
    nobody.cut();
    let config = format!("engine = \"etcd://root:s3cret@{}/x\"\n", nobody.endpoint());
    let path = world.runtime().join("canal.toml");
    fs::write(&path, config).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    world.status();
    wait_until("it is away", || {
        world.look().and_then(|status| status.engine).is_some_and(|engine| engine.state == "away")
    });
    let shown = world.canal(["status", "--json"]).end().code(0).stdout;
    assert!(!shown.contains("s3cret") && shown.contains(&nobody.endpoint()), "{shown}");
    let text = world.canal(["status"]).end().code(0).stdout;
    assert!(text.contains("unreachable since") && !text.contains("s3cret"), "{text}");
    let log = fs::read_to_string(world.runtime().join("daemon.log")).unwrap();
    assert!(!log.contains("s3cret"), "{log}");
}

fn megabytes_of_requests_without_the_engine_are_granted_when_it_is_back(log: &Log) {
    let [a] = hosts(log);
    let incarnation = || a.world.look().and_then(|status| status.engine).unwrap().id;
    let before = incarnation();
    // The daemon proposes requests until it notices that the network forwards nothing.
    a.proxy.fall_silent();
    let mut peers: Vec<Peer> = (0..60)
        .map(|n| {
            let item = |at| json!({ "key": format!("{n}/{at}/{}", "x".repeat(1000)), "slots": 1 });
            let items: Vec<_> = (0..60).map(item).collect();
            let tag = format!("{:032x}", n + 1);
            let call = json!({ "tag": tag, "items": items, "command": "large" });
            let mut peer = Peer::connect(&a.world);
            peer.send("Acquire", &call, false, None).unwrap();
            peer
        })
        .collect();
    a.until("away");
    a.proxy.mend();
    for peer in &mut peers {
        let reply = peer.reply().unwrap();
        assert!(reply["parameters"]["token"].is_u64(), "{reply}");
    }
    a.until("member");
    assert_eq!(incarnation(), before, "it went on as the host that it was");
    drop(peers);
    a.world.canal(["release", "--all"]).end();
}
