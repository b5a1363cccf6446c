//! Asks nodes, and confirms their grants.

use super::scene::{Scene, away, confirmed, granted, never, plan, refused};
use crate::{Change, Coordinator, Event, Held, Input, Plan, Refusal, Require};
use canal_core::{CONFIRMED_TOKEN_MAX, Token};
use canal_protocol::NodeFailure;

#[test]
fn all_nodes_are_asked_one_after_the_other_and_confirmed_together() {
    let (mut scene, done) = Scene::reached(plan(3, Require::All));
    assert_eq!(done, ["ask 0 #1"]);
    assert_eq!(scene.hear(Input::Node(0, Event::Queued)), [""; 0]);
    assert_eq!(scene.hear(granted(0, 5)), ["ask 1 #1"]);
    assert_eq!(scene.hear(granted(1, 9)), ["ask 2 #1"]);
    let confirm = ["confirm 0 #1 at 10", "confirm 1 #1 at 10", "confirm 2 #1 at 10"];
    assert_eq!(scene.hear(granted(2, 7)), confirm);
    assert_eq!(scene.hear(confirmed(2, 900)), [""; 0]);
    assert_eq!(scene.hear(confirmed(0, 800)), [""; 0]);
    // The first lease to expire counts: 60 s from its sending, less a margin of 5 s.
    assert_eq!(scene.hear(confirmed(1, 850)), ["start 10 [0, 1, 2] until 55800"]);
    assert_eq!(scene.said.last(), Some(&Change::Held(Held { held: 3, need: 3 }, vec![])));
}

#[test]
fn a_majority_starts_with_enough_and_asks_the_others_as_spares() {
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    assert_eq!(scene.hear(granted(0, 5)), ["ask 1 #1"]);
    // All nodes know its list before it confirms.
    assert_eq!(scene.hear(granted(1, 5)), ["ask 2 #1 spare"]);
    let confirm = ["confirm 0 #1 at 6", "confirm 1 #1 at 6"];
    assert_eq!(scene.hear(refused(2, Refusal::Full)), confirm);
    scene.hear(confirmed(0, 900));
    assert_eq!(scene.hear(confirmed(1, 901)), ["start 6 [0, 1] until 55900"]);
    assert!(scene.pass(20_000).contains(&"ask 2 #2 spare".to_owned()));
}

#[test]
fn a_majority_waits_a_second_for_nodes_that_may_know_another_list() {
    let mut scene = Scene::with(Coordinator::new(plan(3, Require::Majority), 1_000));
    scene.hear(Input::Tick);
    scene.hear(Input::Node(0, Event::Reached(None)));
    scene.hear(Input::Node(1, Event::Reached(None)));
    scene.hear(granted(0, 5));
    assert_eq!(scene.hear(granted(1, 5)), [""; 0], "node 2 may answer soon");
    let confirm = ["confirm 0 #1 at 6", "confirm 1 #1 at 6"];
    assert_eq!(scene.pass(1_000), confirm);

    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    let done = scene.hear(refused(2, Refusal::OtherList));
    assert_eq!(done, ["cancel 1", "cancel 0", "failed 2: no"]);
}

#[test]
fn a_spare_that_was_granted_before_the_start_is_confirmed_after_it() {
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    assert_eq!(scene.hear(granted(2, 9)), ["confirm 0 #1 at 6", "confirm 1 #1 at 6"]);
    scene.hear(confirmed(0, 1_000));
    let started = ["start 6 [0, 1] until 56000", "confirm 2 #1 at 9"];
    assert_eq!(scene.hear(confirmed(1, 1_000)), started);
}

#[test]
fn a_spare_is_asked_anew_if_it_is_needed() {
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    assert_eq!(scene.hear(granted(2, 5)).len(), 2);
    scene.hear(Input::Node(1, Event::ConfirmFailed));
    (0..2).for_each(|node| drop(scene.hear(Input::Node(node, Event::Gone))));
    scene.hear(granted(0, 5));
    assert_eq!(scene.hear(granted(1, 5)), [""; 0], "node 2 may answer soon");
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), ["ask 2 #1 spare"]);
    scene.hear(away(1));
    assert!(scene.pass(1_000).contains(&"release 2 #1".to_owned()));
    assert_eq!(scene.hear(Input::Node(2, Event::Gone)), ["ask 2 #2"]);
}

