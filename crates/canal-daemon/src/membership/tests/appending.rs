//! Rules 2 to 6 and 10: what hosts append, once each, and which batches count.

use crate::membership::proposal_queue::{BYTES_MAX, ENTRIES_MAX};
use crate::membership::tests::direct::{Direct, TTL_MS, identity, server, settings};
use crate::membership::{Event, LostWhy};
use canal_core::{Change, HostId, UnixMillis};
use canal_log::engine::{Answer, Batch, Call, Ends, Evidence, Outage};

fn append(host: &mut Direct) -> canal_log::engine::Append {
    let at = host.calls.iter().position(|call| matches!(call, Call::Append(_))).unwrap();
    let Call::Append(append) = host.calls.remove(at) else { unreachable!() };
    append
}

#[test]
fn rule_02_one_batch_is_in_flight_and_the_next_carries_all_later_proposals() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let tickets: Vec<_> = (0..10).map(|pid| host.ask(pid, "a")).collect();
    host.drive(1);
    let first = append(&mut host);
    for pid in 10..20 {
        host.ask(pid, "a");
        host.drive(1);
    }
    assert!(host.calls.is_empty(), "one at a time: {:?}", host.calls);
    let answer = server.call(1, 1, 1, Call::Append(first));
    host.tell(1, answer);
    host.settle(&mut server, 1);
    assert_eq!(server.log.len(), 3, "joining, ten, ten");
    assert_eq!(host.table.waiters().len(), 19);
    assert!(host.was_granted(tickets[0]));
}

#[test]
fn rule_02_a_batch_whose_answer_was_lost_is_in_the_log_once() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let ticket = host.ask(10, "a");
    host.drive(1);
    let sent = append(&mut host);
    server.call(1, 1, 1, Call::Append(sent.clone()));
    host.tell(2, Answer::Away(Outage::unreachable("cut")));
    host.tell(3, Answer::Back);
    assert!(
        !host.calls.iter().any(|call| matches!(call, Call::Append(_))),
        "not before it is known that the log is the same"
    );
    host.settle(&mut server, 3);
    assert_eq!(server.log.len(), 2);
    assert!(host.was_granted(ticket));
    let again = server.call(1, 4, 1, Call::Append(sent));
    assert!(matches!(again, Answer::Appended { sequence: 2, .. }));
    assert_eq!(server.log.len(), 2);
}

#[test]
fn rule_02_a_batch_that_was_lost_is_sent_again_byte_by_byte() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let ticket = host.ask(10, "a");
    host.drive(1);
    let sent = append(&mut host);
    host.tell(2, Answer::Away(Outage::unreachable("cut")));
    host.tell(3, Answer::Back);
    let follow = host.calls.iter().position(|call| matches!(call, Call::Follow { .. })).unwrap();
    let follow = host.calls.remove(follow);
    let answer = server.call(1, 3, 1, follow);
    host.tell(3, answer);
    assert_eq!(append(&mut host), sent);
    server.call(1, 3, 1, Call::Append(sent));
    host.settle(&mut server, 4);
    assert!(host.was_granted(ticket));
}

#[test]
fn rule_02_an_unanswered_batch_is_sent_again_after_a_while() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    host.ask(10, "a");
    host.drive(1);
    let sent = append(&mut host);
    host.settle(&mut server, 2);
    assert_eq!(server.log.len(), 1);
    host.tick(1 + TTL_MS / 6);
    assert_eq!(append(&mut host), sent);
}

#[test]
fn rule_02_a_fenced_host_loses_its_holds_and_joins_again() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let ticket = host.ask(10, "a");
    host.drive(1);
    let sent = append(&mut host);
    // Another process writes in this host's name.
    let other = canal_log::engine::Append { body: b"other".to_vec(), ..sent.clone() };
    server.call(1, 1, 1, Call::Append(other));
    server.cursors.clear();
    let answer = server.call(1, 1, 1, Call::Append(sent));
    assert!(matches!(answer, Answer::Fenced { .. }));
    host.tell(1, answer.clone());
    let lost = |event: &Event| matches!(event, Event::Lost { why: LostWhy::Fenced { .. }, .. });
    assert!(host.events.iter().any(lost));
    assert!(host.events.contains(&Event::Dropped { ticket }));
    host.tell(2, answer);
    assert_eq!(host.events.iter().filter(|event| lost(event)).count(), 1, "once");
}

