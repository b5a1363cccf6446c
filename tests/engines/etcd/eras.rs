//! Eras of real etcds: restarted, with another leader, restored, wiped.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::conditions::{append_at_last, away, back, joined, read_on};
use super::prefix;
use crate::engine_contract::peer::{Appending, Peer};
use crate::etcd_server::cluster::{endpoints, leader, until_another_leads};
use crate::etcd_server::{Etcd, installed, proxy::Proxy, start_etcd, start_etcd_cluster};

fn at(server: &Etcd) -> String {
    format!("etcd://{}", server.endpoint())
}

/// Waits until a host that was up is back. Returns the number of the last era in the log, and
/// whether entries may be missing.
fn era_after(peer: &mut Peer) -> (u64, bool) {
    back(peer);
    *peer.load_eras().last().unwrap()
}

#[test]
fn a_restart_begins_no_era() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    for n in 0..4 {
        append_at_last(&mut one, b"a");
        if n % 2 == 0 {
            server.kill();
        } else {
            server.stop();
        }
        server.start();
        back(&mut one);
        // A host notices the change only if it follows the log.
        read_on(&mut one);
        let mut new = joined(&at(&server), "new");
        append_at_last(&mut new, b"b");
        assert_eq!(new.load_eras(), [(1, false)]);
    }
    assert_eq!(one.load_eras(), [(1, false)]);
}

#[test]
fn another_leader_begins_no_era() {
    if !installed() {
        return;
    }
    let mut members = start_etcd_cluster(3);
    let address = format!("etcd://{}", endpoints(&members));
    let mut one = joined(&address, "one");
    for _ in 0..3 {
        append_at_last(&mut one, b"a");
        let leads = leader(&members);
        members[leads].kill();
        until_another_leads(&members, leads);
        append_at_last(&mut one, b"b");
        members[leads].start();
        // Append through each member, even one that may be behind.
        for member in &members {
            let mut new = joined(&at(member), "new");
            append_at_last(&mut new, b"c");
            assert_eq!(new.load_eras(), [(1, false)]);
        }
    }
}

#[test]
fn after_a_restored_snapshot_something_may_be_missing() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    one.append(b"kept");
    let saved = server.data().with_extension("saved");
    server.save(&saved);
    let mut two = joined(&at(&server), "two");
    // Restore the same snapshot twice.
    for lost in [&b"first"[..], b"second"] {
        one.append(lost);
        server.restore(&saved);
        away(&mut one);
        assert_eq!(era_after(&mut one), (2, true));
        back(&mut two);
        assert_eq!(two.load_eras(), [(1, false), (2, true)]);
        assert_eq!(one.load_eras(), [(1, false), (2, true)]);
        assert_eq!(one.log.len(), 1);
        // The host makes the lost batch again.
        one.sequence -= 1;
    }
    drop((one, two));
    // The same for a daemon that has seen none of it.
    server.restore(&saved);
    let mut new = joined(&at(&server), "new");
    assert_eq!(new.load_eras(), [(1, false), (2, true)]);
    // From then on a restart begins no era.
    server.kill();
    server.start();
    back(&mut new);
    append_at_last(&mut new, b"a");
    assert_eq!(joined(&at(&server), "newer").load_eras(), [(1, false), (2, true)]);
}

#[test]
fn a_restored_data_folder_is_noticed_by_a_host_that_saw_more() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    one.append(b"kept");
    server.stop();
    let kept = server.data().with_extension("kept");
    copy(&server.data(), &kept);
    server.start();
    back(&mut one);
    read_on(&mut one);
    append_at_last(&mut one, b"lost");
    server.kill();
    fs::remove_dir_all(server.data()).unwrap();
    copy(&kept, &server.data());
    server.start();
    back(&mut one);
    assert_eq!(one.load_eras(), [(1, false), (2, true)]);
}

#[test]
fn a_wiped_etcd_lacks_entries_that_a_host_had_seen() {
    if !installed() {
        return;
    }
    let mut server = start_etcd();
    let mut one = joined(&at(&server), "one");
    one.append(b"a");
    let mut wipe = || {
        server.kill();
        fs::remove_dir_all(server.data()).unwrap();
        server.start();
    };
    wipe();
    back(&mut one);
    assert_eq!(one.load_eras(), [(1, true)]);
    drop(one);
    wipe();
    assert_eq!(joined(&at(&server), "new").load_eras(), [(1, false)]);
}

/// A new connection may lead to another etcd.
#[test]
fn no_append_goes_over_a_connection_that_was_silently_replaced() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let address = format!("etcd://{}/test{}", proxy.endpoint(), log.number);
    let mut one = crate::engines::etcd::conditions::peer(&address, "one");
    one.register();
    let accepted = proxy.accepted();
    // The host reads nothing, so it does not notice.
    proxy.cut_once();
    std::thread::sleep(Duration::from_millis(100));
    one.ask(1, b"a", None);
    away(&mut one);
    back(&mut one);
    assert_eq!(proxy.accepted(), accepted + 1);
    one.ask(1, b"a", None);
    assert!(matches!(one.appended(1), Appending::At(_)));
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}
