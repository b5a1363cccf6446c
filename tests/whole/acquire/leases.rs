//! Leases as scripts use them: acquired, renewed, lost and released.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::backend::over_engines;
use crate::lease::Lease;
use crate::namespace::privately;
use crate::world::process::{Ended, in_time, signal, wait_until};
use crate::world::{World, journal_only};

over_engines! {
    "any host may renew a lease, and each one decides by the clock of the log":
        a_lease_that_is_not_renewed_goes_to_the_next_waiter_and_its_renewal_says_so,
        a_lease_lives_as_long_as_it_is_renewed,
        a_lease_outlives_the_session_that_requested_it,
        a_lease_broken_by_its_token_is_reported_to_its_owner;
    "another host answers while one is stopped or dead":
        a_stopped_client_that_waits_for_a_lease_blocks_no_other,
        leases_survive_kills_of_the_daemon_with_their_token_and_a_whole_ttl,
        a_daemon_that_is_stopped_for_longer_than_a_ttl_ends_the_lease_when_it_goes_on;
}

fn millis(ttl: Duration) -> String {
    format!("{}ms", ttl.as_millis())
}

/// Checks that a command ended because its lease was lost in the way that `how` names. Returns the
/// JSON that it printed.
#[track_caller]
fn lost(ended: Ended, how: &str) -> Value {
    let told = ended.code(122).json();
    assert_eq!(told["lost"], how, "{told}");
    told
}

#[test]
fn the_printed_variables_name_the_lease_to_later_commands() {
    let world = World::with_daemon();
    let script = r#"
        lease=$(canal acquire --ttl 10m -k x -j 3) || exit
        export $lease
        echo "$lease" | sed 's/=.*//'
        [ "$CANAL_SLOTS" = 0 ] && [ ${#CANAL_HANDLE} = 32 ] || exit 3
        canal renew || exit 4
        sh -c 'canal renew' || exit 5
        echo "$CANAL_HANDLE" | env -u CANAL_HANDLE canal renew --handle - || exit 6
        canal status --json | grep -q "\"token\":$CANAL_TOKEN," || exit 7
        canal release || exit 8
        canal renew -qq; echo "renew $?"
        canal release -qq; echo "release $?"
    "#;
    let ended = world.sh(script).end().code(0);
    let said = "CANAL_HANDLE\nCANAL_TOKEN\nCANAL_SLOTS\nrenew 122\nrelease 122\n";
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), (said, ""));
    world.until_idle();
}

#[test]
fn a_lease_that_is_not_renewed_goes_to_the_next_waiter_and_its_renewal_says_so() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "1s", &["-k", "x"]);
    world.program("mkfifo", ["go"]).end().code(0);
    let next = ["run", "-k", "x", "--", "sh", "-c", "echo $CANAL_TOKEN; cat go"];
    let waiter = world.canal(next).spawn();
    wait_until("it is the next one's", || {
        world.key("x").holders.iter().any(|holder| holder.lease.is_none())
    });
    let told = lost(lease.renew(&world), "expired");
    assert_eq!(
        (&told["lease"]["key"], &told["lease"]["token"]),
        (&"x".into(), &lease.token.into())
    );
    let ended = world.canal(["renew"]).env("CANAL_HANDLE", &lease.handle).end().code(122);
    let words = format!("canal: the lease on `x` (token {}) expired ", lease.token);
    assert!(ended.stderr.starts_with(&words), "{ended:?}");
    assert!(ended.stderr.contains(": it was not renewed for 1s\n"), "{ended:?}");
    lost(lease.release(&world), "expired");
    waiter.kill();
}

