//! Eras: the log records each new era once, before anything else happens.

use super::Log;
use super::peer::{Follow, Peer};

pub(crate) fn nothing_is_done_before_the_first_era_is_noted(log: &impl Log) {
    // Nothing has been asked of the engine but to read.
    let mut one = Peer::new(log, "one");
    assert_eq!(one.load_eras(), [(1, false)]);
    one.register();
    let position = one.append(b"a");
    assert!(one.noted[0].position < position);
    assert_eq!(one.load_eras(), [(1, false)]);
}

pub(crate) fn one_of_many_hosts_notes_an_era_and_all_read_it_in_one_place(log: &impl Log) {
    let mut peers: Vec<_> = (0..5).map(|n| Peer::new(log, &format!("host{n}"))).collect();
    std::thread::scope(|scope| {
        for peer in &mut peers {
            scope.spawn(|| {
                peer.register();
                peer.load();
                peer.append(b"a");
                peer.read(5);
            });
        }
    });
    for peer in &peers {
        assert_eq!(peer.noted.len(), 1, "{:?}", peer.noted);
        assert_eq!((&peer.noted, &peer.log), (&peers[0].noted, &peers[0].log));
        assert!(peer.noted[0].position < peer.log[0].position);
    }
}

pub(crate) fn a_host_that_comes_later_notes_no_era(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    let last = one.append(b"a");
    two.read_to(last);
    assert_eq!(one.noted, two.noted);
    assert_eq!((one.load_eras(), two.load_eras()), (vec![(1, false)], vec![(1, false)]));
}

pub(crate) fn followers_read_eras_and_snapshots_cover_them(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(None), Follow::Batches);
    one.append(b"a");
    let last = one.append(b"b");
    two.read_to(last);
    assert_eq!(two.noted, one.noted);
    assert_eq!(two.noted.len(), 1);
    one.read_to(last);
    let stored = one.store(one.log[0].position, b"table");
    assert_eq!(stored, one.log[0].position);
    assert_eq!(two.load().unwrap().position, stored);
    assert_eq!((two.noted.len(), two.log.len()), (0, 1));
}