#[test]
fn a_grant_does_not_count_before_it_is_confirmed() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    scene.hear(confirmed(0, 1_000));
    // One of two fails: the other is asked again once it has answered that its grant is gone.
    let done = scene.hear(Input::Node(1, Event::ConfirmFailed));
    assert_eq!(done, ["release 0 #1", "release 1 #1"]);
    assert!(scene.said.contains(&Change::AskedAnew(Some(1))));
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["ask 0 #2"]);
    scene.hear(Input::Node(1, Event::Gone));
    assert_eq!(scene.hear(granted(0, 20)), ["ask 1 #2"]);
}

#[test]
fn a_token_that_was_taken_is_followed_by_one_far_beyond_it() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    assert_eq!(scene.hear(granted(1, 9)), ["confirm 0 #1 at 10", "confirm 1 #1 at 10"]);
    let taken = |node, least| Input::Node(node, Event::TokenTaken(Token(least)));
    assert_eq!(scene.hear(taken(0, 100)), ["release 1 #1", "release 0 #1"]);
    scene.hear(Input::Node(1, Event::Gone));
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["ask 0 #2"]);
    scene.hear(granted(0, 100));
    // However many tokens the node uses meanwhile, the next one is beyond them, by twice the
    // distance each time.
    let confirm = ["confirm 0 #2 at 1124", "confirm 1 #2 at 1124"];
    assert_eq!(scene.hear(granted(1, 11)), confirm);
    scene.hear(taken(0, 2_000));
    scene.hear(Input::Node(1, Event::Gone));
    scene.hear(Input::Node(0, Event::Gone));
    scene.hear(granted(0, 2_000));
    let confirm = ["confirm 0 #3 at 4048", "confirm 1 #3 at 4048"];
    assert_eq!(scene.hear(granted(1, 1_125)), confirm);
    scene.hear(confirmed(0, 1_000));
    assert_eq!(scene.hear(confirmed(1, 1_000)), ["start 4048 [0, 1] until 56000"]);
}

/// Lets nodes grant and the last of them fail to confirm, until the coordinator does something
/// else. Returns the number of failures, and the coordinator's new effects.
fn fail_to_confirm(scene: &mut Scene, nodes: usize, failure: &Input) -> (u32, Vec<String>) {
    for times in 1..100 {
        (0..nodes).for_each(|node| drop(scene.hear(granted(node, 5))));
        let done = scene.hear(failure.clone());
        let mut others: Vec<String> = (0..nodes)
            .rev()
            .flat_map(|node| scene.hear(Input::Node(node, Event::Gone)))
            .filter(|done| !done.starts_with("ask 0 "))
            .collect();
        others.extend(done.into_iter().filter(|done| !done.starts_with("release ")));
        if !others.is_empty() {
            return (times, others);
        }
    }
    panic!("it goes on without end");
}

#[test]
fn a_node_that_never_confirms_what_it_granted_is_not_asked_for_ever() {
    let taken = Input::Node(1, Event::TokenTaken(Token(100)));
    for failure in [Input::Node(1, Event::ConfirmFailed), taken] {
        let (mut scene, _) = Scene::reached(plan(2, Require::All));
        let (times, done) = fail_to_confirm(&mut scene, 2, &failure);
        assert_eq!(times, 8);
        let failed = "failed 1: it granted the lock 8 times and never confirmed it: ";
        assert!(done.iter().any(|done| done.starts_with(failed)), "{done:?}");
    }
}

