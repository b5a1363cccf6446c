//! Rules 1, 7 and 8: how an incarnation begins and how long it lives.

use crate::membership::tests::direct::{Direct, TTL_MS, at, identity, server, settings};
use crate::membership::{Event, LostWhy, Settings, Standing};
use canal_core::{Change, HostId};
use canal_log::engine::{Answer, Call, Identity, Outage};
use canal_log::sim::engine::Server;
use canal_sys::deadline_page::Deadline;

fn is_hindered(event: &Event) -> bool {
    matches!(event, Event::Hindered(_))
}

#[test]
fn rule_01_a_host_joins_by_the_first_entry_of_its_first_batch() {
    let mut server = server();
    let host = Direct::joined(1, &mut server, 0);
    let first = &host.entries[0].0.change;
    assert!(matches!(first, Change::HostJoin { host: HostId(1), label, .. } if label == "host1"));
    assert_eq!(host.table.host(HostId(1)).unwrap().label, "host1");
    let second = Direct::joined(2, &mut server, 0);
    assert_eq!(second.table.globals().hosts.values().count(), 2);
}

#[test]
fn rule_01_a_live_label_is_refused_with_who_has_it() {
    let mut server = server();
    let mut first = Direct::joined(1, &mut server, 0);
    let mut other =
        Direct::new(2, settings(), Identity { dir: "/elsewhere".to_owned(), ..identity("host1") });
    other.settle(&mut server, 0);
    assert_eq!(other.member.standing, Standing::LabelInUse { by: first.id() });
    first.live(&mut server, 0, 400);
    other.live(&mut server, 200, 400);
    let obstacle = other.events.iter().find_map(|event| match event {
        Event::Hindered(obstacle) => Some(obstacle),
        _ => None,
    });
    let Outage { why, hint, refused } = obstacle.unwrap();
    assert!(why.contains("another host has the name `host1`: uid 0, /run/canal"), "{why}");
    assert!(*refused && hint.as_ref().unwrap().contains("--host"));
    first.live(&mut server, 400, 2 * TTL_MS);
    assert!(first.member.host().is_some(), "it is not disturbed");
}

/// Another mount namespace has another directory of that name.
#[test]
fn rule_08_a_daemon_adopts_no_incarnation_of_another_directory_of_the_same_name() {
    let mut server = server();
    let mut first = Direct::joined(1, &mut server, 0);
    let mut other = Direct::new(2, settings(), Identity { dir_number: 2, ..identity("host1") });
    other.settle(&mut server, 0);
    assert_eq!(other.member.standing, Standing::LabelInUse { by: first.id() });
    first.live(&mut server, 0, 2 * TTL_MS);
    assert!(first.member.host().is_some(), "it is not disturbed");
}

#[test]
fn rule_01_a_host_that_was_refused_a_label_never_keeps_its_owner_out() {
    let mut server = server();
    let mut first = Direct::joined(1, &mut server, 0);
    let mut other =
        Direct::new(2, settings(), Identity { dir: "/elsewhere".to_owned(), ..identity("host1") });
    other.settle(&mut server, 0);
    first.live(&mut server, 0, 300);
    other.live(&mut server, 200, 300);
    assert!(other.saw(is_hindered));
    let left: Vec<_> = server.hosts.iter().filter(|(_, host)| !host.ended).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // The rightful host restarts.
    let mut again = Direct::new(3, settings(), identity("host1"));
    again.settle(&mut server, 301);
    assert!(again.saw(|event| matches!(event, Event::Joined { adopted: Some(_), .. })));
}

