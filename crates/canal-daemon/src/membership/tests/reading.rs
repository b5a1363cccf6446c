//! Rules 9, 12 and 13: what hosts read, that it is the same for all, and that reading costs
//! nothing.

use crate::membership::batch_chain::{Chain, Known, RECENT_MAX, Step, Trouble, Trust, genesis};
use crate::membership::proposal_queue::entry;
use crate::membership::tests::direct::{Direct, TTL_MS, at, identity, server, settings};
use crate::membership::{Event, LostWhy, Settings};
use canal_core::{Change, HostId};
use canal_log::engine::{Answer, Batch, Call, Link, Outage, Placed, Position};
use canal_log::sim::engine::Server;

fn is_rewritten(event: &Event) -> bool {
    matches!(event, Event::Lost { why: LostWhy::Rewritten, .. })
}

fn batch(host: u64, sequence: u64, seen: Link, changes: Vec<Change>) -> Placed {
    let entries = changes.into_iter().map(|change| entry(change, Default::default())).collect();
    let host = HostId(host);
    let body = Batch { host, sequence, seen, entries }.encode();
    Placed { position: Position(seen.position.0 + 1), host, sequence, body }
}

fn joining(host: u64) -> Change {
    let (label, identity) = (format!("host{host}"), String::new());
    Change::HostJoin { host: HostId(host), label, identity }
}

fn read(placed: &Placed, chain: &mut Chain, trust: Trust) -> Result<Step, Trouble> {
    chain.read(placed, trust)
}

#[test]
fn rule_09_batches_of_a_host_with_another_history_are_ignored() {
    let mut chain = Chain::new(1);
    read(&batch(1, 1, chain.link, vec![joining(1)]), &mut chain, Trust::Live).unwrap();
    let before = chain.clone();
    let other = Link { position: Position(1), hash: genesis(2).hash };
    let divergent = batch(2, 1, other, vec![joining(2)]);
    assert_eq!(read(&divergent, &mut chain, Trust::Live), Ok(Step::Divergent), "or we have");
    assert_eq!(chain, before);
    let step = Step::Divergent;
    assert_eq!(read(&divergent, &mut chain, Trust::Loaded), Ok(step), "it is the author");
    assert_eq!(chain.revision, before.revision);
    let mut next = batch(2, 2, chain.link, vec![Change::Policy { bypass_max: 1 }]);
    next.position = Position(3);
    assert_eq!(read(&next, &mut chain, Trust::Loaded), Ok(Step::Void), "it never joined");
}

#[test]
fn rule_09_a_reader_that_missed_the_join_of_a_host_does_not_ignore_its_batches() {
    let (mut whole, start) = (Chain::new(1), Chain::new(1).link);
    let mut partial = whole.clone();
    let (own, join) = (batch(1, 1, start, vec![joining(1)]), vec![joining(2)]);
    read(&own, &mut whole, Trust::Live).unwrap();
    read(&own, &mut partial, Trust::Live).unwrap();
    read(&batch(2, 1, whole.link, join), &mut whole, Trust::Live).unwrap();
    let next = batch(2, 2, whole.link, vec![Change::Policy { bypass_max: 1 }]);
    assert_eq!(read(&next, &mut partial, Trust::Live), Ok(Step::Divergent));
    assert!(matches!(read(&next, &mut whole, Trust::Live), Ok(Step::Counts { .. })));
}

#[test]
fn rule_09_earlier_links_are_recognised_as_far_back_as_they_are_kept() {
    let mut chain = Chain::new(1);
    let start = chain.link;
    read(&batch(1, 1, start, vec![joining(1)]), &mut chain, Trust::Live).unwrap();
    let first = chain.link;
    for sequence in 2..RECENT_MAX as u64 + 1 {
        let change = vec![Change::Policy { bypass_max: 1 }];
        read(&batch(1, sequence, chain.link, change), &mut chain, Trust::Live).unwrap();
    }
    assert_eq!(chain.knows(first), Known::Same, "as many as are kept");
    assert_eq!(chain.knows(Link { hash: start.hash, ..first }), Known::Other);
    let sequence = RECENT_MAX as u64 + 1;
    let last = batch(1, sequence, chain.link, vec![Change::Policy { bypass_max: 1 }]);
    read(&last, &mut chain, Trust::Live).unwrap();
    assert_eq!(chain.knows(first), Known::TooOld, "one more");
    assert_eq!(chain.knows(start), Known::Same);
    assert_eq!(chain.knows(genesis(2)), Known::Other);
    let ahead = Link { position: Position(9999), hash: start.hash };
    assert_eq!(chain.knows(ahead), Known::Other);
}

