//! Tests deadlines, renewals, spares, and the end.

use super::scene::{Scene, away, confirmed, granted, plan, refused};
use crate::{Change, Event, Held, Input, Refusal, Require};
use canal_core::Token;
use canal_protocol::NodeFailure;

#[test]
fn the_command_may_run_until_the_kth_latest_lease_may_end() {
    let mut scene = Scene::running(plan(3, Require::Majority));
    scene.now = 2_000;
    assert_eq!(scene.hear(granted(2, 4)), ["confirm 2 #1 at 6"]);
    // The second latest of three advances only with a second renewal.
    assert_eq!(scene.hear(confirmed(2, 2_000)), [""; 0]);
    assert_eq!(scene.pass(19_000), ["renew 0 #1", "renew 1 #1"]);
    assert_eq!(
        scene.hear(Input::Node(0, Event::Renewed { sent: 21_000, ttl_ms: None })),
        ["deadline 57000"]
    );
    assert_eq!(
        scene.hear(Input::Node(1, Event::Renewed { sent: 21_000, ttl_ms: None })),
        ["deadline 76000"]
    );
    assert_eq!(scene.pass(1_000), ["renew 2 #1"]);
}

#[test]
fn a_majority_outlives_the_loss_of_any_one_node() {
    for lost in 0..3 {
        let mut scene = Scene::running(plan(3, Require::Majority));
        scene.hear(granted(2, 4));
        scene.hear(confirmed(2, 1_000));
        scene.hear(away(lost));
        for _ in 0..100 {
            for done in scene.pass(1_000) {
                let words: Vec<&str> = done.split(' ').collect();
                let node = words.get(1).and_then(|node| node.parse().ok()).unwrap_or(0);
                match words[0] {
                    "connect" => drop(scene.hear(away(node))),
                    "renew" => {
                        drop(scene.hear(Input::Node(
                            node,
                            Event::Renewed { sent: scene.now, ttl_ms: None },
                        )));
                    }
                    "deadline" => {}
                    other => panic!("{other} {done}"),
                }
            }
        }
        let done = scene.hear(Input::Stop);
        assert_eq!(done.iter().filter(|done| done.starts_with("release")).count(), 2, "{done:?}");
    }
}

#[test]
fn the_command_is_killed_when_too_few_leases_are_sure() {
    let mut scene = Scene::running(plan(2, Require::All));
    scene.hear(away(1));
    for _ in 0..2 {
        scene.pass(20_000);
        scene.hear(Input::Node(0, Event::Renewed { sent: scene.now, ttl_ms: None }));
    }
    let done = scene.pass(14_999);
    assert!(!done.contains(&"kill".to_owned()), "{done:?}");
    assert_eq!(scene.pass(1).last().map(String::as_str), Some("kill"));
    // Before the command has ended, no lease is released or renewed.
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), [""; 0]);
    assert_eq!(scene.hear(Input::Node(0, Event::Renewed { sent: 50_000, ttl_ms: None })), [""; 0]);
    assert_eq!(scene.pass(100), [""; 0]);
    assert_eq!(scene.hear(Input::Stop), ["release 1 #1", "release 0 #1"]);
    scene.hear(Input::Node(0, Event::Gone));
    assert_eq!(scene.hear(Input::Node(1, Event::Gone)), ["lost [1]"]);
}

#[test]
fn a_spare_that_refuses_while_the_command_is_killed_ends_nothing() {
    for refusal in [Refusal::Full, Refusal::Invalid, Refusal::Unfit] {
        let mut scene = Scene::running(plan(3, Require::Majority));
        assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["kill"]);
        assert_eq!(scene.hear(refused(2, refusal)), [""; 0]);
        // The command has ended.
        assert_eq!(scene.hear(Input::Stop), ["release 1 #1"]);
        assert_eq!(scene.hear(Input::Node(1, Event::Gone)), ["lost [0, 2]"]);
    }
}

#[test]
fn a_lease_that_is_gone_does_not_count_any_more() {
    // With `all`, the lock is lost at once.
    let mut scene = Scene::running(plan(2, Require::All));
    scene.pass(20_000);
    scene.hear(Input::Node(0, Event::Renewed { sent: 21_000, ttl_ms: None }));
    assert_eq!(scene.hear(Input::Node(1, Event::Gone)), ["kill"]);
    assert!(scene.said.contains(&Change::Lost(1, Held { held: 1, need: 2 })));
    // With a majority, the rest counts, and the node is asked again.
    let mut scene = Scene::running(plan(3, Require::Majority));
    scene.hear(granted(2, 4));
    scene.hear(confirmed(2, 1_000));
    scene.pass(20_000);
    scene.hear(Input::Node(0, Event::Renewed { sent: 21_000, ttl_ms: None }));
    assert_eq!(
        scene.hear(Input::Node(1, Event::Renewed { sent: 21_000, ttl_ms: None })),
        ["deadline 76000"]
    );
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["deadline 56000", "ask 0 #2 spare"]);
}

#[test]
fn a_spare_is_confirmed_with_a_token_that_its_node_can_take() {
    let mut scene = Scene::running(plan(3, Require::Majority));
    // The run has token 6. That node has granted larger ones to others since.
    assert_eq!(scene.hear(granted(2, 900)), ["confirm 2 #1 at 900"]);
}

