//! The requests that a new one supersedes, by comparing it with all others.

use std::collections::BTreeSet;

use super::{Asker, lineage};
use crate::*;

/// Checks that a new request supersedes exactly the waiting requests that it should, and none if it
/// is refused.
pub(super) fn check_superseded(before: &Table, entry: &Entry, outcomes: &[Outcome]) {
    let state = before.snapshot();
    let superseded = |outcome: &Outcome| match outcome {
        Outcome::Refused { request, why: Refusal::Superseded { by } } => Some((*request, *by)),
        _ => None,
    };
    let found: Vec<_> = outcomes.iter().filter_map(superseded).collect();
    let Change::Request(asked) = &entry.change else { return assert_eq!(found, []) };
    let id = RequestId(before.revision().0 + 1);
    let frame = before.frame_of(asked.host, &asked.owner).unwrap_or(FrameId(id.0));
    let asker = Asker { id, frame, parent: asked.parent, asked, barrier: false };
    let which = asked.supersede.as_ref().and_then(|it| it.which);
    let rivals = |frame, other: &Request| {
        !lineage(&state, &asker).contains(&frame) && is_rival(asked, other)
    };
    let unendable: Vec<Token> = state
        .holds
        .iter()
        .filter(|hold| which == Some(Superseded::Running) && rivals(hold.frame, &hold.asked))
        .filter(|hold| {
            let is_process = matches!(hold.asked.owner, Owner::Process(_));
            !is_process || hold.orphaned || hold.asked.host != asked.host
        })
        .map(|hold| hold.token)
        .collect();
    match outcomes.iter().find(|outcome| outcome.is_word_on(id)) {
        Some(Outcome::Refused { why: Refusal::CannotEnd { token }, .. }) => {
            assert!(unendable.contains(token), "{outcomes:?}");
            assert_eq!(found, []);
        }
        Some(Outcome::Refused { why: Refusal::Superseded { by }, .. }) => {
            let past = PastRequest { tag: asked.tag, by: *by };
            assert!(state.globals.superseded.contains(&past));
            assert_eq!(found, [(id, *by)]);
        }
        Some(Outcome::Refused { .. }) => assert_eq!(found, []),
        _ => {
            assert_eq!(unendable, [], "{outcomes:?}");
            let waiters = state.waiters.iter().filter(|_| which.is_some());
            let expected: BTreeSet<_> = waiters
                .filter(|waiter| rivals(waiter.frame, &waiter.request))
                .map(|waiter| (waiter.id, id))
                .collect();
            assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), expected);
            assert_eq!(found.len(), expected.len());
        }
    }
}

/// Whether two requests are of one user and one group.
fn is_rival(one: &Request, other: &Request) -> bool {
    let group = |asked: &Request| asked.supersede.as_ref().and_then(|it| it.group.clone());
    let keys =
        |asked: &Request| asked.items.iter().map(|it| it.key.clone()).collect::<BTreeSet<_>>();
    let same = match (group(one), group(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => keys(one) == keys(other),
        _ => false,
    };
    let plain =
        |asked: &Request| asked.over_nodes.is_none() && !matches!(asked.owner, Owner::Jobserver(_));
    same && one.uid == other.uid && plain(one) && plain(other)
}