#[test]
fn a_majority_does_without_a_node_that_never_confirms_or_refuses_the_token() {
    let why = "more than a year ahead";
    for failure in [
        Input::Node(1, Event::ConfirmFailed),
        Input::Node(1, Event::TokenRefused(NodeFailure::permanent(why))),
    ] {
        let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
        // The node is asked again a few times, and then passed over.
        let mut lease = 1;
        while scene.hear(granted(0, 5)) == [format!("ask 1 #{lease}")] {
            assert_eq!(scene.hear(granted(1, 5)), [format!("ask 2 #{lease} spare")]);
            let done = scene.hear(refused(2, Refusal::Full));
            assert_eq!(done, [0, 1].map(|node| format!("confirm {node} #{lease} at 6")));
            scene.hear(failure.clone());
            (0..2).for_each(|node| drop(scene.hear(Input::Node(node, Event::Gone))));
            lease += 1;
            assert!(lease < 10, "it goes on without end");
        }
        let done = scene.hear(granted(2, 5));
        assert!(
            done.iter().all(|done| done.starts_with("confirm ")) && done.len() == 2,
            "{done:?}"
        );
        scene.hear(confirmed(0, 1_000));
        assert_eq!(scene.hear(confirmed(2, 1_000)), ["start 6 [0, 2] until 56000"]);
    }
}

#[test]
fn a_token_that_all_other_nodes_refuse_is_said_of_each_of_them() {
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(granted(0, 5_000));
    scene.hear(granted(1, 5));
    scene.hear(refused(2, Refusal::Full));
    let refused =
        |node| Input::Node(node, Event::TokenRefused(NodeFailure::permanent("a year ahead")));
    scene.hear(refused(1));
    (0..2).for_each(|node| drop(scene.hear(Input::Node(node, Event::Gone))));
    scene.hear(granted(0, 5_001));
    scene.hear(granted(2, 5));
    scene.hear(refused(2));
    let done: Vec<String> =
        [2, 0].iter().flat_map(|node| scene.hear(Input::Node(*node, Event::Gone))).collect();
    assert_eq!(done, ["failed 1: a year ahead, 2: a year ahead"]);
}

#[test]
fn a_coordinator_that_was_stopped_does_not_start_on_buffered_answers() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    // The coordinator is stopped for a minute; the answers arrived long ago.
    scene.now += 60_000;
    scene.hear(confirmed(0, 1_000));
    assert_eq!(scene.hear(confirmed(1, 1_000)), ["renew 0 #1", "renew 1 #1"]);
    assert_eq!(
        scene.hear(Input::Node(0, Event::Renewed { sent: scene.now, ttl_ms: None })),
        [""; 0]
    );
    let gone = scene.hear(Input::Node(1, Event::Gone));
    assert_eq!(gone, ["release 0 #1"], "its lease had expired, so everything is given back");
    // If both had still been there, it would have started.
    scene.hear(Input::Node(0, Event::Gone));
    scene.hear(granted(0, 8));
    scene.hear(granted(1, 8));
    scene.now += 60_000;
    scene.hear(confirmed(0, scene.now - 60_000));
    scene.hear(confirmed(1, scene.now - 60_000));
    let sent = scene.now;
    scene.hear(Input::Node(0, Event::Renewed { sent, ttl_ms: None }));
    let done = scene.hear(Input::Node(1, Event::Renewed { sent, ttl_ms: None }));
    assert_eq!(done, [format!("start 9 [0, 1] until {}", sent + 55_000)]);
}

#[test]
fn a_confirmation_that_is_not_answered_is_taken_back_when_the_node_is_back() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    scene.hear(confirmed(0, 1_000));
    assert_eq!(scene.pass(5_000), ["release 0 #1", "connect 1"]);
    assert_eq!(
        scene.hear(Input::Node(0, Event::Gone)),
        [""; 0],
        "node 1 is silent, so 0 is not asked"
    );
    // The node may have confirmed it. The coordinator does not ask before the node has answered
    // that it did not.
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), ["release 1 #1", "ask 0 #2"]);
    assert_eq!(scene.hear(granted(0, 9)), [""; 0]);
    assert_eq!(scene.hear(Input::Node(1, Event::Gone)), ["ask 1 #2"]);
}

