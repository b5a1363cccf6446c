//! Following the log, including a log whose history was rewritten.

use canal_log::engine::{Hash, Position, Read};

use super::Log;
use super::peer::{Follow, Peer, read_of};

pub(crate) fn batches_of_other_hosts_are_pushed(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    for n in 0_u8..10 {
        let position = one.append(&[n]);
        two.read_to(position);
    }
    assert_eq!(two.log.len(), 10);
}

pub(crate) fn following_continues_after_the_last_read_batch(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    one.read(5);
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(Some(read_of(&one.log[1]))), Follow::Batches);
    two.read(3);
    assert_eq!(two.log, one.log[2..]);
    let next = one.append(b"next");
    two.read_to(next);
    assert_eq!(two.log.len(), 4);
    // There is an answer even without a new batch.
    let mut three = Peer::new(log, "three");
    assert_eq!(three.follow(Some(two.last())), Follow::Batches);
    assert_eq!(three.log, []);
}

pub(crate) fn following_from_the_beginning_equals_loading(log: &impl Log) {
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(None), Follow::Batches);
    let mut one = Peer::joined(log, "one");
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    two.read(5);
    let mut three = Peer::new(log, "three");
    three.load();
    assert_eq!(two.log, three.log);
}

pub(crate) fn a_long_log_is_read_without_a_gap_while_it_grows(log: &impl Log) {
    const BEFORE: usize = 700;
    const WHILE: usize = 100;
    let mut one = Peer::joined(log, "one");
    for n in 0..BEFORE {
        one.append(&n.to_be_bytes());
    }
    let mut two = Peer::new(log, "two");
    let mut three = Peer::new(log, "three");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in BEFORE..BEFORE + WHILE {
                one.append(&n.to_be_bytes());
            }
        });
        assert_eq!(two.follow(None), Follow::Batches);
        three.load();
        two.read(BEFORE + WHILE);
        three.read(BEFORE + WHILE);
    });
    assert_eq!(two.log, three.log);
    two.in_order();
    let numbers = two.log.iter().map(|placed| placed.sequence);
    assert!(numbers.eq(1..=(BEFORE + WHILE) as u64));
}

pub(crate) fn following_from_a_batch_that_differs_reports_a_rewritten_log(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    one.append(b"a");
    one.append(b"b");
    one.read(2);
    two.read(2);
    let read = read_of(&one.log[0]);
    let others = [
        Read { body: Hash([7; 32]), ..read },
        Read { host: two.host, ..read },
        Read { sequence: 2, ..read },
    ];
    for other in others {
        assert_eq!(two.follow(Some(other)), Follow::Rewritten, "{other:?}");
    }
    two.log.clear();
    assert_eq!(two.follow(Some(read)), Follow::Batches);
    two.read(1);
    assert_eq!(two.log, one.log[1..]);
}

pub(crate) fn following_from_beyond_the_log_reports_a_rewritten_log(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    one.append(b"a");
    one.read(1);
    let beyond = Read { position: Position(one.log[0].position.0 + 1000), ..one.last() };
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(Some(beyond)), Follow::Rewritten);
}
