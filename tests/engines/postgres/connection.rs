//! A connection that breaks, and a server that stops and starts.

use std::time::Duration;

use canal::log::engine::{Answer, Append, Call};

use super::events::EngineEvents as _;
use super::{joined, opened};
use crate::engine_contract::peer::{Appending, Follow, Peer};
use crate::postgres_server::{Server, shared, start_postgres};

/// Breaks all connections of that host.
fn cut(server: &Server, url: &str, label: &str) {
    let database = url.rsplit('/').next().unwrap();
    let cut = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = '{database}' AND application_name = 'canal {label}'"
    );
    assert_eq!(server.sql(&cut), "1");
}

/// Follows the log again after a loss.
fn go_on(peer: &mut Peer) {
    let after = peer.log.last().map(|_| peer.last());
    assert_eq!(peer.follow(after), Follow::Batches);
}

#[test]
fn a_broken_connection_is_reported_once_and_replaced() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let (mut one, mut two) = (joined(&url, "one"), joined(&url, "two"));
    one.append(b"a");
    one.read(1);
    cut(server, &url, "one");
    let why = one.away();
    assert!(why.contains("administrator"), "{why}");
    two.append(b"b");
    one.back();
    go_on(&mut one);
    one.read(2);
    let last = one.append(b"c");
    two.read_to(last);
    assert_eq!(one.log, two.log[..one.log.len()]);
    assert_eq!(one.kept().count(), 0, "{:?}", one.kept().collect::<Vec<_>>());
}

#[test]
fn an_append_repeated_over_broken_connections_is_done_once() {
    const COUNT: u64 = 60;
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let (mut one, mut two) = (joined(&url, "one"), joined(&url, "two"));
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            for sequence in 1..=COUNT {
                persist(&mut one, sequence);
            }
        });
        while !appending.is_finished() {
            server.sql(&format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = '{database}' AND application_name = 'canal one' \
                 AND state = 'active' LIMIT 1"
            ));
        }
        appending.join().unwrap();
    });
    two.read(COUNT as usize);
    two.in_order();
    assert!(two.log.iter().map(|placed| placed.sequence).eq(1..=COUNT));
}

/// Appends until the append is confirmed.
fn persist(peer: &mut Peer, sequence: u64) {
    let append =
        Append { host: peer.host, sequence, body: sequence.to_be_bytes().to_vec(), ends: None };
    loop {
        peer.call(Call::Append(append.clone()));
        let done = peer.until("Appended or Away", |answer| match answer {
            Answer::Appended { sequence: done, .. } => Some(*done == sequence),
            Answer::Away(_) => Some(false),
            Answer::Fenced { why, .. } => panic!("{why}"),
            _ => None,
        });
        if done {
            return;
        }
        peer.back();
        // Another reason for the outage may have followed the first one before the server was back.
        // The next round must not take it for an outage of its own.
        peer.kept.retain(|answer| !matches!(answer, Answer::Away(_)));
    }
}

#[test]
fn a_server_that_restarts_has_kept_everything() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    let mut one = joined(&url, "one");
    one.append(b"a");
    one.read(1);
    for crash in [false, true] {
        if crash {
            server.crash();
        } else {
            server.halt();
        }
        one.away();
        // The engine forgets it, because the server is away.
        one.ask(77, b"x", None);
        server.start();
        one.back();
        go_on(&mut one);
        let position = one.append(b"b");
        one.read_to(position);
        assert!(one.renew().is_some());
    }
    assert_eq!(one.log.len(), 3);
    one.in_order();
    // The engine reports again only because the reason differs: first lost, then unreachable.
    let kept: Vec<_> = one.kept().collect();
    assert!(kept.iter().all(|answer| matches!(answer, Answer::Away(_))), "{kept:?}");
    assert!(kept.len() <= 4, "{kept:?}");
}

#[test]
fn a_host_waits_for_a_server_that_does_not_run_yet() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    server.halt();
    let mut one = opened(&url, "one");
    let why = one.away();
    assert!(why.contains("cannot connect"), "{why}");
    server.start();
    one.back();
    one.register();
}

#[test]
fn an_append_that_was_done_before_the_loss_is_success_afterwards() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let mut one = joined(&url, "one");
    let first = one.append(b"a");
    cut(server, &url, "one");
    one.away();
    one.back();
    one.ask(1, b"a", None);
    assert_eq!(one.appended(1), Appending::At(first));
}

#[test]
fn the_next_renewal_makes_up_for_a_lost_notification() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let (mut one, two) = (joined(&url, "one"), joined(&url, "two"));
    server.sql_in(
        database,
        &format!(
            "WITH head AS (UPDATE canal.head SET position = position + 1 RETURNING position) \
             INSERT INTO canal.log SELECT position, {}, 1, 'silent' FROM head",
            two.host.0
        ),
    );
    assert!(one.poll(Duration::from_millis(300)).is_none());
    one.renew().unwrap();
    one.read(1);
    assert_eq!(one.log[0].body, b"silent");
}

#[test]
fn other_notifications_on_the_same_channel_do_no_harm() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let mut one = joined(&url, "one");
    for payload in ["", "nonsense", "-1", "99999999999999999999", "3"] {
        server.sql_in(database, &format!("SELECT pg_notify('canal', '{payload}')"));
    }
    let position = one.append(b"a");
    one.read_to(position);
    assert_eq!(one.log.len(), 1);
    assert_eq!(one.kept().count(), 0);
}