#[test]
fn rule_02_a_batch_has_bounds() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    for pid in 0..u32::try_from(ENTRIES_MAX).unwrap() + 1 {
        host.ask(pid, "a");
    }
    host.settle(&mut server, 1);
    assert_eq!(server.log.len(), 3, "joining, as many as may be, one");
    let large = |host: &Direct, pid| {
        let Change::Request(mut asked) = host.request(pid, "b") else { unreachable!() };
        std::sync::Arc::make_mut(&mut asked).command.0 = "x".repeat(BYTES_MAX / 2);
        Change::Request(asked)
    };
    for pid in 5000..5003 {
        let change = large(&host, pid);
        host.propose(change);
    }
    host.settle(&mut server, 2);
    assert_eq!(server.log.len(), 6, "no two of them in one batch");
    let largest = server.log.iter().map(|placed| placed.body.len()).max().unwrap();
    assert!(largest > BYTES_MAX / 2);
    #[cfg(feature = "etcd")]
    assert!(largest <= canal_log::engine::etcd::BODY_MAX);
}

#[test]
fn rule_03_all_hosts_apply_all_entries_in_the_order_of_the_log() {
    let mut server = server();
    let mut hosts: Vec<Direct> =
        (1..4).map(|client| Direct::joined(client, &mut server, 0)).collect();
    for round in 0..10 {
        for host in &mut hosts {
            host.ask(round, "a");
            host.settle(&mut server, u64::from(round));
        }
    }
    for host in &mut hosts {
        host.settle(&mut server, 10);
    }
    let tables: Vec<_> = hosts.iter().map(|host| host.table.snapshot()).collect();
    assert_eq!(tables[0], tables[1]);
    assert_eq!(tables[1], tables[2]);
    assert_eq!((tables[0].holds.len(), tables[0].waiters.len()), (1, 29));
    let tickets = hosts.iter().map(|host| host.entries.iter().filter(|e| e.1.is_some()).count());
    assert_eq!(tickets.collect::<Vec<_>>(), [10, 10, 10], "each has its own");
}

#[test]
fn rule_03_proposals_of_a_host_that_is_no_member_are_dropped() {
    let mut host = Direct::new(1, settings(), identity("host1"));
    let ticket = host.propose(Change::Policy { bypass_max: 1 });
    host.drive(0);
    assert!(host.events.contains(&Event::Dropped { ticket }));
}

#[test]
fn rule_04_a_grant_that_arrives_after_the_time_to_kill_comes_after_the_loss() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let ticket = host.ask(10, "a");
    host.drive(1);
    let sent = append(&mut host);
    server.call(1, 1, 1, Call::Append(sent));
    let echo = server.push(1).unwrap();
    host.tell(host.member.deadline.kill_at, echo);
    assert!(!host.was_granted(ticket));
    assert!(matches!(host.events[host.events.len() - 2], Event::Lost { .. }), "{:?}", host.events);
    assert_eq!(host.events.last(), Some(&Event::Dropped { ticket }));
}

#[test]
fn rule_05_a_silent_host_is_declared_gone_once_and_by_its_own_renewals() {
    let mut server = server();
    let mut first = Direct::joined(1, &mut server, 0);
    let mut second = Direct::joined(2, &mut server, 0);
    let mut silent = Direct::joined(3, &mut server, 0);
    silent.ask(10, "a");
    silent.settle(&mut server, 1);
    let both = |server: &mut _, from, to| {
        first.live(server, from, to);
        second.live(server, from, to);
        (first.table.holds().len(), second.table.holds().len())
    };
    let mut both = both;
    assert_eq!(both(&mut server, 0, TTL_MS), (1, 1), "not before TTL × 1.1");
    assert_eq!(both(&mut server, TTL_MS, 2 * TTL_MS).1, 0);
    first.settle(&mut server, 2 * TTL_MS);
    let gone = |host: &Direct| {
        let is = |change: &Change| matches!(change, Change::HostGone { host: HostId(3), .. });
        host.entries.iter().filter(|(entry, _)| is(&entry.change)).count()
    };
    assert_eq!((gone(&first), gone(&second)), (1, 1), "both saw it; one entry");
    assert_eq!(first.table.holds().len(), 0);
}