#[test]
fn any_asks_all_at_once_and_gives_surplus_grants_back() {
    let (mut scene, done) = Scene::reached(plan(3, Require::Any));
    assert_eq!(done, ["ask 0 #1", "ask 1 #1", "ask 2 #1"]);
    scene.hear(Input::Node(0, Event::Queued));
    assert_eq!(scene.hear(granted(2, 7)), ["confirm 2 #1 at 8"]);
    assert_eq!(scene.hear(granted(1, 3)), [""; 0]);
    let started = ["cancel 0", "cancel 1", "start 8 [2] until 56000"];
    assert_eq!(scene.hear(confirmed(2, 1_000)), started);
}

#[test]
fn any_keeps_its_places_elsewhere_if_a_confirmation_fails() {
    let (mut scene, _) = Scene::reached(plan(2, Require::Any));
    scene.hear(Input::Node(0, Event::Queued));
    scene.hear(granted(1, 7));
    assert_eq!(scene.hear(Input::Node(1, Event::ConfirmFailed)), ["release 1 #1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Gone)), ["ask 1 #2"]);
    assert_eq!(scene.hear(granted(0, 2)), ["confirm 0 #1 at 3"]);
    assert_eq!(scene.hear(confirmed(0, 1_000)), ["cancel 1", "start 3 [0] until 56000"]);
}

#[test]
fn a_silent_node_is_passed_over_after_1_s_if_enough_others_answer() {
    let mut scene = Scene::with(Coordinator::new(plan(3, Require::Majority), 1_000));
    scene.hear(Input::Tick);
    scene.hear(Input::Node(1, Event::Reached(None)));
    assert_eq!(scene.pass(4_000), [""; 0], "node 1 alone is not enough");
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), ["ask 1 #1"]);
    scene.hear(Input::Node(1, Event::Queued));
    assert!(matches!(scene.said.as_slice(), [Change::Away { node: 0, .. }, Change::Held(..)]));
    // Waiting at that node as well would break the order.
    assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["ask 0 #1 now"]);
    assert_eq!(scene.hear(refused(0, Refusal::Full)), [""; 0]);
    assert_eq!(scene.pass(5_000), ["ask 0 #2 now"]);
    assert_eq!(scene.hear(granted(0, 5)), [""; 0]);
    assert_eq!(scene.hear(granted(1, 5)), ["ask 2 #1 spare"]);
    let confirm = ["confirm 0 #2 at 6", "confirm 1 #1 at 6"];
    assert_eq!(scene.hear(refused(2, Refusal::Full)), confirm);
}

#[test]
fn a_node_that_does_not_answer_what_it_is_asked_is_passed_over_too() {
    let (mut scene, done) = Scene::reached(plan(3, Require::Majority));
    assert_eq!(done, ["ask 0 #1"]);
    assert_eq!(scene.pass(1_000), ["ask 1 #1", "connect 0"]);
    assert_eq!(scene.hear(granted(1, 5)), ["ask 2 #1"]);
    // Too few are left without node 2, so it has the usual time.
    assert_eq!(scene.pass(4_999), [""; 0]);
    assert_eq!(scene.hear(granted(2, 5)), ["confirm 1 #1 at 6", "confirm 2 #1 at 6"]);
}

#[test]
fn a_request_that_reaches_too_few_holds_nothing_until_enough_answer() {
    let (mut scene, _) = Scene::reached(plan(3, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    assert_eq!(scene.hear(away(2)), [""; 0]);
    assert_eq!(scene.pass(500), ["connect 2"]);
    scene.hear(away(2));
    let done = scene.pass(4_500);
    let given_back = ["cancel 1", "cancel 0", "connect 0", "connect 1"];
    assert_eq!(done.iter().filter(|it| *it != "connect 2").collect::<Vec<_>>(), given_back);
    assert!(scene.said.contains(&Change::TooFew(Held { held: 2, need: 3 })));
    scene.hear(Input::Node(0, Event::Reached(None)));
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), [""; 0]);
    scene.pass(600_000);
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), ["ask 0 #1"]);
}

