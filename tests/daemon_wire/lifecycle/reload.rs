//! Reloads of the configuration while the daemon runs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, Peer, mutex_for};

/// A request for a key without a size.
fn of_any_size(tag: u128, key: &str) -> Value {
    json!({ "tag": format!("{tag:032x}"), "items": [{ "key": key }], "command": "test" })
}

/// Asks for a key, without a size, for a new process.
fn ask(daemon: &Daemon, tag: u128, key: &str) -> (Idler, Peer) {
    let (idler, mut peer) = (Idler::start(), daemon.connect());
    let mut parameters = of_any_size(tag, key);
    parameters["owner_fd"] = 0.into();
    peer.send_with("Acquire", parameters, &idler.pidfd());
    (idler, peer)
}

fn configure(daemon: &Daemon, config: &str) {
    fs::write(daemon.path("canal.toml"), config).unwrap();
}

/// Reloads the configuration. Returns the names of the changed settings.
fn reload(daemon: &Daemon) -> Vec<String> {
    let reloaded = daemon.connect().call("Reload", json!({}));
    let changed = reloaded["changed"].as_array().unwrap().iter();
    changed.map(|change| change["name"].as_str().unwrap().to_owned()).collect()
}

/// The current value of a setting.
#[track_caller]
fn setting(daemon: &Daemon, name: &str) -> Value {
    let found = daemon.connect().call("Configuration", json!({}));
    let mut settings = found["settings"].as_array().unwrap().iter();
    settings.find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {found}")).clone()
}

#[test]
fn an_edit_is_in_force_after_a_reload_and_reaches_those_who_wait() {
    let daemon = Daemon::configured("[keys.x]\nslots = 1\n");
    let mut waiters = Vec::new();
    for waiting in 0..3 {
        waiters.push(ask(&daemon, u128::from(waiting) + 1, "x"));
        daemon.until_use("x", 1, waiting);
    }
    waiters[0].1.returned("Acquire");
    configure(&daemon, "[keys.x]\nslots = 2\n[limits]\nwaiters_per_user = 1\n");
    let found = daemon.connect().call("Configuration", json!({}));
    assert_eq!(found["pending"][0]["name"], "keys.x", "{found}");
    daemon.until_use("x", 1, 2);
    assert_eq!(reload(&daemon), ["keys.x", "limits.waiters_per_user"]);
    waiters[1].1.returned("Acquire");
    daemon.until_use("x", 2, 1);
    assert!(waiters[2].1.is_silent(), "there are two slots");
    let (_idler, mut one_more) = ask(&daemon, 9, "x");
    assert_eq!(one_more.error().0, "TooManyWaiters");
    assert_eq!(reload(&daemon), [""; 0], "nothing has changed");
    configure(&daemon, "");
    assert_eq!(reload(&daemon), ["keys.x", "limits.waiters_per_user"]);
    assert_eq!(setting(&daemon, "limits.waiters_per_user")["source"], "default");
    assert!(!daemon.key("x").unwrap().stored);
}

