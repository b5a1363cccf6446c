//! An etcd that has used up its quota.

use canal::log::engine::{Answer, Call, Registration};

use super::conditions::{away, back, joined, nothing_comes, peer};
use crate::engine_contract::peer::Peer;
use crate::etcd_server::{Etcd, installed, start_etcd_with};

fn ask_to_register(peer: &mut Peer) {
    let (identity, nonce) = (peer.identity(), 1);
    peer.call(Call::Register(Registration { identity, nonce, ttl_ms: 60_000, asked_at: 1 }));
}

/// An etcd that is soon full.
fn small_server() -> Etcd {
    start_etcd_with(&[
        "--quota-backend-bytes=4000000",
        "--election-timeout=500",
        "--heartbeat-interval=50",
    ])
}

#[test]
fn a_full_etcd_still_renews_and_takes_the_batch_once_there_is_room() {
    if !installed() {
        return;
    }
    let server = small_server();
    let mut one = joined(&format!("etcd://{}", server.endpoint()), "one");
    one.append(b"a");
    one.read(1);
    server.fill();
    // The engine keeps one append in flight, however often the host asks.
    for _ in 0..5 {
        one.ask(2, b"b", None);
    }
    let is_full = |answer: &Answer| matches!(answer, Answer::Full(Some(it)) if it.hint.is_some());
    one.until("Full", |answer| is_full(answer).then_some(()));
    nothing_comes(&mut one);
    assert!(one.renew().is_some());
    server.make_room();
    one.until("room again", |answer| matches!(answer, Answer::Full(None)).then_some(()));
    one.until("Appended", |answer| {
        matches!(answer, Answer::Appended { sequence: 2, .. }).then_some(())
    });
    one.read(2);
    nothing_comes(&mut one);
}

#[test]
fn a_host_refused_by_a_full_etcd_registers_once_there_is_room() {
    if !installed() {
        return;
    }
    let server = small_server();
    server.fill();
    let mut one = peer(&format!("etcd://{}", server.endpoint()), "one");
    ask_to_register(&mut one);
    away(&mut one);
    server.make_room();
    loop {
        back(&mut one);
        ask_to_register(&mut one);
        let registered = one.until("Registered or Away", |answer| match answer {
            Answer::Registered { .. } => Some(true),
            Answer::Away(_) => Some(false),
            _ => None,
        });
        if registered {
            return;
        }
    }
}

#[test]
fn a_host_on_a_full_etcd_is_told_how_to_make_room() {
    if !installed() {
        return;
    }
    let server = small_server();
    server.fill();
    let mut one = peer(&format!("etcd://{}", server.endpoint()), "one");
    ask_to_register(&mut one);
    let outage = one.until("Away", |answer| match answer {
        Answer::Away(outage) => Some(outage.clone()),
        _ => None,
    });
    // The append keeps waiting; the engine does not refuse it.
    assert!(!outage.refused, "{outage:?}");
    let (why, hint) = (outage.why, outage.hint.unwrap_or_default());
    assert!(why.contains("out of space") && hint.contains("etcdctl alarm disarm"), "{why}; {hint}");
}