#[test]
fn rule_01_a_host_that_waits_for_a_label_lets_its_owner_restart() {
    for adopts in [true, false] {
        let mut server = server();
        let mut first = Direct::joined(1, &mut server, 0);
        let elsewhere = Identity { dir: "/elsewhere".to_owned(), ..identity("host1") };
        let mut other = Direct::new(2, settings(), elsewhere);
        other.settle(&mut server, 1);
        assert!(matches!(other.member.standing, Standing::LabelInUse { .. }));
        // The owner's daemon is killed, or the owner was away for too long.
        let mut again = if adopts {
            Direct::new(3, settings(), identity("host1"))
        } else {
            first.tell(1, Answer::Away(Outage::unreachable("cut")));
            first.tick(TTL_MS);
            first.tell(TTL_MS, Answer::Back);
            first
        };
        let now_ms = if adopts { 2 } else { TTL_MS };
        again.settle(&mut server, now_ms);
        again.settle(&mut server, now_ms + TTL_MS / 6);
        assert!(again.member.host().is_some(), "{adopts}: {:?}", again.events);
        for now_ms in (now_ms..now_ms + 3 * TTL_MS).step_by(50) {
            other.settle(&mut server, now_ms);
            again.settle(&mut server, now_ms);
            assert_eq!(other.member.host(), None, "{adopts}: {:?}", other.events);
        }
        assert!(again.member.host().is_some());
        assert!(other.saw(is_hindered));
    }
}

#[test]
fn rule_01_a_host_that_was_refused_its_label_joins_when_the_label_is_free() {
    let mut server = server();
    let mut first = Direct::joined(1, &mut server, 0);
    let mut other =
        Direct::new(2, settings(), Identity { dir: "/elsewhere".to_owned(), ..identity("host1") });
    for now_ms in (0..3 * TTL_MS).step_by(50) {
        first.settle(&mut server, now_ms);
        other.settle(&mut server, now_ms);
    }
    let told = other.events.iter().filter(|event| is_hindered(event)).count();
    assert_eq!((told, other.member.host()), (1, None), "the same reason is told once");
    let now_ms = 3 * TTL_MS;
    while first.member.leave(at(now_ms)) {
        first.settle(&mut server, now_ms);
    }
    for now_ms in (now_ms..5 * TTL_MS).step_by(50) {
        other.settle(&mut server, now_ms);
    }
    assert!(other.member.host().is_some(), "{:?}", other.events);
}

#[test]
fn rule_01_a_label_whose_host_is_silent_is_taken_over_after_its_ttl() {
    let mut server = server();
    let first = Direct::joined(1, &mut server, 0);
    let gone = first.id();
    let elsewhere = Identity { dir: "/elsewhere".to_owned(), ..identity("host1") };
    let mut other = Direct::new(2, settings(), elsewhere);
    other.live(&mut server, 0, TTL_MS);
    assert_eq!(other.member.standing, Standing::LabelInUse { by: gone });
    other.live(&mut server, TTL_MS, 2 * TTL_MS);
    assert!(other.member.host().is_some());
    assert!(other.table.host(gone).is_none() && server.hosts[&gone].ended);
}

#[test]
fn errors_that_an_operator_can_mend_end_no_membership_before_its_deadline() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    host.events.clear();
    let password = Outage::refused("wrong password", Some("check it"));
    let Deadline { kill_at, .. } = host.member.deadline;
    host.tell(100, Answer::Away(password.clone()));
    assert_eq!(host.events, [Event::Away(password.clone())]);
    host.tell(200, Answer::Away(password));
    assert_eq!(host.events.len(), 1, "the same reason is told once");
    host.tell(300, Answer::Away(Outage::unreachable("cut")));
    assert_eq!(host.events.len(), 2, "another one is told");
    host.tick(kill_at - 1);
    assert!(host.member.host().is_some());
    // Repaired in time: nothing was lost.
    host.tell(kill_at - 1, Answer::Back);
    assert_eq!(host.events.len(), 2, "that it lets us in does not say that it does what we ask");
    host.settle(&mut server, kill_at - 1);
    assert_eq!(host.events[2..], [Event::Back]);
    assert!(host.member.deadline.kill_at > kill_at);
    // Repaired too late: it rejoins unaided.
    host.tell(kill_at, Answer::Away(Outage::refused("expired", None)));
    host.tick(3 * TTL_MS);
    assert_eq!(host.member.host(), None);
    host.tell(4 * TTL_MS, Answer::Back);
    host.settle(&mut server, 4 * TTL_MS);
    assert!(host.member.host().is_some());
}