#[test]
fn a_broken_edit_changes_nothing_and_is_named_with_its_line() {
    let daemon = Daemon::configured("[keys.x]\nslots = 1\n");
    let file = daemon.path("canal.toml").display().to_string();
    for (config, what) in [
        ("[keys.x]\nslots = 2\n[limit]\n", "line 3: unknown field `limit`; did you mean `limits`?"),
        (
            "[keys.x]\nslots = 2\n\n[daemon]\nlog = \"x=loud\"\n",
            "line 5: `x=loud` is not a log filter",
        ),
        (
            "[keys.x]\nslots = 2\n[[permission]]\ngroups = [\"no such\"]\nmay = [\"hold\"]\n",
            "line 4",
        ),
        ("[keys.x\n", "line 1"),
    ] {
        configure(&daemon, config);
        let mut peer = daemon.connect();
        peer.send("Reload", json!({}));
        let (name, parameters) = peer.error();
        assert_eq!(name, "BadConfiguration");
        let message = parameters["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{file}, {what}")), "{message}");
        assert!(parameters["hint"].as_str().unwrap().ends_with("stays in force"), "{parameters}");
        assert!(daemon.log().contains(&format!("keeping the configuration in force: {message}")));
        assert_eq!(daemon.key("x").unwrap().capacity, Some(1), "{config}");
        let found = peer.call("Configuration", json!({}));
        assert_eq!(found["broken"], message);
    }
    fs::set_permissions(daemon.path("canal.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    let mut peer = daemon.connect();
    peer.send("Reload", json!({}));
    let (_, parameters) = peer.error();
    let message = parameters["message"].as_str().unwrap();
    assert!(message.contains("is writable by other users (mode 0666)"), "{message}");
}

#[test]
fn sighup_reads_the_configuration_again() {
    let daemon = Daemon::configured("[keys.x]\nslots = 1\n");
    let holder = daemon.hold_with(1, json!([{ "key": "x" }]));
    let (_idler, mut waiter) = ask(&daemon, 2, "x");
    daemon.until_use("x", 1, 1);
    configure(&daemon, "[keys.x]\nslots = 2\n");
    daemon.signal(Signal::SIGHUP);
    waiter.returned("Acquire");
    configure(&daemon, "[keys.x\n");
    daemon.signal(Signal::SIGHUP);
    wait_until("the log says so", || daemon.log().contains("keeping the configuration in force: "));
    daemon.until_use("x", 2, 0);
    drop(holder);
}

#[test]
fn what_was_stored_by_hand_comes_before_the_file() {
    let daemon = Daemon::configured("[keys.x]\nslots = 1\n[keys.y]\nslots = 1\n");
    daemon.connect().call("Resize", json!({ "key": "x", "slots": 5 }));
    let file = setting(&daemon, "keys.y");
    assert_eq!((&file["source"], &file["line"]), (&json!("file"), &json!(3)), "{file}");
    let stored = setting(&daemon, "keys.x");
    assert_eq!((&stored["source"], &stored["value"]), (&json!("stored"), &json!("5")), "{stored}");
    configure(&daemon, "[keys.x]\nslots = 2\n[keys.y]\nslots = 2\n");
    let reloaded = daemon.connect().call("Reload", json!({}));
    let note = reloaded["notes"][0].as_str().unwrap();
    assert!(note.starts_with("`x` keeps the size 5, which `canal resize` stored"), "{note}");
    assert_eq!(reloaded["notes"].as_array().unwrap().len(), 1);
    assert_eq!(daemon.key("x").unwrap().capacity, Some(5));
    assert_eq!(daemon.key("y").unwrap().capacity, Some(2));
    daemon.connect().call("Resize", json!({ "key": "x", "forget": true }));
    assert_eq!(daemon.key("x").unwrap().capacity, Some(2), "that of the file, as it was read last");
}

#[test]
fn an_edit_stays_in_force_after_a_restart() {
    let mut daemon = Daemon::configured("[keys.x]\nslots = 1\n");
    configure(&daemon, "[keys.x]\nslots = 4\n[policy]\nbypass_max = 7\n");
    reload(&daemon);
    let idler = daemon.hold_with(1, json!([{ "key": "x" }]));
    daemon.kill();
    daemon.run(|_| {});
    assert_eq!(daemon.key("x").unwrap().capacity, Some(4));
    assert_eq!(setting(&daemon, "policy.bypass_max")["value"], "7");
    drop(idler);
}

#[test]
fn an_engine_in_the_file_needs_a_restart() {
    let daemon = Daemon::start();
    configure(
        &daemon,
        "engine = \"etcd://canal:s3cret@nowhere/x\"\n[limits]\nwaiters_per_user = 3\n",
    );
    fs::set_permissions(daemon.path("canal.toml"), fs::Permissions::from_mode(0o600)).unwrap();
    let reloaded = daemon.connect().call("Reload", json!({}));
    let changed = &reloaded["changed"];
    assert_eq!((&changed[0]["name"], &changed[0]["restart"]), (&json!("engine.url"), &json!(true)));
    assert_eq!((&changed[1]["now"], &changed[1]["restart"]), (&json!("3"), &json!(false)));
    let found = daemon.connect().call("Configuration", json!({}));
    assert_eq!(found["pending"][0]["name"], "engine.url", "it stays pending: {found}");
    assert!(!format!("{reloaded}{found}{}", daemon.log()).contains("s3cret"));
}

#[test]
fn each_value_in_force_says_where_it_comes_from() {
    let mut daemon = Daemon::folder();
    configure(
        &daemon,
        "[daemon]\nidle_exit = \"2h\"\nlog = \"warn\"\n[limits]\nconnections = 50\n",
    );
    daemon.run(|command| {
        command.args(["--idle-exit", "1h"]).env("CANAL_LOG", "info");
    });
    for (name, value, source, line, by) in [
        ("daemon.idle_exit", "1h00m", "command_line", None, Some("--idle-exit")),
        ("daemon.log", "info", "environment", None, Some("CANAL_LOG")),
        ("limits.connections", "50", "file", Some(5), None),
        ("limits.waiters_per_user", "20000", "default", None, None),
        ("policy.bypass_max", "64", "default", None, None),
    ] {
        let found = setting(&daemon, name);
        assert_eq!((&found["value"], &found["source"]), (&json!(value), &json!(source)), "{found}");
        assert_eq!((found["line"].as_u64(), found["by"].as_str()), (line, by), "{found}");
    }
    assert_eq!(setting(&daemon, "socket")["value"], daemon.socket().display().to_string());
}

#[test]
fn a_holder_is_never_touched_by_a_smaller_size() {
    let daemon = Daemon::configured("[keys.x]\nslots = 2\n");
    let idlers = [
        daemon.hold_with(1, json!([{ "key": "x" }])),
        daemon.hold_with(2, json!([{ "key": "x" }])),
    ];
    configure(&daemon, "[keys.x]\nslots = 1\n");
    reload(&daemon);
    daemon.until_use("x", 2, 0);
    let mut peer = daemon.connect();
    let mut parameters = mutex_for(3, "x");
    parameters["items"] = json!([{ "key": "x" }]);
    parameters["wait_ms"] = 0.into();
    parameters.as_object_mut().unwrap().remove("owner_fd");
    peer.send("Acquire", parameters);
    assert_eq!(peer.error().0, "Refused");
    drop(idlers);
}

/// The number of threads in the daemon that read a configuration.
fn readers(daemon: &Daemon) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names = threads.map(|it| fs::read_to_string(it.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|name| name == "canal-config\n")).count()
}