#[test]
fn a_renewal_with_another_ttl_counts_from_then_on() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "1h", &["x"]);
    let renew = |args: &[&str]| {
        let args = ["renew", "--json"].iter().chain(args);
        world.canal(args).env("CANAL_HANDLE", &lease.handle).end()
    };
    let longer = renew(&["--ttl", "2h"]).code(0).json();
    assert_eq!(longer["lease"]["ttl_ms"], 7_200_000, "{longer}");
    assert!(longer["lease"]["left_ms"].as_u64().unwrap() > 3_600_000, "{longer}");
    world.kill_daemon();
    world.daemons_return();
    let as_before = renew(&[]).code(0).json();
    assert_eq!(as_before["lease"]["ttl_ms"], 7_200_000, "{as_before}");
    for (ttl, words) in [("400d", "can be at most"), ("1ms", "must be at least")] {
        let refused = renew(&["--ttl", ttl]).code(125);
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    assert_eq!(renew(&[]).code(0).json()["lease"]["ttl_ms"], 7_200_000);
    assert_eq!(renew(&["--ttl", "1s"]).code(0).json()["token"], lease.token);
    lease.until_lost(&world);
    let lost = renew(&[]).code(122);
    assert!(lost.stderr.contains("it was not renewed for 1s"), "{lost:?}");
}

#[test]
fn a_lease_lives_as_long_as_it_is_renewed() {
    in_time(Duration::from_secs(2), |ttl| {
        let world = World::with_daemon();
        let (begun, mut before) = (Instant::now(), Instant::now());
        let lease = Lease::take(&world, &millis(ttl), &["-k", "x"]);
        while begun.elapsed() < ttl * 3 / 2 {
            let asked = Instant::now();
            let renewed = lease.renew(&world);
            let wait = millis(ttl / 8);
            let busy = world.canal(["run", "-w", &wait, "-q", "-k", "x", "--", "true"]).end();
            if before.elapsed() > ttl {
                return None;
            }
            before = asked;
            assert_eq!(renewed.code(0).json()["token"], lease.token);
            busy.code(75);
        }
        lease.until_lost(&world);
        world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
        Some(())
    });
}

#[test]
fn a_lease_waits_and_is_refused_as_any_lock() {
    let world = World::with_daemon();
    let one = Lease::take(&world, "10m", &["-k", "a", "--per", "2", "--buckets", "1"]);
    let two = Lease::take(&world, "10m", &["-k", "a=2x1", "--write", "w", "-n"]);
    let busy = Lease::ask(&world, "10m", &["-n", "-k", "a=2x1"]).end().code(75);
    assert_eq!(busy.json()["refused"], "full");
    assert!(busy.json().get("handle").is_none());
    assert!(busy.stderr.contains("held by a lease requested by `"), "{busy:?}");
    let late = Lease::ask(&world, "10m", &["-w", "0.1", "-E", "9", "--read", "w/x"]).end().code(9);
    assert_eq!(late.json()["refused"], "timeout");
    assert!(late.stderr.contains("is held for writing by a lease"), "{late:?}");
    let waiter = Lease::ask(&world, "10m", &["--write", "a"]);
    world.until_waiting("a", 1);
    one.release(&world).code(0);
    two.release(&world).code(0);
    let three = Lease::of(&waiter.end().code(0));
    assert!(one.token < two.token && two.token < three.token);
    three.release(&world).code(0);
}

#[test]
fn a_lease_outlives_the_session_that_requested_it() {
    let world = World::with_daemon();
    let inner = "canal acquire --json --ttl 10m -k x >lease; canal status --json >inside";
    world.canal(["run", "-k", "outer", "--", "sh", "-c", inner]).end().code(0);
    let handle = serde_json::from_str::<Value>(&world.read("lease")).unwrap()["handle"].clone();
    world.until_held("outer", 0);
    assert_eq!(world.held("x"), 1);
    let renew = world.canal(["renew"]).env("CANAL_HANDLE", handle.as_str().unwrap());
    renew.end().code(0);
    // The lease has its own session, so a lock of the outer session would block it.
    let inside: Value = serde_json::from_str(&world.read("inside")).unwrap();
    let session = |at: usize| inside["keys"][at]["holders"][0]["session"].clone();
    assert_ne!(session(0), session(1));
}

#[test]
fn a_lease_whose_answer_was_not_delivered_is_released() {
    let world = World::with_daemon();
    for output in [">&-", ">/dev/full"] {
        let script = format!("canal acquire -q --ttl 10m -k x {output}");
        world.sh(&script).end().code(125);
        world.until_held("x", 0);
    }
    // The same for a client that is killed while it waits.
    let holder = world.holder(&["-k", "x"]);
    let asker = Lease::ask(&world, "10m", &["-k", "x"]);
    world.until_waiting("x", 1);
    asker.kill();
    world.until_waiting("x", 0);
    holder.finish();
    world.until_idle();
}

