//! Snapshots, and what they replace.

use canal_log::engine::Position;

use super::Log;
use super::peer::{Follow, Peer, read_of};

pub(crate) fn an_empty_log_has_no_snapshot(log: &impl Log) {
    let mut one = Peer::new(log, "one");
    assert_eq!(one.load(), None);
    assert_eq!(one.log, []);
}

pub(crate) fn a_snapshot_replaces_the_batches_that_it_covers(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    one.read(5);
    let third = one.log[2].position;
    assert_eq!(one.store(third, b"table"), third);
    let mut two = Peer::new(log, "two");
    let stored = two.load().unwrap();
    assert_eq!((stored.position, stored.body.as_slice()), (third, b"table".as_slice()));
    assert_eq!(two.log, one.log[3..]);
    let next = one.append(b"next");
    two.read_to(next);
    assert_eq!(two.log.len(), 3);
}

pub(crate) fn an_older_snapshot_changes_nothing(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    one.read(5);
    two.read(5);
    let (second, fourth) = (one.log[1].position, one.log[3].position);
    assert_eq!(one.store(fourth, b"newer"), fourth);
    assert_eq!(two.store(second, b"older"), fourth);
    let mut late = Peer::new(log, "late");
    assert_eq!(late.load().unwrap().body, b"newer");
    assert_eq!(late.log, one.log[4..]);
}

/// A host stores such a snapshot if it has not noticed yet that the engine was restored to an older
/// state.
pub(crate) fn a_snapshot_from_beyond_the_log_changes_nothing(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    for n in 0_u8..3 {
        one.append(&[n]);
    }
    one.read(3);
    two.read(3);
    let (first, head) = (one.log[0].position, one.log[2].position);
    let beyond = Position(head.0 + 1);
    assert_eq!(one.store(beyond, b"lost"), Position(0));
    assert_eq!(two.store(first, b"table"), first);
    assert_eq!(one.store(beyond, b"lost"), first);
    let mut late = Peer::new(log, "late");
    assert_eq!(late.load().unwrap().body, b"table");
    assert_eq!(late.log, one.log[1..]);
    // The snapshot may include the last batch.
    assert_eq!(one.store(head, b"all"), head);
    assert_eq!(late.load().unwrap().body, b"all");
    assert_eq!(late.log, []);
}

pub(crate) fn batches_before_a_snapshot_are_compacted(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    one.read(5);
    one.store(one.log[2].position, b"table");
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(None), Follow::Compacted);
    assert_eq!(two.follow(Some(read_of(&one.log[1]))), Follow::Compacted);
    assert!(two.load().is_some());
    assert_eq!(two.log, one.log[3..]);
}

pub(crate) fn following_goes_on_from_the_last_batch_of_a_snapshot(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    one.read(5);
    one.store(one.log[2].position, b"table");
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(Some(read_of(&one.log[2]))), Follow::Batches);
    two.read(2);
    assert_eq!(two.log, one.log[3..]);
}

pub(crate) fn a_large_snapshot_comes_back_unchanged(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let position = one.append(b"a");
    one.read_to(position);
    let body: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(40_503) >> 8) as u8).collect();
    assert_eq!(one.store(position, &body), position);
    let mut two = Peer::new(log, "two");
    assert!(two.load().unwrap().body == body);
    // A later, smaller snapshot leaves nothing of it.
    let position = one.append(b"b");
    one.read_to(position);
    assert_eq!(one.store(position, &body[..1_500_000]), position);
    assert!(two.load().unwrap().body == body[..1_500_000]);
}

pub(crate) fn a_follower_never_misses_a_batch_while_others_compact(log: &impl Log) {
    const COUNT: u64 = 150;
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=COUNT {
                let position = one.append(&n.to_be_bytes());
                if n.is_multiple_of(10) {
                    one.read_to(position);
                    one.store(position, &n.to_be_bytes());
                }
            }
        });
        // The number of the last batch that the reader has seen, in a snapshot or separately.
        let mut seen = 0;
        while seen < COUNT {
            let compacted = two.more();
            if compacted {
                let stored = two.load().unwrap();
                let upto = u64::from_be_bytes(stored.body.try_into().unwrap());
                assert!(upto >= seen, "{upto} {seen}");
                seen = upto;
            }
            for placed in std::mem::take(&mut two.log) {
                assert_eq!(placed.sequence, seen + 1);
                seen += 1;
            }
        }
    });
}
