//! The end of an incarnation.

use canal_core::HostId;
use canal_log::engine::Evidence;

use super::Log;
use super::peer::{Appending, Peer};

pub(crate) fn an_ended_incarnation_can_neither_append_nor_renew(log: &impl Log) {
    let mut old = Peer::joined(log, "web");
    let mut new = Peer::joined(log, "web");
    old.append(b"a");
    let Appending::At(position) = new.end(old.host, Evidence::Own) else { panic!() };
    old.ask(2, b"b", None);
    assert_eq!(old.appended(2), Appending::Fenced);
    assert_eq!(old.renew(), None);
    let (head, hosts) = new.renew().unwrap();
    assert_eq!(head, position, "nothing comes after the end");
    assert_eq!(hosts.iter().map(|alive| alive.host).collect::<Vec<_>>(), [new.host]);
    let mut next = Peer::new(log, "web");
    let others: Vec<HostId> = next.register().2.iter().map(|other| other.host).collect();
    assert_eq!(others, [new.host]);
}

pub(crate) fn an_incarnation_ends_once_only(log: &impl Log) {
    let mut gone = Peer::joined(log, "gone");
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    gone.append(b"a");
    let Appending::At(end) = one.end(gone.host, Evidence::Own) else { panic!() };
    assert_eq!(two.end(gone.host, Evidence::Own), Appending::Overtaken);
    assert_eq!(two.end(HostId(two.host.0 + 1000), Evidence::Own), Appending::Overtaken);
    // A batch that was not appended does not use up its number.
    let next = two.append(b"b");
    two.read_to(next);
    assert_eq!(two.log.len(), 3);
    assert!(end < next);
}

pub(crate) fn the_ending_batch_again_is_success(log: &impl Log) {
    let mut gone = Peer::joined(log, "gone");
    let mut one = Peer::joined(log, "one");
    gone.append(b"a");
    let first = one.end(gone.host, Evidence::Own);
    one.sequence -= 1;
    assert_eq!(one.end(gone.host, Evidence::Own), first);
    assert_eq!(one.renew().unwrap().1.len(), 1);
}

pub(crate) fn a_host_can_end_itself(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    one.append(b"a");
    let end = one.end(one.host, Evidence::Own);
    assert!(matches!(end, Appending::At(_)), "{end:?}");
    one.sequence -= 1;
    assert_eq!(one.end(one.host, Evidence::Own), end, "asked again");
    assert_eq!(one.renew(), None);
    one.ask(3, b"b", None);
    assert_eq!(one.appended(3), Appending::Fenced);
}

pub(crate) fn two_hosts_that_end_each_other_cannot_both_succeed(log: &impl Log) {
    for round in 0..8 {
        let mut one = Peer::joined(log, &format!("one{round}"));
        let mut two = Peer::joined(log, &format!("two{round}"));
        let (first, second) = (one.host, two.host);
        let (of_one, of_two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| one.end(second, Evidence::Own));
            let two = scope.spawn(|| two.end(first, Evidence::Own));
            (one.join().unwrap(), two.join().unwrap())
        });
        match (of_one, of_two) {
            (Appending::At(_), Appending::Fenced) | (Appending::Fenced, Appending::At(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}