#[test]
fn a_stopped_client_that_waits_for_a_lease_blocks_no_other() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let asker = Lease::ask(&world, "10m", &["-k", "x"]);
    world.until_waiting("x", 1);
    asker.stop();
    holder.finish().code(0);
    world.canal(["run", "-w", "120", "-k", "x", "--", "true"]).end().code(0);
    asker.signal(Signal::SIGCONT);
    let lease = Lease::of(&asker.end().code(0));
    lease.release(&world).code(0);
}

#[test]
fn leases_survive_kills_of_the_daemon_with_their_token_and_a_whole_ttl() {
    in_time(Duration::from_secs(3), |ttl| {
        let world = World::with_daemon();
        let (begun, mut killed) = (Instant::now(), Instant::now());
        let lease = Lease::take(&world, &millis(ttl), &["-k", "x"]);
        let mut larger = lease.token;
        // The total is longer than the TTL, but no gap between two daemons is.
        while begun.elapsed() < ttl * 5 / 3 {
            // The lease also keeps others out between two kills.
            let wait = millis(ttl / 10);
            let busy = world.canal(["run", "-w", &wait, "-q", "-k", "x", "--", "true"]).end();
            if killed.elapsed() > ttl {
                return None;
            }
            busy.code(75);
            killed = Instant::now();
            world.kill_daemon();
            let shown = world.status().keys.into_iter().find(|key| key.key == "x");
            let took = killed.elapsed();
            if took > ttl / 3 {
                return None;
            }
            let shown = shown.unwrap();
            assert_eq!(shown.holders[0].token, lease.token);
            let left = shown.holders[0].lease.as_ref().unwrap().left_ms.unwrap();
            assert!(Duration::from_millis(left + 1) + took >= ttl, "{left} ms after {took:?}");
            let other = Lease::take(&world, "10m", &["-k", "y"]);
            assert!(other.token > larger, "tokens grow over restarts");
            larger = other.token;
            other.release(&world).code(0);
            if killed.elapsed() > ttl * 2 / 3 {
                return None;
            }
        }
        lease.until_lost(&world);
        world.kill_daemon();
        lost(lease.renew(&world), "expired");
        Some(())
    });
}

#[test]
fn a_daemon_that_is_stopped_for_longer_than_a_ttl_ends_the_lease_when_it_goes_on() {
    // Two hosts would expire the lease: a renewal through the stopped daemon would reach the other
    // host too late.
    let world = World::with_daemon().on_one_host();
    let lease = Lease::take(&world, "3s", &["-k", "x"]);
    let waiter = world.waiter("x", &[], &["true"]);
    let daemon = world.look().unwrap().daemon.pid.cast_signed();
    let kept = Lease::take(&world, "3s", &["-k", "kept"]);
    signal(daemon, Signal::SIGSTOP);
    // The client sends the renewal in time, and the renewal waits until the daemon continues.
    let renewal = world.canal(["renew", "--json"]).env("CANAL_HANDLE", &kept.handle).spawn();
    let begun = Instant::now();
    wait_until("the TTL is over", || begun.elapsed() > Duration::from_millis(3100));
    signal(daemon, Signal::SIGCONT);
    renewal.end().code(0);
    waiter.end().code(0);
    lost(lease.renew(&world), "expired");
}

#[test]
fn a_lease_broken_by_its_token_is_reported_to_its_owner() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "x"]);
    let token = lease.token.to_string();
    let ended = world.canal(["release", "--force", "--token", &token]).end().code(0);
    assert!(ended.stderr.contains("broke the hold on x by a lease requested by `"), "{ended:?}");
    lost(lease.renew(&world), "forced");
}

