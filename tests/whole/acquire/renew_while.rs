//! `canal renew --while` keeps a lease alive while a process lives.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::backend::over_engines;
use crate::lease::Lease;
use crate::world::World;
use crate::world::process::{Proc, in_time, wait_until};

over_engines! {
    "renewals reach another host":
        a_lease_that_is_lost_meanwhile_ends_the_renewals_with_122,
        a_restart_of_the_daemon_loses_no_lease_that_is_kept;
}

/// Starts `canal renew --while` for a process.
fn keep(world: &World, lease: &Lease, process: &Proc) -> Proc {
    let args = ["renew", "--json", "--while", &process.pid_text()];
    let mut keeper = world.canal(args).env("CANAL_HANDLE", &lease.handle).spawn();
    wait_until("it has renewed once, or failed", || {
        keeper.stdout().contains("renewals") || keeper.has_ended()
    });
    keeper
}

fn cat(world: &World) -> Proc {
    world.program("cat", [] as [&str; 0]).stdin(Stdio::piped()).spawn()
}

#[test]
fn the_lease_lives_as_long_as_the_process_and_the_renewals_end_with_it() {
    in_time(Duration::from_secs(2), |ttl| {
        let world = World::with_daemon();
        let process = cat(&world);
        let lease = Lease::take(&world, &format!("{}ms", ttl.as_millis()), &["-k", "x"]);
        let mut keeper = keep(&world, &lease, &process);
        let begun = Instant::now();
        while begun.elapsed() < ttl * 2 {
            std::thread::sleep(ttl / 20);
            if keeper.has_ended() || !lease.holds(&world) {
                // The machine was too slow for this TTL, and the renewals report that the lease is
                // lost.
                assert_eq!(keeper.end().code, Some(122));
                return None;
            }
        }
        process.finish();
        let ended = keeper.end();
        if ended.code == Some(122) {
            return None;
        }
        let ended = ended.code(0);
        assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
        assert_eq!(ended.stderr, "");
        lease.until_lost(&world);
        Some(())
    });
}

#[test]
fn a_lease_that_is_lost_meanwhile_ends_the_renewals_with_122() {
    let world = World::with_daemon();
    let process = cat(&world);
    let lease = Lease::take(&world, "15s", &["-k", "x"]);
    let keeper = keep(&world, &lease, &process);
    world.canal(["release", "-q", "--force", "--token", &lease.token.to_string()]).end().code(0);
    let ended = keeper.end().code(122);
    assert!(ended.stdout.contains("\"lost\":\"forced\""), "{ended:?}");
    assert!(ended.stderr.contains("was broken by force"), "{ended:?}");
    process.finish();
}

#[test]
fn a_lease_that_its_owner_gives_back_ends_the_renewals_silently_with_0() {
    let world = World::with_daemon();
    let process = cat(&world);
    let lease = Lease::take(&world, "3s", &["-k", "x"]);
    let keeper = keep(&world, &lease, &process);
    lease.release(&world).code(0);
    let ended = keeper.end().code(0);
    assert_eq!((ended.stdout.lines().count(), &*ended.stderr), (1, ""), "{ended:?}");
    // The same when the renewals begin only after the release.
    let late = ["renew", "--json", "--while", &process.pid_text()];
    let late = world.canal(late).env("CANAL_HANDLE", &lease.handle).end().code(0);
    assert_eq!((&*late.stdout, &*late.stderr), ("", ""), "{late:?}");
    // The owner relies on the lease when it renews once.
    let once = world.canal(["renew"]).env("CANAL_HANDLE", &lease.handle).end().code(122);
    assert!(once.stderr.contains("was released"), "{once:?}");
    process.finish();
}

#[test]
fn a_restart_of_the_daemon_loses_no_lease_that_is_kept() {
    let world = World::with_daemon().on_one_host();
    let process = cat(&world);
    let lease = Lease::take(&world, "6s", &["-k", "x"]);
    let mut keeper = keep(&world, &lease, &process);
    let renewals = || {
        let of = |world: &World| world.key("x").holders.into_iter().find_map(|h| h.lease);
        of(&world).map_or(0, |lease| lease.renewals)
    };
    let before = renewals();
    world.kill_daemon();
    world.daemons_return();
    wait_until("it is renewed at the next daemon", || renewals() > before);
    assert!(!keeper.has_ended());
    process.signal(Signal::SIGKILL);
    keeper.end().code(0);
}

#[test]
fn what_cannot_be_kept_is_an_error_at_once() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "x"]);
    let renew =
        |pid: &str| world.canal(["renew", "--while", pid]).env("CANAL_HANDLE", &lease.handle).end();
    assert!(renew("4194304").code(125).stderr.contains("there is no process 4194304"));
    assert!(renew("0").code(125).stderr.contains("--while 0: there is no process 0"));
    let token = lease.token.to_string();
    world.canal(["release", "-q", "--force", "--token", &token]).end().code(0);
    let process = cat(&world);
    renew(&process.pid_text()).code(122);
    process.finish();
}

#[test]
fn an_ended_lease_leaves_when_why_and_whose() {
    let world = World::with_daemon().on_one_host();
    let none = world.sh("canal status --ended | cat").end().code(0);
    assert_eq!(none.stdout, "no lease has ended recently\n");
    let lost = Lease::take(&world, "1s", &["-k", "short/a"]);
    lost.until_lost(&world);
    let given_back = Lease::take(&world, "10m", &["-k", "b", "-k", "c"]);
    given_back.release(&world).code(0);
    let told = world.canal(["status", "--ended", "--json"]).end().code(0).json();
    let ended = told["ended"].as_array().unwrap();
    let fields = |at: usize| (&ended[at]["key"], &ended[at]["reason"], &ended[at]["token"]);
    assert_eq!(fields(0), (&"b".into(), &"released".into(), &given_back.token.into()));
    assert_eq!(fields(1), (&"short/a".into(), &"expired".into(), &lost.token.into()));
    assert_eq!((&ended[0]["more_keys"], &ended[1]["ttl_ms"]), (&1.into(), &1000.into()));
    assert_eq!(ended[0]["uid"], nix::unistd::geteuid().as_raw());
    assert!(ended[0]["command"].is_string() && ended[0]["at"].is_string(), "{told}");
    for (choice, count) in
        [("--under short", 1), ("short", 1), ("shor", 0), ("--mine", 2), ("--user 3999999999", 0)]
    {
        let words = ["status", "--ended", "--json"].into_iter().chain(choice.split(' '));
        let told = world.canal(words).end().code(0).json();
        assert_eq!(told["ended"].as_array().unwrap().len(), count, "{choice}");
    }
    let text = world.sh("canal status --ended | cat").end().code(0).stdout;
    assert!(text.starts_with("b and 1 more key  released "), "{text}");
    assert!(text.contains("\nshort/a  expired "), "{text}");
    // The next daemon knows them too.
    world.kill_daemon();
    world.daemons_return();
    let told = world.canal(["status", "--ended", "--json"]).end().code(0).json();
    assert_eq!(told["ended"].as_array().unwrap().len(), 2);
}
