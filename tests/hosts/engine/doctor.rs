//! `canal doctor` examines an engine before any daemon uses it, and changes nothing there.

use std::fs;

use serde_json::Value;

use crate::etcd_server::{installed, start_etcd_with};
use crate::hosts::over_each_engine;
use crate::postgres_server;
use crate::shared_table::{Host, Log, PATIENT};
use crate::world::World;
use crate::world::doctor::{about, found_by};

over_each_engine!(
    an_engine_is_looked_at_and_nothing_is_changed_there,
    an_engine_that_cannot_be_reached_is_a_problem,
);

#[track_caller]
fn doctor(world: &World, url: &str, has_problem: bool) -> Value {
    found_by(world.canal(["doctor", "--json", "--engine", url]).end(), has_problem)
}

/// The address in a host's configuration.
fn url(host: &Host) -> String {
    let config = fs::read_to_string(host.world.runtime().join("canal.toml")).unwrap();
    let line = config.lines().find_map(|line| line.strip_prefix("url = \"")).unwrap();
    line.trim_end_matches('"').to_owned()
}

fn an_engine_is_looked_at_and_nothing_is_changed_there(log: &Log) {
    let (a, elsewhere) = (Host::new(log, "a", PATIENT, None), World::new());
    let url = url(&a);
    for _ in 0..2 {
        let report = doctor(&elsewhere, &url, false);
        let (level, answers) = &about(&report, "engine")[0];
        assert_eq!(level, "fine", "{report}");
        assert!(answers.contains(" answers, ") && answers.contains(log.engine()), "{answers}");
        let size = &about(&report, "engine size")[0].1;
        assert_eq!(size, "there is no table yet; the first daemon creates it", "nothing was made");
        assert_eq!(about(&report, "engine hosts")[0].1, "no daemon is using it");
    }
    // While no daemon runs, it examines the engine of the configuration.
    let report = found_by(a.world.canal(["doctor", "--json"]).end(), false);
    assert_eq!(about(&report, "engine")[0].0, "fine", "{report}");
    assert!(!elsewhere.socket().exists() && !a.world.socket().exists(), "no daemon was started");
    a.join();
    for _ in 0..2 {
        let report = doctor(&elsewhere, &url, false);
        let size = &about(&report, "engine size")[0].1;
        assert!(size.contains(" batches of changes since the last snapshot"), "{size}");
        let hosts = &about(&report, "engine hosts")[0].1;
        assert!(hosts.starts_with("used by a (uid ") && !hosts.contains("), "), "{hosts}");
        assert!(!about(&report, "engine rights").is_empty(), "{report}");
    }
    // Another daemon has the name that this place would have.
    fs::write(
        elsewhere.runtime().join("canal.toml"),
        "[engine]\nhost = \"a\"\nurl = \"etcd://x\"\n",
    )
    .unwrap();
    let hosts = &about(&doctor(&elsewhere, &url, true), "engine hosts")[0];
    assert_eq!(hosts.0, "problem");
    assert!(hosts.1.starts_with("another daemon already has this host's name `a`"), "{hosts:?}");
}

fn an_engine_that_cannot_be_reached_is_a_problem(log: &Log) {
    let (a, elsewhere) = (Host::new(log, "a", PATIENT, None), World::new());
    a.proxy.cut();
    let report = doctor(&elsewhere, &url(&a), true);
    let [(level, message)] = &about(&report, "engine")[..] else { panic!("{report}") };
    assert_eq!(level, "problem", "{report}");
    assert!(message.starts_with("cannot use "), "{message}");
    assert!(about(&report, "engine login").is_empty(), "{report}");
}

#[test]
fn rights_that_are_missing_are_named_with_the_statement_that_grants_them() {
    let Some(server) = postgres_server::shared() else { return };
    let (url, world) = (server.new_url(), World::new());
    let database = url.rsplit_once('/').unwrap().1;
    server.sql(&format!("CREATE ROLE \"stranger-of-{database}\" LOGIN"));
    let strange = url.replacen(&format!("{database}@"), &format!("stranger-of-{database}@"), 1);
    let ended = world.canal(["doctor", "--engine", &strange]).end().code(1);
    let granted =
        format!("hint: GRANT CREATE ON DATABASE {database} TO \"stranger-of-{database}\"");
    assert!(ended.stdout.contains(&granted), "{ended:?}");
    let own = doctor(&world, &url, false);
    assert_eq!(about(&own, "engine login")[0].1, format!("logged in as {database}"));
    // It could not log in as an unknown user.
    let nobody = url.replacen(&format!("{database}@"), "nobody-knows@", 1);
    let report = doctor(&world, &nobody, true);
    assert!(about(&report, "engine")[0].1.contains("nobody-knows"), "{report}");
}

#[test]
fn rights_below_the_prefix_are_asked_for_and_nothing_is_written() {
    if !installed() {
        return;
    }
    let quick = ["--heartbeat-interval=50", "--election-timeout=500", "--bcrypt-cost=4"];
    let (mut server, world) = (start_etcd_with(&quick), World::new());
    let grant = |may| ["role", "grant-permission", "canal", "--prefix=true", may, "/canal/"];
    for args in [
        &["user", "add", "root:r"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ci:s3cret"],
        &["role", "add", "canal"],
        &grant("read"),
        &["user", "grant-role", "ci", "canal"],
        &["auth", "enable"],
    ] {
        server.ctl_ok(args);
    }
    server.ctl = vec!["--user=root:r".to_owned()];
    let look = |password: &str, has_problem: bool| {
        let url = format!("etcd://ci:{password}@{}/canal", server.endpoint());
        found_by(world.canal(["doctor", "--json"]).env("CANAL_ENGINE", url).end(), has_problem)
    };
    let report = look("wrong", true);
    assert!(about(&report, "engine")[0].1.contains("the user or the password"), "{report}");
    let report = look("s3cret", true);
    let (level, why) = &about(&report, "engine rights")[0];
    assert_eq!(level, "problem", "{report}");
    assert!(why.contains("may not read and write below the prefix"), "{why}");
    server.ctl_ok(&grant("readwrite"));
    let report = look("s3cret", false);
    assert_eq!(about(&report, "engine login")[0].1, "logged in as ci");
    assert_eq!(about(&report, "engine tls")[0].0, "note", "the password is not encrypted");
    assert_eq!(about(&report, "engine rights")[0].0, "fine", "{report}");
    let keys = server.ctl_ok(&["get", "--prefix", "--keys-only", "/"]);
    assert_eq!(keys.trim(), "", "nothing was written");
}

#[test]
fn a_password_on_the_command_line_is_refused_and_not_shown() {
    let world = World::new();
    let report = doctor(&world, "postgres://canal:s3cret@127.0.0.1:9/canal", true);
    let [(_, message)] = &about(&report, "engine")[..] else { panic!("{report}") };
    assert!(message.contains("a password in `--engine`"), "{message}");
    let ended = world
        .canal(["doctor", "--json"])
        .env("CANAL_ENGINE", "etcd://canal:s3cret@127.0.0.1:9/canal")
        .end()
        .code(1);
    assert!(ended.stdout.contains("127.0.0.1:9") && !ended.stdout.contains("s3cret"), "{ended:?}");
}
