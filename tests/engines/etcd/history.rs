//! Servers that return: with everything, without their history, or with another history.

use canal::log::engine::Call;

use super::conditions::{append_at_last, away, back, joined, read_at_last, read_on};
use super::prefix;
use crate::engine_contract::peer::{Appending, Follow, Peer, read_of};
use crate::etcd_server::{Etcd, installed, proxy::Proxy, start_etcd};

fn at(server: &Etcd) -> String {
    format!("etcd://{}", server.endpoint())
}

#[test]
fn a_server_that_crashed_comes_back_with_everything() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    let mut two = joined(&at(&server), "two");
    let last = one.append(b"a");
    two.read_to(last);
    one.read_to(last);
    server.kill();
    assert!(!away(&mut one).is_empty() && !away(&mut two).is_empty());
    server.start();
    back(&mut one);
    back(&mut two);
    assert_eq!(one.follow(Some(one.last())), Follow::Batches);
    assert_eq!(two.follow(Some(two.last())), Follow::Batches);
    assert!(one.renew().is_some(), "leases outlive it");
    let last = one.append(b"b");
    two.read_to(last);
    one.read_to(last);
    assert_eq!(one.log, two.log);
    assert_eq!(one.log.len(), 2);
}

#[test]
fn etcd_may_compact_its_own_history_at_any_time() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let mut one = Peer::joined(&log, "one");
    let away_at = format!("etcd://{}/test{}", proxy.endpoint(), log.number);
    let mut two = joined(&away_at, "two");
    let compact = || {
        let revision = log.server.revision().to_string();
        // Another test may have compacted further.
        let _ = log.server.ctl(&["compact", &revision]);
    };
    let last = one.append(b"a");
    two.read_to(last);
    proxy.cut();
    away(&mut two);
    for n in 0_u8..10 {
        one.append(&[n]);
    }
    compact();
    proxy.mend();
    back(&mut two);
    assert_eq!(two.follow(Some(two.last())), Follow::Batches);
    two.read(11);
    // The same under a watch, and for a new reader.
    for n in 0_u8..10 {
        let last = one.append(&[n]);
        compact();
        two.read_to(last);
    }
    two.in_order();
    let mut late = Peer::new(&log, "late");
    late.load();
    assert_eq!(late.log, two.log);
}

#[test]
fn a_host_that_was_away_during_a_snapshot_loads_it() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let mut one = Peer::joined(&log, "one");
    let mut two = joined(&format!("etcd://{}/test{}", proxy.endpoint(), log.number), "two");
    let last = one.append(b"a");
    two.read_to(last);
    proxy.cut();
    away(&mut two);
    for n in 0_u8..10 {
        one.append(&[n]);
    }
    one.read(11);
    one.store(one.log[5].position, b"table");
    proxy.mend();
    back(&mut two);
    assert_eq!(two.follow(Some(two.last())), Follow::Compacted);
    assert_eq!(two.load().unwrap().body, b"table");
    assert_eq!(two.log, one.log[6..]);
}

#[test]
fn a_snapshot_deletes_what_it_covers_except_its_last_batch() {
    let Some(log) = prefix() else { return };
    let mut one = Peer::joined(&log, "one");
    for n in 0_u8..=250 {
        one.append(&[n]);
    }
    one.read(251);
    let keys = |below: &str| {
        let prefix = format!("/test{}/{below}", log.number);
        let said = log.server.ctl_ok(&["get", "--prefix", "--keys-only", &prefix]);
        said.split_whitespace().count()
    };
    assert_eq!(keys("log/"), 252, "one of them notes the era");
    one.store(one.log[240].position, &vec![7; 2_500_000]);
    assert_eq!(keys("log/"), 11);
    assert_eq!(keys("snapshot/"), 4, "three pieces and the pointer");
    one.store(one.log[250].position, b"small");
    assert_eq!((keys("log/"), keys("snapshot/")), (1, 2));
}

/// Rule 9: history can be rewritten.
#[test]
fn a_restored_backup_is_another_history_for_a_host_that_has_read_further() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    let kept = one.append(b"kept");
    one.read_to(kept);
    let mut two = joined(&at(&server), "two");
    server.stop();
    let backup = server.data().with_extension("backup");
    copy(&server.data(), &backup);
    server.start();
    back(&mut one);
    back(&mut two);
    // A host notices the change only if it follows the log.
    read_on(&mut one);
    read_on(&mut two);
    let mut late = joined(&at(&server), "late");
    append_at_last(&mut late, b"lost");
    let lost = append_at_last(&mut one, b"lost too");
    read_at_last(&mut one, 3);
    server.kill();
    std::fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, &server.data());
    server.start();
    back(&mut one);
    back(&mut two);
    // A host that has read no further continues.
    assert_eq!(two.follow(Some(read_of(&one.log[0]))), Follow::Batches);
    // Another host now has the incarnation of the late one, and appends.
    let mut other = joined(&at(&server), "other");
    assert_eq!(other.host, late.host);
    for n in 0_u8..9 {
        other.append(&[n]);
    }
    assert_eq!(one.follow(Some(one.last())), Follow::Rewritten);
    assert!(one.last().position == lost);
    // The log lacks the batch that `one` appended.
    one.ask(3, b"next", None);
    assert_eq!(one.appended(3), Appending::Fenced);
    // The engine does not mistake the late host for the other one.
    back(&mut late);
    late.ask(10, b"mine", None);
    assert_eq!(late.appended(10), Appending::Fenced);
    late.call(Call::Load);
    assert!(crate::engines::etcd::conditions::fenced_renewal(&mut late).contains("gone"));
}

#[test]
fn a_recreated_log_is_another_history() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    let (_, epoch, _) = one.register();
    let last = one.append(b"a");
    one.read_to(last);
    server.kill();
    std::fs::remove_dir_all(server.data()).unwrap();
    server.start();
    back(&mut one);
    assert_eq!(one.follow(Some(one.last())), Follow::Rewritten);
    one.ask(2, b"b", None);
    assert_eq!(one.appended(2), Appending::Fenced);
    one.register_anew();
    assert_ne!(one.register().1, epoch);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}