#[test]
fn rule_07_a_daemon_refuses_to_start_without_time_to_stop() {
    let short = Settings { grace_ms: Some(TTL_MS), ..settings() };
    let mut host = Direct::new(1, short, identity("host1"));
    host.drive(0);
    assert!(host.calls.is_empty() && host.saw(is_hindered));
}

#[test]
fn rule_07_a_ttl_that_the_engine_makes_too_short_is_refused() {
    let fixed = Settings { grace_ms: Some(TTL_MS / 6), ..settings() };
    let mut host = Direct::new(1, fixed, identity("host1"));
    host.drive(0);
    let (host_id, others) = (HostId(1), Vec::new());
    host.tell(0, Answer::Registered { host: host_id, ttl_ms: 300, asked_at: 0, epoch: 1, others });
    assert!(matches!(host.calls.last(), Some(Call::Withdraw { host: HostId(1) })));
    host.tell(0, Answer::Withdrawn { host: HostId(1) });
    assert!(host.saw(is_hindered));
}

#[test]
fn rule_07_the_time_to_stop_runs_from_before_the_last_renewal_that_succeeded() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 1000);
    let (grace, margin) = (TTL_MS / 6, TTL_MS / 12);
    let from = |asked_ms: u64| {
        let kill_at = asked_ms + TTL_MS - margin;
        (kill_at - grace, kill_at)
    };
    let times = |host: &Direct| {
        let Deadline { term_at, kill_at, .. } = host.member.deadline;
        (term_at, kill_at)
    };
    assert_eq!(times(&host), from(1000));
    host.tick(1200);
    let renew = host.calls.pop().unwrap();
    assert!(matches!(renew, Call::Renew { asked_at: 1200, .. }));
    let answer = server.call(1, 1350, 1, renew);
    host.tell(1399, answer.clone());
    assert_eq!(times(&host), from(1200), "not from when it was answered");
    host.tick(1500);
    assert!(matches!(host.calls.pop(), Some(Call::Renew { asked_at: 1500, .. })));
    host.tell(1600, answer);
    assert_eq!(times(&host), from(1200), "a repeated answer renews nothing");
}

#[test]
fn rule_07_holds_that_are_not_renewed_are_lost_at_the_kill_time() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    let Deadline { kill_at, .. } = host.member.deadline;
    host.tell(100, Answer::Away(Outage::unreachable("cut")));
    assert_eq!(host.member.next_due(), Some(kill_at), "nothing else can be done");
    host.tick(kill_at - 1);
    assert!(host.member.host().is_some(), "a renewal could still succeed");
    host.tick(kill_at);
    let why = LostWhy::NotRenewed;
    assert!(host.events.contains(&Event::Lost { host: HostId(1), why }));
    assert_eq!(host.member.host(), None);
    assert_eq!(host.member.deadline.kill_at, kill_at, "KILL is where it was");
}

#[test]
fn rule_08_a_daemon_that_starts_anew_takes_over_its_sessions() {
    let mut server = server();
    let mut old = Direct::joined(1, &mut server, 0);
    let first = old.ask(10, "a");
    let second = old.ask(11, "a");
    old.settle(&mut server, 1);
    assert!(old.was_granted(first) && !old.was_granted(second));
    let mut new = Direct::new(3, settings(), identity("host1"));
    new.settle(&mut server, 100);
    let joined = Event::Joined { host: HostId(2), adopted: Some(HostId(1)) };
    assert!(new.events.contains(&joined), "{:?}", new.events);
    assert!(!new.events.contains(&Event::Clear), "its commands go on");
    assert!(new.table.holds().all(|hold| hold.asked.host == HostId(2)));
    assert_eq!(new.table.frames_of_host(HostId(2)).count(), 2);
    old.settle(&mut server, 200);
    let gone = old.saw(|event| matches!(event, Event::Lost { host: HostId(1), .. }));
    assert!(gone, "the old one would be void if it still ran");
}

