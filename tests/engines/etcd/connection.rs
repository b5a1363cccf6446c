//! Connections that break or fall silent.

use std::time::{Duration, Instant};

use canal::log::engine::{Answer, Call};

use super::conditions::{away, back, joined, nothing_comes, peer, read_on, register_for};
use super::{Prefix, prefix};
use crate::engine_contract::peer::{Appending, BOUND, Follow, Peer};
use crate::etcd_server::{free_port, proxy::Proxy};

fn through(proxy: &Proxy, log: &Prefix) -> String {
    format!("etcd://{}/test{}", proxy.endpoint(), log.number)
}

#[test]
fn a_cut_is_reported_once_and_missed_batches_are_read_after_it() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let mut one = Peer::joined(&log, "one");
    let mut two = joined(&through(&proxy, &log), "two");
    let position = one.append(b"a");
    two.read_to(position);
    proxy.cut();
    // The watch alone is enough to notice it. The next attempt fails for another reason.
    let first = away(&mut two);
    assert!(!first.is_empty());
    assert_ne!(away(&mut two), first);
    for n in 0_u8..5 {
        one.append(&[n]);
    }
    two.ask(1, b"called while away", None);
    nothing_comes(&mut two);
    proxy.mend();
    back(&mut two);
    // The engine forgets calls made while it was away.
    nothing_comes(&mut two);
    assert_eq!(two.follow(Some(two.last())), Follow::Batches);
    two.read(6);
    let last = two.append(b"mine");
    one.read_to(last);
    two.read_to(last);
    assert_eq!(two.log, one.log);
}

#[test]
fn no_batch_is_missed_or_doubled_over_many_cuts() {
    const COUNT: usize = 300;
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let mut one = Peer::joined(&log, "one");
    let mut two = joined(&through(&proxy, &log), "two");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..COUNT {
                if n % 30 == 29 {
                    proxy.cut_once();
                }
                one.append(&n.to_be_bytes());
            }
            one.read(COUNT);
        });
        crate::engines::etcd::conditions::read_at_last(&mut two, COUNT);
    });
    assert_eq!(two.log, one.log);
    assert!(proxy.accepted() > 1);
}

#[test]
fn a_lost_answer_to_an_append_does_no_harm() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let mut two = joined(&through(&proxy, &log), "two");
    for n in 0_u64..30 {
        two.ask(n + 1, &n.to_be_bytes(), None);
        // This may be before or after etcd has carried out the append.
        std::thread::sleep(Duration::from_micros(150 * (n % 15)));
        proxy.cut_once();
        two.sequence = n;
        crate::engines::etcd::conditions::append_at_last(&mut two, &n.to_be_bytes());
    }
    let mut all = Peer::joined(&log, "all");
    all.load();
    let sequences: Vec<_> = all.log.iter().map(|placed| placed.sequence).collect();
    assert_eq!(sequences, (1..=30).collect::<Vec<_>>());
}

#[test]
fn a_silent_connection_is_noticed_well_within_the_ttl() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to(log.server.port());
    let mut one = peer(&through(&proxy, &log), "one");
    assert_eq!(register_for(&mut one, 60_000), 60_000);
    proxy.fall_silent();
    let began = Instant::now();
    one.call(Call::Renew { host: one.host, asked_at: 3 });
    assert_eq!(away(&mut one), "etcd does not answer");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    proxy.mend();
    back(&mut one);
    assert!(one.renew().is_some());
}

#[test]
fn an_unreachable_engine_is_reported_once() {
    if !crate::etcd_server::installed() {
        return;
    }
    let port = free_port();
    let mut one = peer(&format!("etcd://127.0.0.1:{port}"), "one");
    assert_eq!(away(&mut one), format!("etcd at 127.0.0.1:{port}: connection refused"));
    one.call(Call::Load);
    nothing_comes(&mut one);
}

#[test]
fn a_dead_member_is_skipped_silently() {
    let Some(log) = prefix() else { return };
    let dead: Vec<_> = (0..3).map(|_| format!("127.0.0.1:{}", free_port())).collect();
    let (dead, live) = (dead.join(","), log.server.endpoint());
    // It does not matter which member it tries first.
    for _ in 0..8 {
        let mut one = peer(&format!("etcd://{dead},{live}/test{}", log.number), "one");
        one.call(Call::Load);
        match one.poll(BOUND) {
            Some(Answer::Loaded { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_next_member_takes_over() {
    let Some(log) = prefix() else { return };
    let roads = [Proxy::to(log.server.port()), Proxy::to(log.server.port())];
    let [near, far] = &roads;
    let both = format!("etcd://{},{}/test{}", near.endpoint(), far.endpoint(), log.number);
    let mut one = joined(&both, "one");
    let (mut used, mut other) = if near.accepted() > 0 { (near, far) } else { (far, near) };
    for n in 1..=4 {
        let before = other.accepted();
        used.cut();
        away(&mut one);
        back(&mut one);
        assert!(other.accepted() > before, "the member that was cut cannot have answered");
        used.mend();
        (used, other) = (other, used);
        read_on(&mut one);
        one.ask(n, b"x", None);
        assert!(matches!(one.appended(n), Appending::At(_)));
    }
}

/// A host that renews sees how far the log extends, so it does not matter why etcd did not report
/// an append.
#[test]
fn a_silent_watch_is_restarted_when_a_renewal_sees_more() {
    let Some(log) = prefix() else { return };
    let proxy = Proxy::to_http2(log.server.port());
    let mut one = Peer::joined(&log, "one");
    let mut two = joined(&through(&proxy, &log), "two");
    let position = one.append(b"a");
    two.read_to(position);
    proxy.mute_streams();
    for n in 0_u8..3 {
        one.append(&[n]);
    }
    nothing_comes(&mut two);
    two.renew().unwrap();
    two.read(4);
    // The other watch continues on the same connection.
    let position = one.append(b"b");
    two.read_to(position);
    assert_eq!((two.log, proxy.accepted()), (one_log(&log), 1));
}

fn one_log(log: &Prefix) -> Vec<canal::log::engine::Placed> {
    let mut all = Peer::joined(log, "all");
    all.load();
    std::mem::take(&mut all.log)
}
