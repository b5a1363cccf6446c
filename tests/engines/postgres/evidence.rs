//! The evidence that ends an incarnation here: its renewals have stopped.

use canal::core::HostId;
use canal::log::engine::{Evidence, Sign};

use super::joined;
use crate::engine_contract::peer::{Appending, Peer};
use crate::postgres_server::shared;

/// How often `host` has renewed, as `observer` sees it.
fn renewals(observer: &mut Peer, host: HostId) -> u64 {
    let (_, hosts) = observer.renew().unwrap();
    let found = hosts.iter().find(|alive| alive.host == host).unwrap();
    let Sign::Renewals(renewals) = found.sign else { panic!("{found:?}") };
    renewals
}

#[test]
fn each_renewal_is_counted_and_seen_by_others() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let (mut one, mut two) = (joined(&url, "one"), joined(&url, "two"));
    assert_eq!(renewals(&mut two, one.host), 0);
    for n in 1..=3 {
        one.renew().unwrap();
        assert_eq!(renewals(&mut two, one.host), n);
    }
}

#[test]
fn silence_since_the_last_seen_renewal_ends_an_incarnation() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let (mut gone, mut one) = (joined(&url, "gone"), joined(&url, "one"));
    gone.renew().unwrap();
    let renewals = renewals(&mut one, gone.host);
    let ended = one.end(gone.host, Evidence::Silent { renewals });
    assert!(matches!(ended, Appending::At(_)), "{ended:?}");
    assert_eq!(gone.renew(), None);
}

#[test]
fn a_renewal_after_the_last_seen_one_prevents_the_end() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let (mut alive, mut one) = (joined(&url, "alive"), joined(&url, "one"));
    let renewals = renewals(&mut one, alive.host);
    alive.renew().unwrap();
    assert_eq!(one.end(alive.host, Evidence::Silent { renewals }), Appending::Overtaken);
    assert!(alive.renew().is_some());
    assert_eq!(
        one.end(alive.host, Evidence::Lapsed),
        Appending::Overtaken,
        "PostgreSQL watches no host"
    );
}

#[test]
fn a_renewal_and_an_end_at_once_do_not_both_succeed() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let mut one = joined(&url, "one");
    let mut outcomes = [0, 0];
    for round in 0..40 {
        let mut other = joined(&url, &format!("other{round}"));
        let (host, renewals) = (other.host, renewals(&mut one, other.host));
        let (ended, renewed) = std::thread::scope(|scope| {
            let ended = scope.spawn(|| one.end(host, Evidence::Silent { renewals }));
            let renewed = scope.spawn(|| other.renew());
            (ended.join().unwrap(), renewed.join().unwrap())
        });
        match (ended, renewed) {
            (Appending::At(_), None) => outcomes[0] += 1,
            (Appending::Overtaken, Some(_)) => outcomes[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(outcomes[0] + outcomes[1], 40);
}