#[test]
fn a_spare_that_is_refused_or_taken_back_is_asked_for_again_later() {
    let mut scene = Scene::running(plan(3, Require::Majority));
    assert_eq!(scene.hear(refused(2, Refusal::Full)), [""; 0]);
    assert_eq!(scene.pass(20_000), ["renew 0 #1", "renew 1 #1", "ask 2 #2 spare"]);
    scene.hear(Input::Node(0, Event::Renewed { sent: 21_000, ttl_ms: None }));
    scene.hear(Input::Node(1, Event::Renewed { sent: 21_000, ttl_ms: None }));
    scene.hear(granted(2, 5));
    // The node took it back before the confirmation arrived.
    assert_eq!(scene.hear(Input::Node(2, Event::ConfirmFailed)), ["renew 2 #2"]);
    assert_eq!(scene.hear(Input::Node(2, Event::Gone)), [""; 0]);
    let done = scene.pass(20_000);
    assert!(done.contains(&"ask 2 #3 spare".to_owned()), "{done:?}");
    assert_eq!(scene.hear(Input::Node(2, Event::Queued)), [""; 0]);
}

#[test]
fn a_spare_whose_token_is_taken_is_given_back_and_asked_for_again() {
    let mut scene = Scene::running(plan(3, Require::Majority));
    assert_eq!(scene.hear(granted(2, 4)), ["confirm 2 #1 at 6"]);
    let taken = Input::Node(2, Event::TokenTaken(Token(900)));
    assert_eq!(scene.hear(taken), ["release 2 #1"], "it would stay there, collecting");
    assert_eq!(scene.hear(Input::Node(2, Event::Gone)), [""; 0]);
    let done = scene.pass(20_000);
    assert!(done.contains(&"ask 2 #2 spare".to_owned()), "{done:?}");
    scene.hear(Input::Node(0, Event::Renewed { sent: 21_000, ttl_ms: None }));
    scene.hear(Input::Node(1, Event::Renewed { sent: 21_000, ttl_ms: None }));
    assert_eq!(scene.hear(granted(2, 900)), ["confirm 2 #2 at 900"]);
    // The coordinator stops asking a node that refuses the token.
    let refused = Input::Node(2, Event::TokenRefused(NodeFailure::permanent("a year ahead")));
    assert_eq!(scene.hear(refused), ["release 2 #2"]);
    scene.hear(Input::Node(2, Event::Gone));
    let done = scene.pass(20_000);
    assert!(!done.iter().any(|done| done.starts_with("ask 2")), "{done:?}");
}

/// A majority passes over a silent node, and starts. The node may still have something of the first
/// request, which, unlike a spare, would block others.
#[test]
fn a_spare_is_asked_for_when_nothing_is_left_of_what_was_asked_before() {
    let (mut scene, _) = Scene::reached(plan(3, Require::Majority));
    scene.pass(5_000);
    scene.hear(granted(1, 5));
    scene.hear(granted(2, 5));
    let now = scene.now;
    scene.hear(confirmed(1, now));
    scene.hear(confirmed(2, now));
    assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["release 0 #1"]);
    scene.hear(away(0));
    scene.pass(1_000);
    assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["release 0 #1"]);
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["ask 0 #2 spare"]);
}

#[test]
fn a_renewal_that_is_not_answered_is_sent_again_over_another_connection() {
    let mut scene = Scene::running(plan(2, Require::All));
    assert_eq!(scene.pass(20_000), ["renew 0 #1", "renew 1 #1"]);
    scene.hear(Input::Node(0, Event::Renewed { sent: 21_000, ttl_ms: None }));
    assert_eq!(scene.pass(5_000), ["connect 1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), ["renew 1 #1"]);
    let change = scene.said.iter().find(|it| matches!(it, Change::Away { .. })).unwrap();
    let Change::Away { node, since, held: Held { held, need }, stops_at, .. } = change else {
        unreachable!()
    };
    assert_eq!((*node, *since, *held, *need, *stops_at), (1, 21_000, 2, 2, Some(56_000)));
    assert_eq!(
        scene.hear(Input::Node(1, Event::Renewed { sent: 26_000, ttl_ms: None })),
        ["deadline 76000"]
    );
    assert!(scene.said.contains(&Change::Back(1, Held { held: 2, need: 2 })));
}

#[test]
fn everything_is_given_back_at_the_end_the_first_node_last() {
    let mut scene = Scene::running(plan(2, Require::All));
    assert_eq!(scene.hear(Input::Stop), ["release 1 #1", "release 0 #1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Gone)), [""; 0]);
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), ["given back []"]);
    assert_eq!(scene.hear(Input::Tick), [""; 0]);
}

#[test]
fn a_node_that_does_not_answer_at_the_end_is_named() {
    let mut scene = Scene::running(plan(2, Require::All));
    scene.hear(away(1));
    scene.hear(Input::Stop);
    scene.hear(Input::Node(0, Event::Gone));
    let done = scene.pass(5_000);
    assert_eq!(done.last().map(String::as_str), Some("given back [1]"));
    // The coordinator does not do so if the lease ended by itself.
    let mut scene = Scene::running(plan(3, Require::Majority));
    scene.hear(granted(2, 4));
    scene.hear(confirmed(2, 1_000));
    scene.hear(away(1));
    for _ in 0..4 {
        scene.pass(20_000);
        let sent = scene.now;
        scene.hear(Input::Node(0, Event::Renewed { sent, ttl_ms: None }));
        scene.hear(Input::Node(2, Event::Renewed { sent, ttl_ms: None }));
        scene.hear(away(1));
    }
    scene.hear(Input::Stop);
    scene.hear(Input::Node(0, Event::Gone));
    assert_eq!(scene.hear(Input::Node(2, Event::Gone)), ["given back []"]);
}

#[test]
fn a_request_that_is_cancelled_gives_back_what_it_collected() {
    let (mut scene, _) = Scene::reached(plan(3, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    assert_eq!(scene.hear(Input::Stop), ["cancel 1", "cancel 0", "given back []"]);
}
