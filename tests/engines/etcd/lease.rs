//! Leases of hosts: how other hosts see which hosts live.

use std::thread::sleep;
use std::time::{Duration, Instant};

use canal::log::engine::{Alive, Evidence, Sign};

use super::conditions::{fenced_renewal, register_for, renew_unless_away};
use super::{Prefix, prefix};
use crate::engine_contract::peer::{Appending, Peer};
use crate::world::process::wait_until;

fn sign(of: &Peer, seen_by: &mut Peer) -> Option<Sign> {
    let (_, hosts) = seen_by.renew().unwrap();
    hosts.iter().find(|alive| alive.host == of.host).map(|&Alive { sign, .. }| sign)
}

#[test]
fn a_host_that_does_not_renew_lapses_and_can_be_ended_only_then() {
    let Some(log) = prefix() else { return };
    // Try a longer TTL if the machine is too slow to check within it.
    assert!((0..7).any(|doubled| lapses(&log, 1000 << doubled)), "too slow, whatever the time");
}

/// Whether the test could check before the TTL was over.
fn lapses(log: &Prefix, ttl_ms: u64) -> bool {
    let (mut old, mut new) = (Peer::new(log, "old"), Peer::joined(log, "new"));
    let before = Instant::now();
    let ttl = Duration::from_millis(register_for(&mut old, ttl_ms));
    old.append(b"a");
    let (sign_before, ended) = (sign(&old, &mut new), new.end(old.host, Evidence::Lapsed));
    if before.elapsed() > ttl {
        return false;
    }
    assert_eq!((sign_before, ended), (Some(Sign::Watched), Appending::Overtaken));
    wait_until("the lease has run out", || sign(&old, &mut new) == Some(Sign::Lapsed));
    // The incarnation has not ended: it can still append.
    old.append(b"b");
    assert!(matches!(new.end(old.host, Evidence::Lapsed), Appending::At(_)));
    assert_eq!(sign(&old, &mut new), None);
    old.ask(3, b"c", None);
    assert_eq!(old.appended(3), Appending::Fenced);
    assert!(fenced_renewal(&mut old).contains("declared gone"));
    true
}

#[test]
fn a_renewal_after_the_lease_was_lost_is_fenced_with_the_reason() {
    let Some(log) = prefix() else { return };
    let (mut one, mut two) = (Peer::new(&log, "one"), Peer::joined(&log, "two"));
    register_for(&mut one, 1000);
    wait_until("the lease has run out", || sign(&one, &mut two) == Some(Sign::Lapsed));
    assert!(fenced_renewal(&mut one).contains("lease"));
    // A host that sees this cannot revive.
    assert!(fenced_renewal(&mut one).contains("lease"));
}

#[test]
fn a_deleted_key_is_a_lost_lease() {
    let Some(log) = prefix() else { return };
    let mut one = Peer::joined(&log, "one");
    assert!(one.renew().is_some());
    let key = format!("/test{}/hosts/{}", log.number, one.host);
    assert_eq!(log.server.ctl_ok(&["del", &key]).trim(), "1");
    assert!(fenced_renewal(&mut one).contains("lease"));
}

/// The etcd of the tests may have the fault of revoking leases despite their renewals (etcd#15247).
#[test]
fn a_vanished_lease_counts_only_after_its_ttl_where_etcd_revokes_too_early() {
    let Some(log) = prefix() else { return };
    let version = log.server.version();
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
    let exact = match numbers[..] {
        [3, 4, patch] => patch >= 31,
        [3, 5, patch] => patch >= 13,
        _ => true,
    };
    let (mut one, mut two) = (Peer::new(&log, "one"), Peer::joined(&log, "two"));
    let ttl_ms = register_for(&mut one, 2000);
    log.server.ctl_ok(&["del", &format!("/test{}/hosts/{}", log.number, one.host)]);
    let began = Instant::now();
    wait_until("it is seen", || sign(&one, &mut two) == Some(Sign::Lapsed));
    assert!(exact || began.elapsed() >= Duration::from_millis(ttl_ms * 11 / 10));
}

#[test]
fn a_host_that_renews_is_watched_beyond_its_ttl() {
    let Some(log) = prefix() else { return };
    // Try a longer TTL if the machine is too slow to renew within it.
    assert!((0..7).any(|doubled| is_watched(&log, 1000 << doubled)), "too slow, whatever the time");
}

/// Whether all renewals were in time and the other host saw this one alive throughout.
fn is_watched(log: &Prefix, ttl_ms: u64) -> bool {
    let (mut one, mut two) = (Peer::new(log, "one"), Peer::joined(log, "two"));
    let ttl = Duration::from_millis(register_for(&mut one, ttl_ms));
    let end = Instant::now() + 3 * ttl;
    while Instant::now() < end {
        let before = Instant::now();
        let (Some(renewed), Some(seen)) =
            (renew_unless_away(&mut one), renew_unless_away(&mut two))
        else {
            // A call fails only after a third of the TTL.
            assert!(before.elapsed() >= ttl / 4, "etcd was away at once");
            return false;
        };
        sleep(ttl / 20);
        if before.elapsed() > ttl / 2 {
            return false;
        }
        assert!(renewed.is_some());
        let sign = seen.unwrap().iter().find(|alive| alive.host == one.host).map(|it| it.sign);
        assert_eq!(sign, Some(Sign::Watched));
    }
    true
}

#[test]
fn the_ttl_is_the_one_that_etcd_grants() {
    let Some(log) = prefix() else { return };
    let mut one = Peer::new(&log, "one");
    assert!(register_for(&mut one, 1) >= 1000);
    assert_eq!(register_for(&mut one, 7001), 8000);
}

#[test]
fn silence_ends_no_host_that_etcd_watches() {
    let Some(log) = prefix() else { return };
    let (one, mut two) = (Peer::joined(&log, "one"), Peer::joined(&log, "two"));
    let silent = Evidence::Silent { renewals: 0 };
    assert_eq!(two.end(one.host, silent), Appending::Overtaken);
}

#[test]
fn registering_again_after_the_lease_was_lost_takes_a_new_incarnation() {
    let Some(log) = prefix() else { return };
    let mut one = Peer::new(&log, "one");
    let (first, ..) = one.register();
    log.server.ctl_ok(&["del", &format!("/test{}/hosts/{first}", log.number)]);
    let (second, _, others) = one.register();
    assert!(second > first);
    assert_eq!(others.len(), 1, "it is to be ended");
    assert!(one.renew().is_some());
}
