//! More of rule 9: how hosts react when the engine begins another era, or history was lost.

use crate::membership::tests::direct::{self, Direct, TTL_MS, identity, server, settings};
use crate::membership::{Event, LostWhy, Memory, Settings, Standing};
use canal_core::{Change, HostId, Token};
use canal_log::engine::{Answer, Outage};
use canal_log::sim::engine::Server;

/// A batch that notes an era, or reports received tokens: its host, and `told`.
fn presents(host: &Direct) -> Vec<(HostId, Token, bool)> {
    let present = |change: &Change| match change {
        Change::Present { host, told, lost, .. } => Some((*host, *told, *lost)),
        _ => None,
    };
    host.entries.iter().filter_map(|(entry, _)| present(&entry.change)).collect()
}

fn eras(host: &Direct) -> Vec<(u64, bool)> {
    let era = |change: &Change| match change {
        Change::Era { number, may_lack, .. } => Some((*number, *may_lack)),
        _ => None,
    };
    host.entries.iter().filter_map(|(entry, _)| era(&entry.change)).collect()
}

fn reconnect(host: &mut Direct, server: &mut Server, now_ms: u64) {
    host.tell(now_ms, Answer::Away(Outage::unreachable("another incarnation")));
    host.tell(now_ms, Answer::Back);
    host.settle(server, now_ms);
}

/// Two hosts, the first of which holds `a`.
fn two() -> (Server, Direct, Direct) {
    let mut server = server();
    server.live_anew(1, false);
    let mut one = Direct::joined(1, &mut server, 0);
    let two = Direct::joined(2, &mut server, 0);
    let ticket = one.ask(10, "a");
    one.settle(&mut server, 1);
    assert!(one.was_granted(ticket));
    one.member.tell(Token(1));
    (server, one, two)
}

#[test]
fn the_first_era_is_noted_before_any_host_joins() {
    let (_, one, two) = two();
    assert_eq!(eras(&one), [(1, false)]);
    assert_eq!((eras(&two), two.table.recovery()), (vec![(1, false)], None));
    assert_eq!(presents(&two), [(HostId(1), Token(0), false), (HostId(2), Token(0), false)]);
    assert!(matches!(one.entries[0].0.change, Change::Era { .. }));
}

#[test]
fn after_a_restart_of_the_engine_grants_go_on_when_each_host_has_spoken() {
    let (mut server, mut one, mut two) = two();
    let waits = two.ask(20, "a");
    two.settle(&mut server, 1);
    server.live_anew(2, false);
    reconnect(&mut one, &mut server, 2);
    assert_eq!(eras(&one), [(1, false), (2, false)]);
    assert_eq!(one.table.recovery().unwrap().unheard.len(), 1, "{:?}", one.table.recovery());
    let refused = one.ask(11, "b");
    one.settle(&mut server, 3);
    assert!(!one.was_granted(refused));
    reconnect(&mut two, &mut server, 4);
    one.settle(&mut server, 4);
    assert_eq!((one.table.recovery(), two.table.recovery()), (None, None));
    assert_eq!(presents(&one)[2..], [(HostId(1), Token(1), false), (HostId(2), Token(0), false)]);
    assert!(!one.saw(|event| matches!(event, Event::Lost { .. })), "nothing is lost");
    let again = one.ask(11, "b");
    one.settle(&mut server, 5);
    assert!(one.was_granted(again));
    assert!(!two.was_granted(waits), "what is held stays held");
}

#[test]
fn a_silent_host_is_waited_for_until_it_is_gone() {
    let (mut server, mut one, _) = two();
    server.live_anew(2, false);
    reconnect(&mut one, &mut server, 2);
    one.live(&mut server, 2, TTL_MS);
    assert!(one.table.recovery().is_some());
    one.live(&mut server, TTL_MS, 2 * TTL_MS);
    assert_eq!(one.table.recovery(), None);
    assert_eq!(one.table.globals().hosts.values().count(), 1);
}