#[test]
fn a_lost_grant_begins_the_round_anew_unless_enough_are_left() {
    let (mut scene, _) = Scene::reached(plan(3, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    // The grant of node 0 ended with its connection. Waiting at node 0 while the request waits for
    // node 1 would break the order.
    assert_eq!(scene.hear(away(0)), ["cancel 1", "connect 1"]);
    scene.hear(Input::Node(1, Event::Reached(None)));
    assert_eq!(scene.pass(500), ["connect 0"]);
    assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["ask 0 #1"]);

    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    assert_eq!(scene.hear(away(0)), [""; 0], "nodes 1 and 2 are enough");
    assert_eq!(scene.hear(granted(1, 5)), ["ask 2 #1"]);
}

#[test]
fn whoever_has_the_first_node_has_the_lock() {
    let now = |require| Plan { wait_ms: Some(0), ..plan(3, require) };
    let (mut scene, done) = Scene::reached(now(Require::Majority));
    assert_eq!(done, ["ask 0 #1 now"]);
    assert_eq!(scene.hear(refused(0, Refusal::Full)), ["refused Some(0) Full"]);

    // The request that got it waits until those that have just been refused are gone.
    let (mut scene, _) = Scene::reached(now(Require::All));
    assert_eq!(scene.hear(granted(0, 5)), ["ask 1 #1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Queued)), [""; 0]);
    assert_eq!(scene.pass(999), [""; 0]);
    let done = scene.pass(1);
    assert_eq!(done, ["cancel 1", "cancel 0", "refused Some(1) Full"]);

    // A silent node does not delay it for long either.
    let mut scene = Scene::with(Coordinator::new(now(Require::Majority), 1_000));
    scene.hear(Input::Tick);
    (1..3).for_each(|node| drop(scene.hear(Input::Node(node, Event::Reached(None)))));
    assert_eq!(scene.pass(1_000), ["ask 1 #1 now"]);
    assert_eq!(scene.hear(refused(1, Refusal::Full)), ["refused Some(1) Full, 0 is silent"]);
}

#[test]
fn with_no_wait_any_is_refused_when_the_last_node_is() {
    let (mut scene, done) = Scene::reached(Plan { wait_ms: Some(0), ..plan(2, Require::Any) });
    assert_eq!(done, ["ask 0 #1 now", "ask 1 #1 now"]);
    assert_eq!(scene.hear(refused(1, Refusal::Full)), [""; 0]);
    assert_eq!(scene.hear(refused(0, Refusal::Full)), ["refused Some(0) Full"]);
}

#[test]
fn with_no_wait_a_node_that_is_needed_and_away_is_a_failure() {
    let plan = Plan { wait_ms: Some(0), ..plan(2, Require::All) };
    let mut scene = Scene::with(Coordinator::new(plan, 1_000));
    scene.hear(Input::Tick);
    scene.hear(Input::Node(0, Event::Reached(None)));
    scene.hear(away(1));
    let done = scene.pass(5_000);
    assert_eq!(done.last().map(String::as_str), Some("failed 1: timed out"));
}

#[test]
fn the_time_to_wait_is_one_clock_over_all_nodes() {
    let (mut scene, _) = Scene::reached(Plan { wait_ms: Some(10_000), ..plan(2, Require::All) });
    scene.hear(Input::Node(0, Event::Queued));
    scene.pass(6_000);
    assert_eq!(scene.hear(granted(0, 5)), ["ask 1 #1"]);
    scene.hear(Input::Node(1, Event::Queued));
    assert_eq!(scene.pass(4_000), ["cancel 1", "cancel 0", "refused None Timeout"]);

    // The message names a node that does not answer.
    let (mut scene, _) = Scene::reached(Plan { wait_ms: Some(4_000), ..plan(2, Require::All) });
    scene.hear(granted(0, 5));
    let done = scene.pass(4_000);
    assert_eq!(done.last().map(String::as_str), Some("refused None Timeout, 1 is silent"));

    // If the node has been silent for long, the request fails.
    let (mut scene, _) = Scene::reached(Plan { wait_ms: Some(10_000), ..plan(2, Require::All) });
    scene.hear(granted(0, 5));
    scene.hear(away(1));
    let done = scene.pass(9_000);
    assert!(done.contains(&"cancel 0".to_owned()), "{done:?}");
    scene.hear(Input::Node(0, Event::Reached(None)));
    let done = scene.pass(1_000);
    assert_eq!(done.last().map(String::as_str), Some("failed 1: timed out"));
}

#[test]
fn a_permanent_error_ends_it_as_soon_as_too_few_are_left() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    assert_eq!(scene.hear(never(1)), ["cancel 0", "failed 1: no such host"]);

    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    assert_eq!(scene.hear(never(0)), ["ask 1 #1"]);
    scene.hear(Input::Node(1, Event::Queued));
    let done = scene.hear(refused(1, Refusal::Unfit));
    assert_eq!(done, ["failed 0: no such host, 1: no"]);
}

#[test]
fn a_refusal_that_all_nodes_would_repeat_ends_it() {
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(granted(0, 5));
    let done = scene.hear(refused(1, Refusal::Invalid));
    assert_eq!(done, ["cancel 0", "failed 1: no"]);
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.hear(Input::Node(0, Event::Queued));
    assert_eq!(scene.hear(refused(0, Refusal::Deadlock)), ["refused Some(0) Deadlock"]);
}

#[test]
fn a_node_that_made_its_state_anew_is_waited_for_without_keeping_others() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    let done = scene.hear(refused(1, Refusal::NotYet(600_000)));
    assert_eq!(done, ["cancel 0", "connect 0"]);
    scene.hear(Input::Node(0, Event::Reached(None)));
    assert!(scene.said.contains(&Change::NotYet(vec![1], 601_000)));
    assert_eq!(scene.pass(599_999), [""; 0]);
    assert_eq!(scene.pass(1), ["ask 0 #1"]);
}

#[test]
fn nodes_whose_state_is_new_are_named_together_and_once() {
    let mut scene = Scene::with(Coordinator::new(plan(3, Require::All), 1_000));
    scene.hear(Input::Tick);
    for node in 0..3 {
        assert_eq!(scene.said, []);
        assert_eq!(scene.hear(Input::Node(node, Event::Reached(Some(60_000)))), [""; 0]);
    }
    assert_eq!(scene.said, [Change::NotYet(vec![0, 1, 2], 61_000)]);
    assert_eq!(scene.pass(60_000), ["ask 0 #1"]);
    assert_eq!(scene.said.len(), 1);
}

#[test]
fn a_node_that_turns_out_to_be_new_is_named_with_those_before() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(refused(0, Refusal::NotYet(60_000)));
    assert_eq!(scene.said, [Change::NotYet(vec![0], 61_000)]);
    scene.hear(Input::Node(1, Event::Reached(Some(30_000))));
    assert_eq!(scene.said[1..], [Change::NotYet(vec![0, 1], 61_000)]);
}