#[test]
fn rule_06_the_end_of_a_host_is_refused_if_it_renewed_meanwhile() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let mut other = Direct::joined(2, &mut server, 0);
    host.member
        .writer
        .push_end(Ends { host: HostId(2), evidence: Evidence::Silent { renewals: 1 } });
    let ticket = host.ask(10, "a");
    other.live(&mut server, 200, 400);
    host.settle(&mut server, 400);
    assert!(!server.hosts[&HostId(2)].ended);
    assert!(host.was_granted(ticket), "what was proposed besides is not refused with it");
    assert_eq!(host.table.globals().hosts.values().count(), 2);
}

#[test]
fn rule_06_a_repeated_refusal_does_not_refuse_the_next_batch() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let mut other = Direct::joined(2, &mut server, 0);
    other.live(&mut server, 200, 400);
    let late = Ends { host: HostId(2), evidence: Evidence::Silent { renewals: 1 } };
    host.member.writer.push_end(late);
    host.drive(1);
    let sent = append(&mut host);
    let refused = server.call(1, 400, 1, Call::Append(sent));
    assert!(matches!(refused, Answer::Overtaken { .. }));
    host.tell(1, refused.clone());
    let tickets = [host.ask(10, "a"), host.ask(11, "b")];
    host.drive(1);
    host.tell(1, refused);
    host.settle(&mut server, 2);
    assert!(tickets.into_iter().all(|ticket| host.was_granted(ticket)));
}

#[test]
fn rule_02_a_foreign_batch_under_our_number_is_not_taken_for_ours() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let ticket = host.ask(10, "a");
    host.drive(1);
    let ours = append(&mut host);
    let mut batch = Batch::decode(&ours.body).unwrap();
    batch.entries[0].at = UnixMillis(77);
    let body = batch.encode();
    server.call(1, 1, 1, Call::Append(canal_log::engine::Append { body, ..ours }));
    let echo = server.push(1).unwrap();
    host.tell(1, echo);
    assert!(host.saw(|event| matches!(event, Event::Lost { .. })));
    assert!(!host.was_granted(ticket));
}

#[test]
fn rule_06_appends_and_renewals_of_a_gone_host_are_void() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let mut late = Direct::joined(2, &mut server, 0);
    let ticket = late.ask(10, "a");
    late.drive(1);
    let sent = append(&mut late);
    host.live(&mut server, 0, 2 * TTL_MS);
    assert!(server.hosts[&HostId(2)].ended);
    let answer = server.call(2, 2 * TTL_MS, 1, Call::Append(sent));
    assert!(matches!(answer, Answer::Fenced { .. }));
    let renew = Call::Renew { host: HostId(2), asked_at: 0 };
    assert!(matches!(server.call(2, 2 * TTL_MS, 1, renew), Answer::Fenced { .. }));
    late.tell(2, answer);
    assert!(late.events.contains(&Event::Dropped { ticket }));
}

#[test]
fn rule_06_a_host_that_reads_of_its_own_end_has_lost_its_holds() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let mut gone = Direct::joined(2, &mut server, 0);
    host.live(&mut server, 0, 2 * TTL_MS);
    let answer = server.push(2).unwrap();
    gone.tell(1, answer);
    let lost = Event::Lost { host: HostId(2), why: LostWhy::Gone { by: HostId(1) } };
    assert!(gone.events.contains(&lost), "{:?}", gone.events);
    assert!(
        gone.entries
            .iter()
            .any(|(entry, _)| { matches!(entry.change, Change::HostGone { host: HostId(2), .. }) })
    );
}

#[test]
fn rule_10_a_grant_to_a_waiter_that_has_just_died_is_taken_back_by_its_end() {
    let mut server = server();
    let mut holder = Direct::joined(1, &mut server, 0);
    let mut dying = Direct::joined(2, &mut server, 0);
    let held = holder.ask(10, "a");
    holder.settle(&mut server, 1);
    let waits = dying.ask(20, "a");
    dying.settle(&mut server, 1);
    assert!(holder.was_granted(held) && !dying.was_granted(waits));
    // The holder ends first, followed by the waiter's end.
    let frame = |host: &Direct| host.table.frames_of_host(host.id()).next().unwrap();
    let (one, other) = (frame(&holder), frame(&dying));
    holder.propose(Change::End { frame: one });
    dying.propose(Change::End { frame: other });
    holder.settle(&mut server, 2);
    dying.settle(&mut server, 2);
    holder.settle(&mut server, 2);
    assert_eq!((holder.table.holds().len(), dying.table.holds().len()), (0, 0));
    assert_eq!(dying.table.waiters().len(), 0);
}