#[test]
fn if_batches_may_be_missing_the_longest_ttl_and_a_tenth_pass_before_grants_go_on() {
    let (mut server, mut one, mut two) = two();
    server.live_anew(2, true);
    reconnect(&mut one, &mut server, 100);
    reconnect(&mut two, &mut server, 100);
    let longest = TTL_MS * 11 / 10;
    assert_eq!(one.member.recovered_at(), Some(100 + longest));
    let mut now_ms = 100;
    while now_ms < 100 + longest {
        one.settle(&mut server, now_ms);
        two.settle(&mut server, now_ms);
        assert!(one.table.recovery().is_some(), "at {now_ms}");
        assert!(one.member.next_due().unwrap() <= 100 + longest);
        now_ms += 20;
    }
    one.settle(&mut server, now_ms);
    assert_eq!(one.table.recovery(), None);
    assert_eq!(one.member.recovered_at(), None);
}

#[test]
fn a_host_that_had_read_missing_batches_reports_them() {
    let (mut server, mut one, mut two) = two();
    let earlier = server.clone();
    one.ask(11, "b");
    one.settle(&mut server, 2);
    one.member.tell(Token(2));
    server = earlier;
    reconnect(&mut two, &mut server, 3);
    assert_eq!(two.table.recovery(), None, "it cannot know");
    reconnect(&mut one, &mut server, 3);
    one.live(&mut server, 3, TTL_MS / 2);
    assert!(one.saw(|event| matches!(event, Event::Lost { why: LostWhy::Rewritten, .. })));
    two.settle(&mut server, TTL_MS / 2);
    assert!(presents(&two).contains(&(one.id(), Token(2), true)), "{:?}", presents(&two));
    assert!(two.table.recovery().is_some_and(|recovery| recovery.ttl_from.is_some()));
    assert!(two.table.globals().next_token > Token(2));
    assert!(!one.member.memory.lost, "it is said");
}

#[test]
fn a_host_that_was_cut_off_for_longer_than_it_lives_compares_what_it_had_read() {
    let (mut server, mut one, mut two) = two();
    let earlier = server.clone();
    one.ask(11, "b");
    one.settle(&mut server, 2);
    one.tell(3, Answer::Away(Outage::unreachable("cut")));
    one.tick(2 * TTL_MS);
    assert!(one.saw(|event| matches!(event, Event::Lost { why: LostWhy::NotRenewed, .. })));
    server = earlier;
    two.ask(20, "c");
    two.ask(21, "d");
    two.settle(&mut server, 3);
    two.live(&mut server, 2 * TTL_MS, 4 * TTL_MS);
    one.tell(4 * TTL_MS, Answer::Back);
    one.settle(&mut server, 4 * TTL_MS);
    assert_eq!(one.member.standing, Standing::Member);
    assert_eq!(presents(&one).last(), Some(&(one.id(), Token(1), true)), "{:?}", presents(&one));
}

#[test]
fn a_log_that_was_made_anew_is_lost_history_for_those_who_knew_the_old_one() {
    let (mut server, one, _) = two();
    let memory = Memory { mark: one.member.mark(), ..one.member.memory };
    assert_eq!((memory.epoch, memory.told), (Some(7), Token(1)));
    server = {
        let _ = server;
        direct::server()
    };
    server.epoch = 8;
    let mut new = Direct::new(3, settings(), identity("host3"));
    new.member.memory = Memory { mark: None, ..memory };
    new.settle(&mut server, 0);
    assert_eq!(presents(&new), [(HostId(1), Token(1), true)]);
    assert!(new.table.recovery().is_some());
    let mut stranger = Direct::joined(4, &mut server, 1);
    assert_eq!(presents(&stranger).last(), Some(&(stranger.id(), Token(0), false)));
    stranger.live(&mut server, 1, 2 * TTL_MS);
    assert_eq!(stranger.table.recovery(), None);
}

#[test]
fn a_host_that_begins_at_a_snapshot_counts_from_when_it_read_it() {
    let every = Settings { snapshot_batches: 4, ..settings() };
    let mut server = server();
    server.live_anew(1, false);
    let mut one = Direct::joined_with(1, every, &mut server, 0);
    server.live_anew(2, true);
    reconnect(&mut one, &mut server, 1);
    for n in 0..24 {
        one.propose(Change::Policy { bypass_max: n + 1 });
        one.settle(&mut server, 2);
    }
    assert!(server.stored.is_some());
    one.settle(&mut server, 500);
    let new = Direct::joined_with(2, every, &mut server, 600);
    assert!(new.table.recovery().is_some());
    assert_eq!(new.member.recovered_at(), Some(600 + TTL_MS * 11 / 10));
}