#[test]
fn a_request_comes_back_under_the_number_that_waits_for_it() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    scene.hear(away(1));
    assert_eq!(scene.pass(500), ["connect 1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), ["ask 1 #1"]);
    // After a refusal it is no longer in the queue: the next request starts at the end.
    let (mut scene, _) = Scene::reached(plan(2, Require::Any));
    scene.hear(refused(0, Refusal::NotYet(1_000)));
    assert_eq!(scene.pass(1_000), ["ask 0 #2"]);
}

#[test]
fn a_request_that_gives_way_asks_anew_behind_the_others() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    let done = scene.hear(Input::Surrender);
    assert_eq!(done, ["cancel 1", "cancel 0", "connect 0", "connect 1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), ["release 1 #1"]);
    // The old place could outlive a broken connection.
    assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["release 0 #1"]);
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["ask 0 #2"]);
    // It has no effect once the command may have begun.
    let mut scene = Scene::running(plan(2, Require::All));
    assert_eq!(scene.hear(Input::Surrender), [""; 0]);
}

#[test]
fn a_victim_of_a_deadlock_gives_all_back_and_is_refused_while_it_waits_only() {
    let deadlock = || Input::Deadlock("a ring".to_owned());
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    assert!(!scene.coordinator.waits());
    scene.hear(Input::Node(0, Event::Queued));
    assert!(scene.coordinator.waits() && !scene.coordinator.holds_while_it_waits());
    scene.hear(granted(0, 5));
    assert!(!scene.coordinator.waits());
    assert_eq!(scene.hear(deadlock()), [""; 0], "the node may grant it yet");
    scene.hear(Input::Node(1, Event::Queued));
    assert!(scene.coordinator.holds_while_it_waits());
    assert_eq!(scene.hear(deadlock()), ["cancel 1", "cancel 0", "refused None Deadlock"]);
    let mut scene = Scene::running(plan(2, Require::All));
    assert_eq!(scene.hear(deadlock()), [""; 0]);
}

