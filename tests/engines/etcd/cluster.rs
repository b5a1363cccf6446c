//! Clusters that lose members.

use super::conditions::{append_at_last, away, back, joined, read_at_last, read_on};
use crate::engine_contract::peer::Peer;
use crate::etcd_server::cluster::{endpoints, leader, until_another_leads};
use crate::etcd_server::{Etcd, installed, start_etcd_cluster};
use crate::world::process::wait_until;

fn all(members: &[Etcd]) -> String {
    format!("etcd://{}", endpoints(members))
}

#[test]
fn all_see_the_same_log_while_the_leader_crashes_and_comes_back() {
    if !installed() {
        return;
    }
    const EACH: usize = 100;
    let mut members = start_etcd_cluster(3);
    let address = all(&members);
    let mut peers: Vec<_> = (0..4).map(|n| joined(&address, &format!("host{n}"))).collect();
    let count = EACH * peers.len();
    std::thread::scope(|scope| {
        let work = peers.iter_mut().map(|peer| {
            scope.spawn(move || {
                for n in 0..EACH {
                    append_at_last(peer, format!("{} {n}", peer.host).as_bytes());
                }
                read_at_last(peer, count);
            })
        });
        let work: Vec<_> = work.collect();
        let mut kills = 0;
        while kills < 2 || !work.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let leader = leader(&members);
            members[leader].kill();
            until_another_leads(&members, leader);
            members[leader].start();
            kills += 1;
        }
    });
    for peer in &peers {
        assert_eq!(peer.log, peers[0].log);
        let own = peer.log.iter().filter(|placed| placed.host == peer.host);
        assert!(own.map(|placed| placed.sequence).eq(1..=EACH as u64));
    }
    peers[0].in_order();
}

/// A member without a majority would keep a watch open and silent forever.
#[test]
fn a_watch_at_a_member_without_a_leader_is_noticed_without_a_call() {
    if !installed() {
        return;
    }
    let mut members = start_etcd_cluster(3);
    let alone = format!("etcd://{}", members[0].endpoint());
    let mut one = joined(&alone, "one");
    members[1].kill();
    members[2].kill();
    let why = away(&mut one);
    assert!(why.contains("no leader"), "{why}");
    members[1].start();
    back(&mut one);
    read_on(&mut one);
    let last = append_at_last(&mut one, b"a");
    one.read_to(last);
}

#[test]
fn a_host_leaves_a_stopped_member_for_another() {
    if !installed() {
        return;
    }
    let members = start_etcd_cluster(3);
    let address = all(&members);
    let mut peers: Vec<Peer> = (0..3).map(|n| joined(&address, &format!("host{n}"))).collect();
    for peer in &mut peers {
        crate::engines::etcd::conditions::register_for(peer, 5000);
    }
    for member in &members {
        member.pause();
        for peer in &mut peers {
            append_at_last(peer, b"x");
        }
        member.resume();
        wait_until("it is there again", || member.is_healthy());
    }
    for peer in &mut peers {
        read_at_last(peer, 9);
    }
    assert!(peers.iter().all(|peer| peer.log == peers[0].log));
}