#[test]
fn rule_09_missing_doubled_and_foreign_batches_are_errors() {
    let mut chain = Chain::new(1);
    let first = batch(1, 1, chain.link, vec![joining(1)]);
    read(&first, &mut chain, Trust::Live).unwrap();
    assert_eq!(read(&first, &mut chain, Trust::Live), Ok(Step::Known));
    let gap = batch(1, 3, chain.link, vec![Change::Policy { bypass_max: 1 }]);
    assert!(matches!(read(&gap, &mut chain, Trust::Live), Err(Trouble::Gap(_))));
    let mut other = batch(1, 2, chain.link, vec![Change::Policy { bypass_max: 1 }]);
    other.body = first.body.clone();
    assert!(matches!(read(&other, &mut chain, Trust::Live), Err(Trouble::Unreadable(_))));
    let silent = batch(2, 1, chain.link, vec![Change::Policy { bypass_max: 1 }]);
    assert!(matches!(read(&silent, &mut chain, Trust::Live), Err(Trouble::Unreadable(_))));
    other.body = vec![0xff; 10];
    assert!(matches!(read(&other, &mut chain, Trust::Live), Err(Trouble::Unreadable(_))));
    // For an incarnation that has ended, nothing matters.
    let gone = Change::HostGone { host: HostId(1), by: HostId(1) };
    read(&batch(1, 2, chain.link, vec![gone]), &mut chain, Trust::Live).unwrap();
    other.position = Position(3);
    assert_eq!(read(&other, &mut chain, Trust::Live), Ok(Step::Void));
}

/// Two hosts that know some of each other.
fn two() -> (Server, Direct, Direct) {
    let mut server = server();
    let mut one = Direct::joined(1, &mut server, 0);
    let mut two = Direct::joined(2, &mut server, 0);
    one.ask(10, "a");
    one.settle(&mut server, 1);
    two.settle(&mut server, 1);
    (server, one, two)
}

#[test]
fn rule_09_a_host_that_reconnects_to_another_history_loses_its_holds_and_joins_again() {
    let (mut server, mut one, mut two) = two();
    let earlier = server.clone();
    one.ask(11, "b");
    one.settle(&mut server, 2);
    assert_eq!(one.table.holds().len(), 2);
    server = earlier;
    for host in [&mut one, &mut two] {
        host.tell(3, Answer::Away(Outage::unreachable("fail-over")));
        host.tell(4, Answer::Back);
        host.live(&mut server, 4, TTL_MS);
    }
    assert!(one.saw(is_rewritten), "it had read what is not there any more");
    assert!(!two.saw(is_rewritten), "it had not");
    one.settle(&mut server, TTL_MS + 1);
    two.settle(&mut server, TTL_MS + 1);
    assert_eq!(one.table.snapshot(), two.table.snapshot());
    assert_eq!(one.table.holds().len(), 0, "what it held was ended by its next incarnation");
}

#[test]
fn rule_09_a_batch_after_another_past_is_seen_even_if_the_engine_notices_nothing() {
    let (mut server, mut one, mut two) = two();
    let earlier = server.clone();
    one.ask(11, "b");
    one.settle(&mut server, 2);
    server = earlier;
    // The other host continues from the history that is now valid; the engine pushes it to both.
    two.ask(20, "c");
    two.settle(&mut server, 3);
    two.ask(21, "c");
    two.settle(&mut server, 3);
    let batches = Answer::Batches(server.log.clone());
    one.tell(3, batches);
    assert!(matches!(one.calls.last(), Some(Call::Load)), "{:?}", one.calls);
    one.settle(&mut server, 4);
    assert!(one.saw(is_rewritten));
}

#[test]
fn rule_09_a_replica_that_differs_refuses_loudly() {
    let every = Settings { snapshot_batches: 4, ..settings() };
    let mut server = server();
    let mut one = Direct::joined_with(1, every, &mut server, 0);
    let mut two = Direct::joined_with(2, every, &mut server, 0);
    let mut wrong = two.table.snapshot();
    wrong.globals.bypass_max = 3;
    two.table = canal_core::Table::restore(&wrong).unwrap();
    for pid in 0..24 {
        one.ask(pid, "a");
        one.settle(&mut server, u64::from(pid));
        two.settle(&mut server, u64::from(pid));
    }
    let Some(Event::Hindered(it)) = two.events.last() else { panic!("{:?}", two.events) };
    let why = &it.why;
    assert!(why.contains("this host's table differs from the other hosts' tables"), "{why}");
    assert!(two.events.iter().any(|event| matches!(event, Event::Lost { .. })));
    assert!(one.member.host().is_some());
    one.live(&mut server, 24, TTL_MS);
    two.live(&mut server, 24, TTL_MS);
    assert!(two.member.host().is_some(), "with the table that is read anew");
}