#[test]
fn a_directory_service_that_does_not_answer_holds_nobody_up() {
    let mut daemon = Daemon::folder();
    daemon.run(|command| {
        command.env("CANAL_FAULT", "groups");
    });
    let of_root = "[[permission]]\ngroups = [\"root\"]\nmay = [\"hold\"]\n";
    configure(&daemon, &format!("[keys.x]\nslots = 2\n{of_root}"));
    let mut peers = [(); 3].map(|()| daemon.connect());
    for peer in &mut peers {
        peer.send("Reload", json!({}));
    }
    daemon.signal(Signal::SIGHUP);
    let mut shown = daemon.connect();
    shown.send("Configuration", json!({}));
    let mut gone = daemon.connect();
    gone.send("Reload", json!({}));
    drop(gone);
    // The group look-up takes an hour.
    let idler = daemon.hold_with(1, json!([{ "key": "y" }]));
    for peer in &mut peers {
        let (name, parameters) = peer.error();
        assert_eq!(name, "BadConfiguration");
        let message = parameters["message"].as_str().unwrap();
        assert!(message.contains("cannot look up its groups within 4 s"), "{message}");
        assert!(parameters["hint"].as_str().unwrap().ends_with("stays in force"), "{parameters}");
    }
    let found = shown.returned("Configuration");
    assert!(found["broken"].as_str().unwrap().contains("cannot look up its groups"), "{found}");
    assert_eq!(readers(&daemon), 1, "one thread, however often somebody asks");
    assert_eq!(daemon.key("x").map(|key| key.stored), None, "nothing has changed");
    // An order that has no answer yet would put the next configuration in force.
    let kept = || daemon.log().matches("keeping the configuration in force").count();
    wait_until("all five reloads have their answer", || kept() == 5);
    // A configuration that names no group needs no look-up.
    configure(&daemon, "[keys.x]\nslots = 2\n");
    assert_eq!(reload(&daemon), ["keys.x"]);
    drop(idler);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end(), Some(0));
}