#[test]
fn only_those_that_answer_within_5_s_count_as_alive() {
    let mut scene = Scene::with(Coordinator::new(plan(3, Require::AllAlive), 1_000));
    scene.hear(Input::Tick);
    scene.hear(Input::Node(0, Event::Reached(None)));
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), [""; 0]);
    assert_eq!(scene.pass(5_000), ["ask 0 #1"]);
    assert_eq!(scene.hear(granted(0, 5)), ["ask 2 #1"]);
    assert_eq!(scene.hear(granted(2, 5)), ["confirm 0 #1 at 6", "confirm 2 #1 at 6"]);
    scene.hear(confirmed(0, scene.now));
    let now = scene.now;
    let done = scene.hear(confirmed(2, now));
    // It has no token, because it does not exclude a command across a cut.
    assert_eq!(done[0], format!("start - [0, 2] until {}", now + 55_000));
}

#[test]
fn one_that_does_not_answer_any_more_does_not_count_as_alive_either() {
    let (mut scene, done) = Scene::reached(plan(3, Require::AllAlive));
    assert_eq!(done, ["ask 0 #1"]);
    scene.hear(granted(0, 5));
    scene.hear(away(1));
    let done = scene.pass(5_000);
    assert!(done.contains(&"cancel 0".to_owned()), "{done:?}");
    scene.hear(Input::Node(0, Event::Reached(None)));
    assert_eq!(scene.hear(granted(0, 6)), ["ask 2 #1"]);
    assert_eq!(scene.hear(granted(2, 6)), ["confirm 0 #1 at 7", "confirm 2 #1 at 7"]);
}

#[test]
fn a_token_that_has_come_to_its_end_is_an_error() {
    let (mut scene, _) = Scene::reached(plan(1, Require::All));
    let done = scene.hear(granted(0, CONFIRMED_TOKEN_MAX));
    assert!(done[1].starts_with("failed 0: its tokens reached"), "{done:?}");
    let (mut scene, _) = Scene::reached(plan(1, Require::All));
    let done = scene.hear(granted(0, CONFIRMED_TOKEN_MAX - 1));
    assert_eq!(done, [format!("confirm 0 #1 at {CONFIRMED_TOKEN_MAX}")]);
}

#[test]
fn a_node_that_is_away_is_told_once_and_again_when_it_is_back() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(Input::Node(0, Event::Queued));
    scene.said.clear();
    scene.hear(away(1));
    scene.pass(500);
    scene.hear(away(1));
    scene.pass(5_000);
    scene.hear(Input::Node(0, Event::Reached(None)));
    scene.pass(15_000);
    scene.hear(away(1));
    let away: Vec<_> =
        scene.said.iter().filter(|it| matches!(it, Change::Away { .. })).cloned().collect();
    let why = "timed out".to_owned();
    let expected = Change::Away {
        node: 1,
        since: 1_000,
        why,
        held: Held { held: 0, need: 2 },
        stops_at: None,
    };
    assert_eq!(away, [expected]);
    scene.hear(Input::Node(1, Event::Reached(None)));
    assert!(scene.said.contains(&Change::Back(1, Held { held: 0, need: 2 })));
}

#[test]
fn a_node_that_does_not_answer_is_connected_to_anew_wherever_it_is_in_the_order() {
    for require in [Require::All, Require::AllAlive] {
        let (mut scene, _) = Scene::reached(plan(3, require));
        scene.hear(granted(0, 5));
        assert_eq!(scene.hear(granted(1, 5)), ["ask 2 #1"]);
        let done = scene.pass(5_000);
        assert!(done.contains(&"connect 2".to_owned()), "{done:?}");
    }
}