#[test]
fn a_member_that_cannot_read_the_log_keeps_its_locks_until_its_deadline_and_tries_on() {
    let (mut server, mut one, mut two) = two();
    one.ask(11, "a");
    one.settle(&mut server, 1);
    let good = std::mem::take(&mut server.log.last_mut().unwrap().body);
    two.events.clear();
    two.settle(&mut server, 2);
    let Some(Event::Hindered(it)) = two.events.last() else { panic!("{:?}", two.events) };
    assert!(it.why.contains("cannot read"), "{it:?}");
    let deadline = two.member.deadline;
    two.settle(&mut server, TTL_MS / 6 + 2);
    two.settle(&mut server, TTL_MS / 3 + 4);
    assert_eq!(two.member.deadline, deadline, "what it cannot give back is not kept for ever");
    assert_eq!(two.events.len(), 1, "told once: {:?}", two.events);
    assert!(two.member.host().is_some());
    server.log.last_mut().unwrap().body = good;
    two.settle(&mut server, TTL_MS / 2 + 6);
    assert!(two.events.contains(&Event::Unhindered), "{:?}", two.events);
    assert!(two.member.deadline.kill_at > deadline.kill_at);
    let ticket = two.ask(21, "b");
    two.settle(&mut server, TTL_MS / 2 + 7);
    assert!(two.was_granted(ticket));
}

/// A host that makes a snapshot, and one that does not read meanwhile.
fn compacted() -> (Server, Direct, Direct) {
    let every = Settings { snapshot_batches: 4, ..settings() };
    let mut server = server();
    let mut one = Direct::joined_with(1, every, &mut server, 0);
    let two = Direct::joined_with(2, every, &mut server, 0);
    for pid in 0..24 {
        one.ask(pid, "a");
        one.settle(&mut server, 1);
    }
    assert!(server.stored.is_some(), "{server:?}");
    (server, one, two)
}

#[test]
fn rule_12_a_stored_snapshot_replaces_its_batches() {
    let (server, one, _) = compacted();
    let stored = server.stored.as_ref().unwrap();
    assert!(server.log.iter().all(|placed| placed.position > stored.position));
    assert!(!server.log.is_empty(), "it is stored a little later, for those who read on");
    let claims = one.entries.iter().filter(|(entry, ticket)| {
        ticket.is_none() && matches!(entry.change, Change::Checkpoint { .. })
    });
    assert!(claims.count() > 0);
}

/// Daemons start on demand and end when idle, or are killed repeatedly.
#[test]
fn rule_12_a_snapshot_is_stored_though_no_daemon_lives_for_long() {
    let every = Settings { snapshot_batches: 16, ..settings() };
    let mut server = server();
    let mut longest = 0;
    for n in 1..120 {
        let mut one = Direct::new(n, every, identity("host"));
        one.settle(&mut server, 1);
        one.ask(n as u32, "a");
        one.settle(&mut server, 1);
        longest = longest.max(server.log.len());
    }
    assert!(server.stored.is_some(), "{} batches and no snapshot", server.log.len());
    assert!(longest <= 16 + 16 * 4 + 3, "{longest} batches");
}

#[test]
fn rule_12_batches_that_a_live_host_has_not_read_are_kept() {
    let every = Settings { snapshot_batches: RECENT_MAX as u64 + 4, ..settings() };
    let mut server = server();
    let mut one = Direct::joined_with(1, every, &mut server, 0);
    let mut two = Direct::joined_with(2, every, &mut server, 0);
    let held = two.id();
    for pid in 0..RECENT_MAX as u32 * 3 / 2 {
        one.ask(pid, "a");
        one.settle(&mut server, TTL_MS / 2);
    }
    two.settle(&mut server, TTL_MS / 2);
    assert_eq!(two.id(), held, "nothing is lost: {:?}", two.events);
    assert!(server.stored.is_none());
    for step in 4..9 {
        two.settle(&mut server, TTL_MS * step / 6);
        one.settle(&mut server, TTL_MS * step / 6);
        assert!(server.stored.is_none(), "{step}");
    }
    for step in 9..12 {
        two.settle(&mut server, TTL_MS * step / 6);
        one.settle(&mut server, TTL_MS * step / 6);
    }
    assert!(server.stored.is_some());
    assert_eq!(two.id(), held);
}

