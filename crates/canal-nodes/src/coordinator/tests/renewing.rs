//! Renews and releases a lease of which only the handle is known.

use super::scene::{Scene, away, confirmed, granted, never, plan, refused};
use crate::{Change, Checkpoint, Coordinator, Event, Input, Part, Refusal, Require, Task};
use canal_core::Token;

fn checkpoint(nodes: usize, need: usize) -> Checkpoint {
    let part = |node| Part { node, lease: 1, sent: None, asked: None };
    Checkpoint { token: Some(Token(9)), need, parts: (0..nodes).map(part).collect() }
}

/// A lease of a majority of three.
fn lease(task: Task) -> Scene {
    let plan = plan(3, Require::Majority);
    Scene::with(Coordinator::take_over(plan, &checkpoint(3, 2), task, 1_000))
}

fn renewing() -> Scene {
    let mut scene = lease(Task::Renew);
    assert_eq!(scene.hear(Input::Tick), ["connect 0", "connect 1", "connect 2"]);
    scene
}

fn renewed(node: usize, sent: u64) -> Input {
    Input::Node(node, Event::Renewed { sent, ttl_ms: None })
}

#[test]
fn the_ttl_that_a_node_says_counts_and_not_that_of_the_plan() {
    let mut scene = renewing();
    for node in 0..3 {
        scene.hear(Input::Node(node, Event::Reached(None)));
    }
    scene.now = 1_200;
    let renewed = |node, ttl_ms| Input::Node(node, Event::Renewed { sent: 1_000, ttl_ms });
    assert_eq!(scene.hear(renewed(0, Some(12_000))), [""; 0]);
    assert_eq!(scene.hear(renewed(1, Some(120_000))), [""; 0]);
    // The second latest counts: the plan's 60 s less a twelfth. Two of them later keep it for 12 s.
    assert_eq!(scene.hear(renewed(2, None)), ["start 9 [0, 1, 2] until 56000"]);
    assert_eq!(scene.pass(3_800), ["renew 0 #1"]);
    let at = scene.now;
    let again = |node, ttl_ms| Input::Node(node, Event::Renewed { sent: at, ttl_ms });
    assert_eq!(scene.hear(again(0, Some(12_000))), [""; 0]);
    assert_eq!(scene.hear(again(2, Some(12_000))), [format!("deadline {}", at + 11_000)]);
}

#[test]
fn it_counts_until_the_kth_latest_deadline_from_the_time_before_each_was_sent() {
    let mut scene = renewing();
    assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["renew 0 #1"]);
    assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), ["renew 1 #1"]);
    assert_eq!(scene.hear(away(2)), [""; 0]);
    scene.now = 1_200;
    assert_eq!(scene.hear(renewed(0, 1_000)), [""; 0]);
    // The third may answer soon.
    assert_eq!(scene.hear(renewed(1, 1_100)), [""; 0]);
    assert_eq!(scene.pass(4_800), ["connect 2", "start 9 [0, 1] until 56000"]);
    assert!(matches!(scene.said.last(), Some(Change::Away { node: 2, .. })), "{:?}", scene.said);
    // The coordinator continues to renew, and counts the third node when it answers.
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), ["renew 2 #1"]);
    assert_eq!(scene.hear(renewed(2, 6_000)), ["deadline 56100"]);
    assert_eq!(scene.pass(15_000), ["renew 0 #1"]);
}

#[test]
fn all_that_answer_are_enough_without_a_wait() {
    let mut scene = renewing();
    (0..3).for_each(|node| drop(scene.hear(Input::Node(node, Event::Reached(None)))));
    scene.hear(renewed(0, 1_000));
    scene.hear(renewed(1, 1_000));
    assert_eq!(scene.hear(renewed(2, 1_000)), ["start 9 [0, 1, 2] until 56000"]);
}