#[test]
fn rule_08_remaining_commands_of_a_gone_incarnation_are_killed_before_the_next_joins() {
    let mut server = server();
    let old = Direct::joined(1, &mut server, 0);
    let mut other = Direct::joined(2, &mut server, 0);
    other.live(&mut server, 0, 2 * TTL_MS);
    assert!(server.hosts[&old.id()].ended);
    let mut new = Direct::new(3, settings(), identity("host1"));
    new.settle(&mut server, 2 * TTL_MS);
    let clear = new.events.iter().position(|event| *event == Event::Clear);
    let joined = new.events.iter().position(|event| matches!(event, Event::Joined { .. }));
    assert!(clear.unwrap() < joined.unwrap(), "{:?}", new.events);
}

#[test]
fn rule_08_a_late_adoption_first_kills_the_remaining_commands() {
    let mut server = server();
    let old = Direct::joined(1, &mut server, 0);
    let mut other = Direct::joined(2, &mut server, 0);
    other.live(&mut server, 0, TTL_MS);
    let mut new = Direct::new(3, settings(), identity("host1"));
    new.drive(TTL_MS);
    // It reads the log while the old one still counts, and appends once it no longer does.
    while !new.calls.iter().any(|call| matches!(call, Call::Append(_))) {
        for call in std::mem::take(&mut new.calls) {
            let answer = server.call(3, TTL_MS, 1, call);
            new.tell(TTL_MS, answer);
        }
    }
    assert!(!new.events.contains(&Event::Clear));
    other.live(&mut server, TTL_MS, TTL_MS + TTL_MS / 3);
    assert!(server.hosts[&old.id()].ended);
    for call in std::mem::take(&mut new.calls) {
        let answer = server.call(3, TTL_MS + 1, 1, call);
        new.tell(TTL_MS + 1, answer);
    }
    assert!(new.events.contains(&Event::Clear));
    new.settle(&mut server, TTL_MS + 2);
    assert!(new.saw(|event| matches!(event, Event::Joined { adopted: None, .. })));
}

#[test]
fn rule_08_a_machine_that_was_started_anew_ends_its_old_incarnation_at_once() {
    let mut server = server();
    let mut old = Direct::joined(1, &mut server, 0);
    old.ask(10, "a");
    old.settle(&mut server, 1);
    let booted = Identity { boot: "the next boot".to_owned(), ..identity("host1") };
    let mut new = Direct::new(3, settings(), booted);
    new.member.boots = vec!["this boot".to_owned()];
    new.settle(&mut server, 5);
    assert!(server.hosts[&HostId(1)].ended);
    assert_eq!(new.table.holds().len(), 0, "its locks are free long before its TTL is over");
    assert!(new.saw(|event| matches!(event, Event::Joined { adopted: None, .. })));
}

/// Lets both hosts live for two TTLs; the first must stay a member, and the other is refused.
#[track_caller]
fn the_first_stays(server: &mut Server, first: &mut Direct, other: &mut Direct, from_ms: u64) {
    first.events.clear();
    for now_ms in (from_ms..from_ms + 2 * TTL_MS).step_by(50) {
        first.settle(server, now_ms);
        other.settle(server, now_ms);
        assert_eq!(other.member.host(), None, "{:?}", other.events);
    }
    assert!(!first.saw(|event| matches!(event, Event::Lost { .. })), "{:?}", first.events);
    assert!(first.member.host().is_some(), "{:?}", first.member.standing);
    assert_eq!(other.member.label_taken_by, first.member.host());
}