#[test]
fn rule_12_no_snapshot_of_another_past_is_stored() {
    let every = Settings { snapshot_batches: 4, ..settings() };
    let mut server = server();
    let mut one = Direct::joined_with(1, every, &mut server, 0);
    let is_store = |call: &Call| matches!(call, Call::Store(_));
    let earlier = server.clone();
    let mut pid = 0;
    while !one.calls.iter().any(is_store) {
        pid += 1;
        one.ask(pid, "a");
        one.drive(1);
        for call in std::mem::take(&mut one.calls) {
            if is_store(&call) {
                one.calls.push(call);
                continue;
            }
            let answer = server.call(1, 1, 1, call);
            one.tell(1, answer);
        }
        if let Some(answer) = server.push(1) {
            one.tell(1, answer);
        }
    }
    server = earlier;
    one.calls.clear();
    one.tell(2, Answer::Away(Outage::unreachable("fail-over")));
    one.tell(3, Answer::Back);
    assert!(!one.calls.iter().any(is_store), "not before it is known to be of this past");
    one.settle(&mut server, 3);
    assert!(one.saw(is_rewritten) && server.stored.is_none());
}

#[test]
fn rule_12_a_new_host_begins_at_the_snapshot() {
    let (mut server, mut one, _) = compacted();
    let mut new = Direct::joined(3, &mut server, 2);
    one.settle(&mut server, 2);
    new.settle(&mut server, 2);
    assert_eq!(new.table.snapshot(), one.table.snapshot());
    assert!(new.entries.len() < one.entries.len());
}

#[test]
fn rule_12_a_host_that_meets_a_gap_begins_at_the_snapshot() {
    let (mut server, mut one, mut two) = compacted();
    two.tell(2, Answer::Compacted);
    two.settle(&mut server, 2);
    one.settle(&mut server, 2);
    assert!(two.saw(|event| matches!(event, Event::Restore(it) if it.globals.revision.0 > 0)));
    assert!(two.member.host().is_some(), "nothing is lost");
    assert_eq!(one.table.snapshot(), two.table.snapshot());
}

#[test]
fn rule_12_a_batch_on_its_way_is_found_in_the_snapshot_or_sent_again() {
    for confirmed in [true, false] {
        let every = Settings { snapshot_batches: 4, ..settings() };
        let mut server = server();
        let mut one = Direct::joined_with(1, every, &mut server, 0);
        let mut two = Direct::joined_with(2, every, &mut server, 0);
        let ticket = two.ask(20, "b");
        two.drive(1);
        if confirmed {
            let sent = two.calls.iter().find(|call| matches!(call, Call::Append(_))).unwrap();
            server.call(2, 1, 1, sent.clone());
        }
        two.calls.clear();
        for pid in 0..24 {
            one.ask(pid, "a");
            one.settle(&mut server, 1);
        }
        two.tell(2, Answer::Away(Outage::unreachable("cut")));
        two.tell(3, Answer::Back);
        two.settle(&mut server, 3);
        let absorbed = two.events.iter().find_map(|event| match event {
            Event::Absorbed { ticket: found, revision } if *found == ticket => Some(*revision),
            _ => None,
        });
        assert_eq!(absorbed.is_some(), confirmed, "{:?}", two.events);
        assert_eq!(two.was_granted(ticket), !confirmed);
        let request = absorbed.map(|revision| canal_core::RequestId(revision.0));
        assert!(request.is_none_or(|request| two.table.hold_of(request).is_some()));
        let of_two = two.table.frames_of_host(two.id()).count();
        assert_eq!(of_two, 1, "once in any case");
    }
}

#[test]
fn rule_12_a_snapshot_that_is_damaged_or_of_another_version_is_refused() {
    let (mut server, ..) = compacted();
    let mut stored = server.stored.clone().unwrap();
    let at = stored.body.windows(12).position(|window| window == b"\"bypass_max\"").unwrap();
    stored.body[at + 13] ^= 1;
    server.stored = Some(stored);
    let mut new = Direct::new(3, settings(), identity("host3"));
    new.settle(&mut server, 2);
    let Some(Event::Hindered(Outage { why, .. })) = new.events.last() else {
        panic!("{:?}", new.events)
    };
    assert!(why.contains("its table does not match its hash"), "{why}");
}

