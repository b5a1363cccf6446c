//! The settings of a session, and its cost.

use std::time::Duration;

use super::events::EngineEvents as _;
use super::joined;
use crate::engine_contract::peer::Peer;
use crate::postgres_server::{Server, shared, start_postgres};
use crate::world::process::wait_until;

fn activity(server: &Server, url: &str, column: &str) -> String {
    let database = url.rsplit('/').next().unwrap();
    // The server's own processes connect to the database too.
    server.sql(&format!(
        "SELECT {column} FROM pg_stat_activity \
         WHERE datname = '{database}' AND backend_type = 'client backend'"
    ))
}

#[test]
fn the_host_is_named_to_the_server() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let _one = joined(&url, "büro 1");
    // The server shows non-ASCII characters in its own way.
    let name = activity(server, &url, "application_name");
    assert!(name.starts_with("canal b") && name.ends_with("ro 1"), "{name}");
}

#[test]
fn a_waiting_host_sends_no_query() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let mut one = joined(&url, "one");
    let position = one.append(b"a");
    one.read_to(position);
    let before = activity(server, &url, "state || state_change");
    assert!(before.starts_with("idle"), "{before}");
    assert!(one.poll(Duration::from_millis(1500)).is_none());
    assert_eq!(activity(server, &url, "state || state_change"), before);
}

#[test]
fn twenty_hosts_follow_without_a_query_and_an_append_costs_one_transaction() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let mut peers: Vec<Peer> = (0..20).map(|n| joined(&url, &format!("host{n}"))).collect();
    let first = peers[0].append(b"first");
    peers.iter_mut().for_each(|peer| peer.read_to(first));
    // An append is one message and one transaction. All other connections stay idle.
    let state = "string_agg(application_name || state || state_change, ',' ORDER BY application_name) \
                 FILTER (WHERE application_name <> 'canal host0')";
    let before = activity(server, &url, state);
    let mut last = first;
    for number in 0..10u8 {
        last = peers[0].append(&[b'x', number]);
    }
    peers.iter_mut().for_each(|peer| peer.read_to(last));
    assert_eq!(activity(server, &url, state), before);
    let large = peers[0].append(&[b'y'; 10_000]);
    peers.iter_mut().for_each(|peer| peer.read_to(large));
    assert_ne!(activity(server, &url, state), before, "what is large is read");
}

/// How many transactions the server counts while 20 hosts join, two of them get `grants` grants in
/// turns, and all leave.
fn transactions(server: &Server, grants: usize, may_rest: bool) -> i64 {
    let url = server.new_url();
    let mut peers: Vec<Peer> = (0..20).map(|n| joined(&url, &format!("host{n}"))).collect();
    if may_rest {
        peers.iter_mut().for_each(|peer| peer.attend(false));
    }
    for grant in 0..grants {
        let peer = &mut peers[grant % 2];
        if may_rest {
            // A client calls.
            peer.attend(false);
        }
        let asked = peer.append(b"request");
        peer.read_to(asked);
        let released = peer.append(b"release");
        peer.read_to(released);
    }
    // A session reports what it did when it ends.
    drop(peers);
    wait_until("all sessions end", || activity(server, &url, "count(*)") == "0");
    let database = url.rsplit('/').next().unwrap();
    let query = format!("SELECT xact_commit FROM pg_stat_database WHERE datname = '{database}'");
    server.sql(&query).parse().unwrap()
}

#[test]
fn a_grant_of_two_hosts_in_turns_costs_four_transactions_while_eighteen_rest() {
    let Some(server) = start_postgres() else { return };
    // The server's own work counts too.
    server.configure("autovacuum = off");
    server.sql("SELECT pg_reload_conf()");
    const GRANTS: usize = 30;
    let cost = |may_rest| {
        let joined = transactions(&server, 0, may_rest);
        (transactions(&server, GRANTS, may_rest) - joined) as f64 / GRANTS as f64
    };
    let (resting, listening) = (cost(true), cost(false));
    assert!((2.0..=4.0).contains(&resting), "{resting} transactions for a grant");
    assert!(listening > 20.0, "{listening} transactions for a grant: nobody was woken");
}

#[test]
fn a_host_that_rests_misses_nothing_when_it_listens_again() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let (mut one, mut two) = (joined(&url, "one"), joined(&url, "two"));
    let before = one.append(b"before");
    two.read_to(before);
    two.attend(false);
    let first = one.append(b"first");
    assert!(two.poll(Duration::from_millis(300)).is_none(), "nothing is announced to it");
    assert_eq!(two.renew().unwrap().0, first);
    two.read_to(first);
    // Its own batch brings those before it.
    one.append(b"other");
    let own = two.append(b"own");
    two.read_to(own);
    // It goes and returns while others append.
    std::thread::scope(|scope| {
        let appends = scope.spawn(|| (0..200u8).map(|n| one.append(&[n])).last().unwrap());
        while !appends.is_finished() {
            for listens in [true, false] {
                two.attend(listens);
                let read = two.log.last().unwrap().position;
                let head = two.renew().unwrap().0;
                assert!(read <= head);
            }
        }
        two.attend(true);
        let last = appends.join().unwrap();
        assert_eq!(two.log.last().unwrap().position, last, "it read to the end");
    });
    let next = one.append(b"next");
    two.read_to(next);
    two.in_order();
    one.read_to(next);
    assert_eq!(one.log, two.log);
}

#[test]
fn what_other_users_notify_is_never_taken_for_a_batch() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap().split('?').next().unwrap();
    let mut one = joined(&url, "one");
    let mut two = joined(&url, "two");
    let first = one.append(b"a");
    let next = first.0 + 1;
    let zeros = "0".repeat(32);
    for payload in [format!("{next} 1 2 {zeros} 61 {zeros}{zeros}"), "x".to_owned()] {
        server.sql_in(database, &format!("NOTIFY canal, '{payload}'"));
    }
    let second = one.append(b"b");
    assert_eq!(second.0, next);
    one.read_to(second);
    two.read_to(second);
}

#[test]
fn dangerous_server_defaults_are_overridden() {
    let Some(server) = start_postgres() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    for setting in [
        "default_transaction_isolation = 'serializable'",
        "synchronous_commit = off",
        "search_path = nowhere",
        "standard_conforming_strings = off",
        "statement_timeout = 500",
        "lock_timeout = 1",
        "idle_session_timeout = 500",
        "bytea_output = escape",
    ] {
        server.sql(&format!("ALTER DATABASE {database} SET {setting}"));
    }
    let mut peers: Vec<Peer> = (0..12).map(|n| joined(&url, &format!("host{n}"))).collect();
    std::thread::scope(|scope| {
        for peer in &mut peers {
            scope.spawn(|| {
                for n in 0_u8..20 {
                    peer.append(&[n]);
                }
                peer.read(240);
            });
        }
    });
    assert!(peers.iter().all(|peer| peer.log == peers[0].log && peer.kept().count() == 0));
    // Longer than the lifetime of an idle session.
    assert!(peers[0].poll(Duration::from_millis(1200)).is_none());
}