#[test]
fn what_is_left_of_a_lost_lease_is_given_back() {
    let mut scene = renewing();
    (0..3).for_each(|node| drop(scene.hear(Input::Node(node, Event::Reached(None)))));
    assert_eq!(scene.hear(Input::Node(0, Event::Gone)), [""; 0]);
    assert_eq!(scene.hear(renewed(2, 1_000)), [""; 0]);
    assert_eq!(scene.hear(Input::Node(1, Event::Gone)), ["release 2 #1"]);
    assert_eq!(scene.hear(Input::Node(2, Event::Gone)), ["lost [0, 1]"]);
}

#[test]
fn a_part_that_one_node_lost_is_not_asked_for_again() {
    let mut scene = renewing();
    (0..3).for_each(|node| drop(scene.hear(Input::Node(node, Event::Reached(None)))));
    scene.hear(Input::Node(0, Event::Gone));
    scene.hear(renewed(1, 1_000));
    assert_eq!(scene.hear(renewed(2, 1_000)), ["start 9 [1, 2] until 56000", "cancel 0"]);
    assert_eq!(scene.pass(20_000), ["renew 1 #1", "renew 2 #1"]);
}

#[test]
fn without_answers_of_enough_nodes_nothing_is_given_back() {
    let mut scene = renewing();
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), ["renew 2 #1"]);
    scene.hear(never(0));
    scene.hear(never(1));
    let failed = "failed 0: no such host, 1: no such host";
    assert_eq!(scene.hear(renewed(2, 1_000)), [failed]);

    let mut scene = renewing();
    assert_eq!(scene.pass(14_999), [""; 0]);
    let silent = (0..3).map(|node| format!("{node}: it does not answer"));
    let failed = format!("failed {}", silent.collect::<Vec<_>>().join(", "));
    assert_eq!(scene.pass(1), [failed]);
}

#[test]
fn giving_back_tells_each_node_and_names_those_that_were_not_reached() {
    let giving_back = || {
        let mut scene = lease(Task::GiveBack);
        assert_eq!(scene.hear(Input::Tick), ["connect 0", "connect 1", "connect 2"]);
        assert_eq!(scene.hear(Input::Node(1, Event::Reached(None))), ["release 1 #1"]);
        assert_eq!(scene.hear(Input::Node(0, Event::Reached(None))), ["release 0 #1"]);
        assert_eq!(scene.hear(Input::Node(0, Event::Gone)), [""; 0]);
        assert_eq!(scene.hear(Input::Node(1, Event::Gone)), [""; 0]);
        scene
    };
    let mut scene = giving_back();
    assert_eq!(scene.hear(never(2)), ["given back [2]"]);
    let mut scene = giving_back();
    scene.hear(away(2));
    assert_eq!(scene.pass(15_000), ["connect 2", "given back [2]"]);
    let mut scene = giving_back();
    assert_eq!(scene.hear(Input::Node(2, Event::Reached(None))), ["release 2 #1"]);
    assert_eq!(scene.hear(Input::Node(2, Event::Gone)), ["given back []"]);
}

#[test]
fn after_the_start_nodes_that_may_soon_hold_it_too_are_awaited() {
    let started = || Scene::running(plan(3, Require::Majority));
    let awaits = |scene: &Scene, later: u64| scene.coordinator.awaits_spares(scene.now + later);
    let mut scene = started();
    assert!(awaits(&scene, 0));
    scene.hear(granted(2, 5));
    assert!(awaits(&scene, 0));
    scene.hear(confirmed(2, 1_000));
    assert!(!awaits(&scene, 0));
    let mut scene = started();
    scene.hear(refused(2, Refusal::Full));
    assert!(!awaits(&scene, 0));
    let mut scene = started();
    scene.hear(away(2));
    assert!(awaits(&scene, 4_999));
    assert!(!awaits(&scene, 5_000));
    let mut scene = started();
    scene.hear(never(2));
    assert!(!awaits(&scene, 0));
    assert!(!awaits(&Scene::running(plan(3, Require::All)), 0));
}