#[test]
fn a_process_cannot_release_a_lease_without_its_handle() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "x"]);
    let script = "canal release x --pid $$; canal release --all --pid $$; canal release x; :";
    let ended = world.sh(script).end().code(0);
    let refused = ended.stderr.lines().filter(|line| line.starts_with("canal: process "));
    assert_eq!(refused.count(), 3, "{ended:?}");
    let wrong = Lease { handle: "0".repeat(32), ..lease.clone() };
    lost(wrong.renew(&world), "unknown");
    lost(wrong.release(&world), "unknown");
    assert!(lease.holds(&world));
    lease.release(&world).code(0);
}

#[test]
fn any_user_with_the_handle_may_renew_and_release() {
    if journal_only("at a daemon in a mount namespace of its own, which has no engine") {
        return;
    }
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        ann() { setpriv --reuid 20001 --regid 20001 --clear-groups "$@"; }
        bob() { setpriv --reuid 20002 --regid 20002 --clear-groups "$@"; }
        export $(ann canal acquire --ttl 10m -k x)
        bob canal renew; echo "renew $?"
        bob canal status --json | grep -c '"uid":20001,"command":null'
        bob canal release --force --token $CANAL_TOKEN -q; echo "force $?"
        bob canal release; echo "release $?"
        setpriv --reuid 65534 --regid 65534 --clear-groups canal acquire -q --ttl 1m -k x
        echo "nobody $?"
    "#;
    let Some(ended) = privately(&world, script) else { return };
    assert_eq!(ended.stdout, "renew 0\n1\nforce 125\nrelease 0\nnobody 125\n", "{ended:?}");
}

#[test]
fn a_damaged_state_file_stops_the_next_daemon_and_loses_no_lease() {
    if journal_only("an engine keeps leases, and there is no state file") {
        return;
    }
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "x"]);
    world.kill_daemon_quietly();
    let path = world.runtime().join("state.json");
    let whole = std::fs::read(&path).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"{}", b""] {
        std::fs::write(&path, damaged).unwrap();
        let ended = world.canal(["status"]).end().code(125);
        assert!(ended.stderr.contains("state.json: it is damaged"), "{ended:?}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
    }
    std::fs::write(&path, whole).unwrap();
    // The message names the file of the leases and the remedy.
    let leases = world.runtime().join("leases.log");
    let mut bytes = std::fs::read(&leases).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&leases, &bytes).unwrap();
    let ended = world.canal(["status"]).end().code(125);
    assert!(ended.stderr.contains("leases.log is damaged at byte "), "{ended:?}");
    assert_eq!(std::fs::read(&leases).unwrap(), bytes);
    let way_out = ended.stderr.split('`').nth(1).unwrap();
    world.sh(way_out).end().code(0);
    // The journal has the leases of this boot, and the daemon stores them again at once.
    lease.renew(&world).code(0);
    let stored = String::from_utf8_lossy(&std::fs::read(&leases).unwrap()).into_owned();
    assert!(stored.contains("\"key\":\"x\""), "{stored}");
}

#[test]
fn status_shows_leases_and_their_waiters() {
    // Only its own host knows how much of the TTL is left.
    let world = World::with_daemon().on_one_host();
    let script = world.sh("canal acquire --ttl 10m -k x >/dev/null; read line");
    let script = script.stdin(Stdio::piped()).spawn();
    world.until_held("x", 1);
    let waiter = world.waiter("x", &[], &["true"]);
    let page = world.canal(["status", "-v"]).end().code(0).stdout;
    let line = page.lines().find(|line| line.contains("holds")).unwrap();
    assert!(line.contains("lease") && line.contains("sh -c canal acquire --ttl"), "{page}");
    assert!(page.contains("a lease of 10m00s, 9m"), "{page}");
    assert!(page.contains("s left, never renewed\n"), "{page}");
    let why = world.canal(["status", "--why", &waiter.pid_text()]).end().code(0).stdout;
    assert!(why.contains("\n  a lease requested by `sh -c canal acquire"), "{why}");
    let graph = world.canal(["status", "--graph"]).end().code(0).stdout;
    assert!(graph.contains("\\na lease "), "{graph}");
    let busy = world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert!(busy.stderr.contains("s left)"), "{busy:?}");
    drop(script);
}
