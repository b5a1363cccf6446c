//! Appends: the log contains a batch wholly or not at all, once, and in one order for all hosts.

use canal_core::HostId;

use super::Log;
use super::peer::{Appending, Peer};

pub(crate) fn appended_batches_come_back_in_order(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let places: Vec<_> = (0_u8..20).map(|n| one.append(&[n])).collect();
    one.read(20);
    one.in_order();
    for (n, placed) in one.log.iter().enumerate() {
        assert_eq!(placed.position, places[n]);
        assert_eq!((placed.host, placed.sequence), (one.host, n as u64 + 1));
        assert_eq!(placed.body, [n as u8]);
    }
}

pub(crate) fn all_hosts_see_concurrent_appends_in_the_same_order(log: &impl Log) {
    const HOSTS: usize = 6;
    const EACH: u64 = 40;
    let mut peers: Vec<_> = (0..HOSTS).map(|n| Peer::joined(log, &format!("host{n}"))).collect();
    std::thread::scope(|scope| {
        for peer in &mut peers {
            scope.spawn(|| {
                for n in 0..EACH {
                    peer.append(format!("{} {n}", peer.host.0).as_bytes());
                }
                peer.read(HOSTS * EACH as usize);
            });
        }
    });
    peers[0].in_order();
    for peer in &peers {
        assert_eq!(peer.log, peers[0].log);
        let own = peer.log.iter().filter(|placed| placed.host == peer.host);
        assert!(own.map(|placed| placed.sequence).eq(1..=EACH));
    }
    let mut late = Peer::new(log, "late");
    late.load();
    assert_eq!(late.log, peers[0].log);
}

pub(crate) fn the_same_batch_again_is_success_and_is_in_the_log_once(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let first = one.append(b"a");
    for _ in 0..3 {
        one.ask(1, b"a", None);
        assert_eq!(one.appended(1), Appending::At(first));
    }
    // Repeat it over another connection, because the first may have broken.
    let mut again = Peer::new(log, "one");
    again.host = one.host;
    again.ask(1, b"a", None);
    assert_eq!(again.appended(1), Appending::At(first));
    let second = one.append(b"b");
    one.read_to(second);
    assert_eq!(one.log.len(), 2);
}

pub(crate) fn another_body_under_the_same_number_is_fenced(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    one.append(b"a");
    let mut impostor = Peer::new(log, "one");
    impostor.host = one.host;
    impostor.ask(1, b"b", None);
    assert_eq!(impostor.appended(1), Appending::Fenced);
    let second = one.append(b"c");
    one.read_to(second);
    let bodies: Vec<_> = one.log.iter().map(|placed| placed.body.as_slice()).collect();
    assert_eq!(bodies, [b"a", b"c"]);
}

pub(crate) fn a_batch_number_with_a_gap_is_fenced(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    one.append(b"a");
    one.ask(3, b"c", None);
    assert_eq!(one.appended(3), Appending::Fenced);
    let mut all = Peer::new(log, "all");
    all.load();
    assert_eq!(all.log.len(), 1);
}

pub(crate) fn an_unknown_incarnation_is_fenced(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    one.host = HostId(one.host.0 + 1000);
    one.ask(1, b"a", None);
    assert_eq!(one.appended(1), Appending::Fenced);
    assert_eq!(one.renew(), None);
    one.load();
    assert_eq!(one.log, []);
}

pub(crate) fn a_batch_of_a_megabyte_passes_unchanged(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    let body: Vec<u8> =
        (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let position = one.append(&body);
    two.read_to(position);
    assert!(two.log[0].body == body);
}
