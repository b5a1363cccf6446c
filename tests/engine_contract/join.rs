//! Incarnations: registration, and which hosts live.

use canal_log::engine::{Answer, Call, Position};

use super::Log;
use super::peer::{Peer, TTL_MS};

pub(crate) fn incarnations_increase(log: &impl Log) {
    let mut one = Peer::new(log, "one");
    let mut two = Peer::new(log, "two");
    let first = one.register().0;
    let second = two.register().0;
    let third = one.register_anew();
    assert!(first.0 > 0, "0 is the embedded journal's");
    assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
}

pub(crate) fn registering_again_with_the_same_nonce_takes_no_second_incarnation(log: &impl Log) {
    let mut one = Peer::new(log, "one");
    let first = one.register();
    assert_eq!(one.register(), first);
    let mut two = Peer::new(log, "two");
    two.register();
    assert_eq!(two.renew().unwrap().1.len(), 2);
}

pub(crate) fn hosts_of_the_same_label_are_reported_with_their_identity(log: &impl Log) {
    let mut old = Peer::new(log, "web");
    let mut far = Peer::new(log, "db");
    assert_eq!(old.register().2, []);
    assert_eq!(far.register().2, []);
    let mut new = Peer::new(log, "web");
    assert_eq!(new.register().2, [old.claimant()]);
}

pub(crate) fn an_incarnation_withdrawn_before_its_first_append_is_gone_at_once(log: &impl Log) {
    let withdraw = |peer: &mut Peer| {
        let host = peer.host;
        peer.call(Call::Withdraw { host });
        peer.until("Withdrawn", |answer| {
            matches!(answer, Answer::Withdrawn { host: it } if *it == host).then_some(())
        });
    };
    let mut old = Peer::new(log, "web");
    old.register();
    withdraw(&mut old);
    let mut new = Peer::joined(log, "web");
    let who = new.renew().unwrap().1;
    assert_eq!(who.iter().map(|alive| alive.host).collect::<Vec<_>>(), [new.host]);
    new.append(b"a");
    withdraw(&mut new);
    assert!(new.renew().is_some(), "what it appended counts");
    withdraw(&mut old);
    let mut third = Peer::new(log, "web");
    assert_eq!(third.register().2, [new.claimant()]);
}

pub(crate) fn all_hosts_see_the_same_epoch(log: &impl Log) {
    let one = Peer::new(log, "one").register().1;
    let two = Peer::new(log, "two").register().1;
    assert_eq!(one, two);
    assert_ne!(one, 0);
}

pub(crate) fn renewals_report_the_head_and_the_living_hosts(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    let era = one.noted.last().map_or(Position(0), |placed| placed.position);
    assert_eq!(one.renew().unwrap().0, era, "nothing but the era is there");
    let position = two.append(b"x");
    let (head, hosts) = one.renew().unwrap();
    assert_eq!(head, position);
    let mut who: Vec<_> = hosts.iter().map(|alive| alive.host).collect();
    who.sort();
    assert_eq!(who, [one.host, two.host]);
    assert!(hosts.iter().all(|alive| alive.ttl_ms == TTL_MS), "{hosts:?}");
}