#[test]
fn rule_13_the_answer_to_a_renewal_makes_up_for_a_lost_notification() {
    let (mut server, mut one, mut two) = two();
    two.ask(20, "b");
    two.settle(&mut server, 10);
    // The notification for the first host is lost.
    server.push(1);
    assert_eq!(one.table.holds().len(), 1);
    one.settle(&mut server, TTL_MS / 6);
    let due = one.member.next_due().unwrap();
    assert!(due <= TTL_MS / 6 + TTL_MS / 24, "soon after the renewal");
    one.settle(&mut server, due);
    assert_eq!(one.table.holds().len(), 2);
}

#[test]
fn rule_13_waiting_costs_the_engine_nothing_but_renewals() {
    let (mut server, mut one, _) = two();
    one.ask(11, "a");
    one.settle(&mut server, 1);
    assert_eq!(one.table.waiters().len(), 1);
    let mut now_ms = 1;
    let mut calls = Vec::new();
    while now_ms < 3 * TTL_MS {
        now_ms = one.member.next_due().unwrap();
        one.tick(now_ms);
        while !one.calls.is_empty() {
            let call = one.calls.remove(0);
            let answer = server.call(1, now_ms, 1, call.clone());
            calls.push(call);
            one.tell(now_ms, answer);
            if let Some(answer) = server.push(1) {
                one.tell(now_ms, answer);
            }
        }
    }
    let renewals = calls.iter().filter(|call| matches!(call, Call::Renew { .. })).count();
    assert_eq!(renewals, 18, "{calls:?}");
    assert_eq!(calls.len() - renewals, 1, "the other host, silent here, is gone: {calls:?}");
}

#[test]
fn rule_13_a_host_that_needs_nothing_rests_and_reads_before_it_serves_a_client() {
    let mut server = server();
    let mut one = Direct::joined(1, &mut server, 0);
    let mut two = Direct::joined(2, &mut server, 0);
    let mut pid = 0;
    let mut ask = |server: &mut Server, now_ms| {
        pid += 1;
        two.ask(pid, "a");
        two.settle(server, now_ms);
    };
    one.settle(&mut server, 0);
    let renewal_ms = TTL_MS / 6;
    one.member.attend(at(renewal_ms - 1), false);
    one.settle(&mut server, renewal_ms - 1);
    assert!(one.member.is_present(), "it listens for a while");
    one.member.attend(at(renewal_ms), false);
    one.settle(&mut server, renewal_ms);
    assert!(!one.member.is_present());

    ask(&mut server, 201);
    let read = one.entries.len();
    one.settle(&mut server, 202);
    assert_eq!(one.entries.len(), read, "no batch is announced");
    one.member.read_up(at(203));
    assert!(!one.member.is_present());
    one.settle(&mut server, 203);
    assert!(one.saw(|event| *event == Event::Present) && one.member.is_present());
    assert_eq!(one.entries.len(), read + 1);
    one.member.attend(at(204), false);
    assert!(!one.member.is_present(), "the next client needs another read");

    ask(&mut server, 205);
    one.settle(&mut server, 400);
    assert_eq!(one.entries.len(), read + 2, "each renewal reads");
    one.propose(Change::Policy { bypass_max: 9 });
    ask(&mut server, 401);
    one.settle(&mut server, 402);
    assert_eq!(one.entries.len(), read + 4, "its own batch comes after all before it");

    ask(&mut server, 403);
    one.member.attend(at(404), true);
    one.settle(&mut server, 404);
    assert!(one.member.is_present());
    ask(&mut server, 405);
    one.settle(&mut server, 406);
    assert_eq!(one.entries.len(), read + 6);
}

#[test]
fn rule_13_a_host_that_rests_serves_clients_although_the_engine_is_silent_or_away() {
    let mut server = server();
    let mut one = Direct::joined(1, &mut server, 0);
    one.member.attend(at(200), false);
    one.settle(&mut server, 200);
    one.member.read_up(at(210));
    one.tick(709);
    assert!(!one.saw(|event| *event == Event::Present));
    one.tick(710);
    assert!(one.saw(|event| *event == Event::Present) && one.member.is_present());
    one.settle(&mut server, 711);
    one.member.attend(at(711), false);
    assert!(!one.member.is_present(), "the engine answers again");
    one.member.read_up(at(712));
    one.tell(713, Answer::Away(Outage::unreachable("cut")));
    assert!(one.saw(|event| *event == Event::Present) && one.member.is_present());
}