#[test]
fn rule_08_a_copy_of_a_machine_in_a_boot_of_its_own_never_ends_the_live_original() {
    let mut server = server();
    let mut first = Direct::joined(1, &mut server, 0);
    let copied = Identity { boot: "the boot of the copy".to_owned(), ..identity("host1") };
    let mut copy = Direct::new(2, settings(), copied.clone());
    the_first_stays(&mut server, &mut first, &mut copy, 0);
    // Another machine may have had that name in an earlier boot of the copy.
    let mut copy = Direct::new(3, settings(), copied);
    copy.member.boots = vec!["an earlier boot of the copy".to_owned()];
    the_first_stays(&mut server, &mut first, &mut copy, 2 * TTL_MS);
}

#[test]
fn rule_09_a_number_that_was_given_out_again_after_a_loss_evicts_nobody() {
    let mut before = server();
    let mut first = Direct::joined(1, &mut before, 0);
    let elsewhere = Identity { dir: "/elsewhere".to_owned(), ..identity("host1") };
    let mut other = Direct::new(2, settings(), elsewhere);
    // It is refused its name repeatedly, each time as another incarnation.
    the_first_stays(&mut before, &mut first, &mut other, 0);
    let mut after = server();
    Direct::joined(5, &mut after, 0);
    let now_ms = 3 * TTL_MS;
    for host in [&mut first, &mut other] {
        host.tell(now_ms, Answer::Away(Outage::unreachable("restored")));
        host.tell(now_ms, Answer::Back);
        host.settle(&mut after, now_ms);
        host.settle(&mut after, now_ms + TTL_MS / 6);
    }
    let number = first.member.host().unwrap();
    let given_up = 2..=4;
    assert!(given_up.contains(&number.0), "{number:?} was no number of the other one");
    the_first_stays(&mut after, &mut first, &mut other, now_ms + TTL_MS / 3);
}

#[test]
fn rule_08_lost_commands_are_ended_by_the_next_incarnation_and_not_adopted() {
    let mut server = server();
    let mut host = Direct::joined(1, &mut server, 0);
    host.ask(10, "a");
    host.settle(&mut server, 1);
    host.tell(1, Answer::Away(Outage::unreachable("cut")));
    host.tick(TTL_MS);
    host.tell(TTL_MS, Answer::Back);
    host.settle(&mut server, TTL_MS);
    assert!(host.saw(|event| matches!(event, Event::Joined { host: HostId(2), adopted: None })));
    assert!(server.hosts[&HostId(1)].ended);
    assert_eq!(host.table.holds().len(), 0);
}

#[test]
fn a_host_that_leaves_orderly_is_gone_at_once_and_loses_nothing() {
    let mut server = server();
    let mut other = Direct::joined(2, &mut server, 0);
    let mut host = Direct::joined(1, &mut server, 0);
    let us = host.id();
    let gone = Direct::joined(3, &mut server, 0).id();
    other.live(&mut server, 0, TTL_MS);
    let ticket = host.ask(10, "a");
    assert!(host.member.leave(at(1)), "not before its last batch is confirmed");
    host.settle(&mut server, 1);
    assert!(host.was_granted(ticket));
    assert!(host.table.host(us).is_some());
    let frame = host.table.frames_of_host(us).next().unwrap();
    host.propose(Change::End { frame });
    host.settle(&mut server, 2);
    assert!(host.member.leave(at(3)));
    host.settle(&mut server, 3);
    assert!(!host.member.leave(at(4)));
    assert!(server.hosts[&us].ended && !server.hosts[&gone].ended);
    assert!(!host.saw(|event| matches!(event, Event::Lost { .. })), "{host:?}");
    host.live(&mut server, 4, 3 * TTL_MS);
    assert_eq!(host.member.host(), None, "it does not come back by itself");
    other.settle(&mut server, 4);
    assert!(other.table.host(us).is_none(), "the others know before its TTL is over");
}
