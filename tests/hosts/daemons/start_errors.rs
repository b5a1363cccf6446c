//! The messages of a daemon that cannot start with its engine.

use std::fs;

use crate::world::World;
use crate::world::process::wait_until;

fn refused(world: &World, config: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = world.runtime().join("canal.toml");
    fs::write(&path, config).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let ended = world.canal(["daemon"]).end().code(125);
    assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
    ended.stderr
}

#[test]
fn an_unusable_engine_is_reported_before_a_daemon_starts() {
    let world = World::new();
    let said = refused(&world, "engine = \"redis://one\"\n");
    assert!(
        said.contains("does not name a known engine") && said.contains("hint: postgres://"),
        "{said}"
    );
    let said = refused(&world, "[engine]\nurl = \"etcd://one\"\nttl = \"1s\"\ngrace = \"900ms\"\n");
    assert!(said.contains("a TTL of 1s is too short") && said.contains("hint: "), "{said}");
    let said = refused(&world, "engine = \"etcd://root:s3cret@one\"\n");
    assert!(said.contains("contains a password, and everyone can read it"), "{said}");
    let said = refused(&world, "[engine]\nhost = \"a\"\n");
    assert!(said.contains("needs an engine"), "{said}");
    fs::remove_file(world.runtime().join("canal.toml")).unwrap();
    let url = "postgres://me:s3cret@db/x";
    let said = world.canal(["daemon", "--engine", url]).end().code(125).stderr;
    assert!(
        said.contains("everyone on this machine could read") && !said.contains("s3cret"),
        "{said}"
    );
}

#[test]
fn a_daemon_with_holds_in_its_journal_does_not_start_over_an_engine() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    world.canal(["daemon", "--stop"]).end().code(0);
    let said = refused(&world, "engine = \"etcd://127.0.0.1:9/x\"\n");
    assert!(said.contains("1 process holds locks on this machine only"), "{said}");
    assert!(said.contains("hint: "), "{said}");
    holder.finish();
}

#[test]
fn an_impossible_engine_ends_a_daemon_in_the_foreground_and_is_reported_by_one_in_the_background() {
    let Some(server) = crate::postgres_server::shared() else { return };
    let world = World::new();
    let url = format!("postgres://nobody@127.0.0.1:{}/nothing", server.port);
    let ended = world.canal(["daemon", "--engine", &url, "--host", "a"]).end().code(125);
    assert!(ended.stderr.contains("cannot join postgres://127.0.0.1:"), "{ended:?}");
    let config = format!("engine = \"{url}\"\n");
    fs::write(world.runtime().join("canal.toml"), config).unwrap();
    world.status();
    wait_until("it says so", || {
        world.look().and_then(|status| status.engine).is_some_and(|it| it.state == "unable")
    });
    let refused = world.canal(["run", "-k", "x", "--", "echo", "ran"]).end().code(125);
    assert!(refused.stderr.contains("the daemon has been unable to use its engine"), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
}

#[test]
fn a_place_that_had_an_engine_works_without_it_only_with_no_engine() {
    let Some(server) = crate::postgres_server::shared() else { return };
    let world = World::new();
    let url = server.new_url();
    let daemon = world.daemon(|daemon| daemon.args(["--engine", &url, "--host", "a"]));
    wait_until("it is a member", || {
        world.look().and_then(|status| status.engine).is_some_and(|it| it.state == "member")
    });
    world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    daemon.kill();
    for command in [&["run", "-k", "x", "--", "echo", "ran"][..], &["status"], &["daemon"]] {
        let ended = world.canal(command).end().code(125);
        assert!(ended.stderr.contains("over postgres://127.0.0.1:"), "{ended:?}");
        assert!(ended.stderr.contains("but no engine is given now\nhint: name it"), "{ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
    // With its engine the daemon continues, even with the engine in the configuration.
    world.daemon(|daemon| daemon.args(["--engine", &url, "--host", "a"])).kill();
    let config = world.runtime().join("canal.toml");
    fs::write(&config, format!("[engine]\nurl = \"{url}\"\nhost = \"a\"\n")).unwrap();
    world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    world.canal(["daemon", "--stop"]).end().code(0);
    let refused = world.canal(["daemon", "--no-engine"]).end().code(125);
    assert!(refused.stderr.contains("names an engine, which the next daemon would"), "{refused:?}");
    fs::remove_file(&config).unwrap();
    world.canal(["run", "-k", "x", "--", "echo", "ran"]).end().code(125);
    world.daemon(|daemon| daemon.arg("--no-engine")).kill();
    let ran = world.canal(["run", "-k", "x", "--", "echo", "ran"]).end().code(0);
    assert_eq!(ran.stdout, "ran\n");
}
