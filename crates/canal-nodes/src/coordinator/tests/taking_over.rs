//! A coordinator continues after another one ended.

use super::scene::{Scene, confirmed, granted, plan};
use crate::{Checkpoint, Coordinator, Event, Input, Part, Require, Task};
use canal_core::Token;

fn take_over(scene: &Scene, nodes: u128, require: Require, runs: bool) -> Scene {
    let checkpoint = scene.coordinator.checkpoint();
    let task = if runs { Task::Run } else { Task::Wait };
    let mut next =
        Scene::with(Coordinator::take_over(plan(nodes, require), &checkpoint, task, scene.now));
    next.now = scene.now;
    next
}

#[test]
fn before_the_start_what_was_to_be_confirmed_is_given_back_and_asked_anew() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(granted(1, 5));
    scene.hear(confirmed(0, 1_000));
    let mut next = take_over(&scene, 2, Require::All, false);
    assert_eq!(next.hear(Input::Tick), ["connect 0", "connect 1"]);
    assert_eq!(next.hear(Input::Node(0, Event::Reached(None))), ["release 0 #1"]);
    assert_eq!(next.hear(Input::Node(1, Event::Reached(None))), ["release 1 #1"]);
    assert_eq!(next.hear(Input::Node(0, Event::Gone)), ["ask 0 #2"]);
}

#[test]
fn before_the_start_the_request_goes_on_where_it_waits() {
    let (mut scene, _) = Scene::reached(plan(2, Require::All));
    scene.hear(granted(0, 5));
    scene.hear(Input::Node(1, Event::Queued));
    let mut next = take_over(&scene, 2, Require::All, false);
    next.hear(Input::Tick);
    next.hear(Input::Node(1, Event::Reached(None)));
    assert_eq!(next.hear(Input::Node(0, Event::Reached(None))), ["ask 0 #1"]);
    assert_eq!(next.hear(granted(0, 5)), ["ask 1 #1"]);
}

#[test]
fn a_running_command_keeps_its_deadline_and_its_leases() {
    let mut scene = Scene::running(plan(3, Require::Majority));
    scene.hear(granted(2, 5));
    let checkpoint = scene.coordinator.checkpoint();
    let part = |node, sent| Part { node, lease: 1, sent, asked: None };
    let parts = vec![part(0, Some(1_000)), part(1, Some(1_000)), part(2, None)];
    assert_eq!(checkpoint, Checkpoint { token: Some(Token(6)), need: 2, parts });
    scene.now = 11_000;
    let mut next = take_over(&scene, 3, Require::Majority, true);
    let done = next.hear(Input::Tick);
    assert_eq!(done, ["deadline 56000", "connect 0", "connect 1", "connect 2"]);
    // It finds out what each node holds.
    assert_eq!(next.hear(Input::Node(0, Event::Reached(None))), ["renew 0 #1"]);
    assert_eq!(next.hear(Input::Node(2, Event::Reached(None))), ["renew 2 #1"]);
    assert_eq!(next.hear(Input::Node(0, Event::Renewed { sent: 11_000, ttl_ms: None })), [""; 0]);
    // The other one had not confirmed its spare, or it had and reported that to no process.
    assert_eq!(
        next.hear(Input::Node(2, Event::Renewed { sent: 11_000, ttl_ms: None })),
        ["deadline 66000"]
    );
}

#[test]
fn a_lease_that_was_lost_meanwhile_is_lost() {
    let scene = Scene::running(plan(2, Require::All));
    let mut next = take_over(&scene, 2, Require::All, true);
    next.hear(Input::Tick);
    next.hear(Input::Node(1, Event::Reached(None)));
    assert_eq!(next.hear(Input::Node(1, Event::Gone)), ["kill"]);
    // A spare that was never held is not one of the nodes that count.
    let mut scene = Scene::running(plan(3, Require::Majority));
    scene.hear(granted(2, 5));
    let mut next = take_over(&scene, 3, Require::Majority, true);
    next.hear(Input::Tick);
    next.hear(Input::Node(2, Event::Reached(None)));
    assert_eq!(next.hear(Input::Node(2, Event::Gone)), ["ask 2 #2 spare"]);
}

#[test]
fn one_that_takes_over_too_late_ends_the_command() {
    let mut scene = Scene::running(plan(2, Require::All));
    scene.now = 56_000;
    let mut next = take_over(&scene, 2, Require::All, true);
    assert_eq!(next.hear(Input::Tick), ["kill"]);
}

#[test]
fn a_command_that_has_ended_meanwhile_gives_everything_back() {
    let scene = Scene::running(plan(2, Require::All));
    let mut next = take_over(&scene, 2, Require::All, true);
    assert_eq!(next.hear(Input::Stop), ["connect 0", "connect 1"]);
    assert_eq!(next.hear(Input::Node(1, Event::Reached(None))), ["release 1 #1"]);
    assert_eq!(next.hear(Input::Node(0, Event::Reached(None))), ["release 0 #1"]);
    next.hear(Input::Node(0, Event::Gone));
    assert_eq!(next.hear(Input::Node(1, Event::Gone)), ["given back []"]);
}
