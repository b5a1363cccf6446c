//! Decides from the answers of nodes which request leads by holding a key over nodes.
//!
//! Invariant: a request leads only if at least as many nodes report it as the watcher wants, and as
//! the request itself needs. A holder at each node is not enough: all of them must name one request
//! and one token.
//!
//! So no two requests can both lead by more than half of the nodes.

use std::collections::BTreeMap;

use canal_core::RunId;

/// A request over nodes, a part of which a node holds, confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The request.
    pub run: RunId,
    /// The token with which it was confirmed.
    pub token: u64,
    /// The number of nodes that it needs.
    pub need: usize,
}

/// The leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This request.
    Led(Claim),
    /// No request leads, whatever the other nodes would answer.
    Vacant,
    /// The silent nodes decide.
    Unknown,
}

/// The leader, if at least `least` nodes must report it. `held` has the claim of each node that
/// holds a confirmed part; `silent` is the number of nodes without an answer that counts.
pub fn judge(held: &[Claim], silent: usize, least: usize) -> Verdict {
    let mut claims: BTreeMap<Claim, usize> = BTreeMap::new();
    for claim in held {
        *claims.entry(*claim).or_default() += 1;
    }
    let enough = |claim: &Claim| claim.need.max(least).max(1);
    if let Some((claim, _)) = claims.iter().find(|(claim, nodes)| **nodes >= enough(claim)) {
        return Verdict::Led(*claim);
    }
    let may_lead = claims.iter().any(|(claim, nodes)| nodes + silent >= enough(claim));
    match may_lead || silent >= least.max(1) {
        true => Verdict::Unknown,
        false => Verdict::Vacant,
    }
}

#[cfg(test)]
mod tests {
    use self::Said::{Holds, NoClaim, Nothing};
    use super::*;

    /// The answer of one node.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Said {
        Nothing,
        NoClaim,
        Holds(Claim),
    }

    fn judge(said: &[Said], least: usize) -> Verdict {
        let claim = |said: &Said| if let Holds(claim) = said { Some(*claim) } else { None };
        let held: Vec<Claim> = said.iter().filter_map(claim).collect();
        let silent = said.iter().filter(|said| **said == Nothing).count();
        super::judge(&held, silent, least)
    }

    fn claim(run: u128, token: u64, need: usize) -> Claim {
        Claim { run: RunId(run), token, need }
    }

    #[test]
    fn a_leader_is_believed_if_enough_nodes_name_one_request_and_one_token() {
        let (a, b) = (claim(1, 7, 2), claim(2, 7, 2));
        assert_eq!(judge(&[Holds(a), Holds(a), NoClaim], 2), Verdict::Led(a));
        assert_eq!(judge(&[Nothing, Holds(a), Holds(a)], 2), Verdict::Led(a));
        assert_eq!(judge(&[Holds(a), Holds(b), NoClaim], 2), Verdict::Vacant, "another request");
        let later = claim(1, 8, 2);
        assert_eq!(judge(&[Holds(a), Holds(later), NoClaim], 2), Verdict::Vacant, "another token");
        assert_eq!(judge(&[Holds(a), Holds(a), NoClaim], 3), Verdict::Vacant, "all are asked for");
        assert_eq!(judge(&[Holds(claim(1, 7, 1))], 1), Verdict::Led(claim(1, 7, 1)));
    }

    #[test]
    fn a_request_leads_nowhere_before_the_nodes_that_it_needs_hold_it() {
        let all = claim(1, 7, 3);
        assert_eq!(judge(&[Holds(all), Holds(all), NoClaim], 2), Verdict::Vacant);
        assert_eq!(judge(&[Holds(all), Holds(all), Nothing], 2), Verdict::Unknown);
        assert_eq!(judge(&[Holds(all), Holds(all), Holds(all)], 2), Verdict::Led(all));
    }

    #[test]
    fn nobody_leads_only_if_the_silent_nodes_could_not_say_otherwise() {
        let a = claim(1, 7, 2);
        assert_eq!(judge(&[NoClaim, NoClaim, Nothing], 2), Verdict::Vacant);
        assert_eq!(judge(&[NoClaim, Nothing, Nothing], 2), Verdict::Unknown);
        assert_eq!(judge(&[Holds(a), NoClaim, Nothing], 2), Verdict::Unknown);
        assert_eq!(judge(&[Holds(a), NoClaim, NoClaim], 2), Verdict::Vacant);
        assert_eq!(judge(&[Nothing; 3], 2), Verdict::Unknown);
    }

    /// Tries each way in which three nodes can hold parts of two requests or of none, and in which
    /// some of them are out of reach.
    #[test]
    fn silence_never_changes_an_answer_that_was_given() {
        let each = [Nothing, NoClaim, Holds(claim(1, 7, 2)), Holds(claim(2, 8, 3))];
        let mut seen = 0;
        for at in 0..each.len().pow(3) {
            let heard = [at / 16, at / 4 % 4, at % 4].map(|said| each[said]);
            for truth in 0..each.len().pow(3) {
                let truth = [truth / 16, truth / 4 % 4, truth % 4].map(|said| each[said]);
                let fits = |(heard, truth): (&Said, &Said)| {
                    *truth != Nothing && (*heard == Nothing || heard == truth)
                };
                if !heard.iter().zip(&truth).all(fits) {
                    continue;
                }
                for least in [2, 3] {
                    let verdict = judge(&heard, least);
                    assert!(
                        verdict == Verdict::Unknown || verdict == judge(&truth, least),
                        "{heard:?} of {truth:?}"
                    );
                    seen += 1;
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
