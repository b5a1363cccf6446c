//! Decides which build of a key gets a slot next.
//!
//! The daemon cannot see whether a build waits for a token. A build that takes its offer may want
//! another one; a build that does not take it wants none. So each build has one offer at most, and
//! an offer that stays untaken for a while moves to a build that may want it.

use std::time::Duration;

use canal_core::Tag;

/// How long an offer stays with a build even if others want it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// The longest time for which the daemon skips a build that did not take its offer.
pub(crate) const PASSED_OVER_MAX: Duration = Duration::from_secs(60);

/// The state of a build, for comparison with others of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// How many of its tokens are taken.
    pub in_use: usize,
    /// How many of its tokens were returned and are not offered to a build.
    pub spare: usize,
    /// How long its offer has been untaken; `None` if it has no offer.
    pub untaken_for: Option<Duration>,
    /// How long the daemon still skips it, because it did not take its last offer.
    pub ready_in: Duration,
    /// The number of its latest offer among those of all builds.
    pub latest: u64,
    /// The table refuses it a slot at present.
    pub barred: bool,
}

/// The source of the slot for an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotFrom {
    /// A token that this build returned. The same build may get it.
    Spare(Tag),
    /// An offer that this build did not take.
    Untaken(Tag),
    /// The table, if a slot is free.
    Free,
}

/// The next offer: the build that gets it, and the source of its slot. `None` if there is nothing
/// to offer. `is_free` checks whether the table would grant a slot to a build.
pub(crate) fn next(
    builds: &[(Tag, Standing)],
    is_free: impl Fn(Tag) -> bool,
) -> Option<(Tag, SlotFrom)> {
    let mut wanting: Vec<_> =
        builds.iter().filter(|(_, it)| it.untaken_for.is_none() && !it.barred).collect();
    wanting.sort_by_key(|(_, it)| (!it.ready_in.is_zero(), it.in_use, it.latest));
    let from = |to: &(Tag, Standing)| {
        if let Some((spare, _)) = std::iter::once(to).chain(builds).find(|(_, it)| it.spare > 0) {
            return Some(SlotFrom::Spare(*spare));
        }
        if is_free(to.0) {
            return Some(SlotFrom::Free);
        }
        let is_old = |it: &Standing| it.untaken_for.is_some_and(|age| age >= PATIENCE);
        let (untaken, _) = builds.iter().find(|(_, it)| is_old(it))?;
        to.1.ready_in.is_zero().then_some(SlotFrom::Untaken(*untaken))
    };
    wanting.into_iter().find_map(|to| Some((to.0, from(to)?)))
}

/// How long until an untaken offer can move to another build. `None` if that depends on other
/// events.
pub(crate) fn next_look(builds: &[(Tag, Standing)]) -> Option<Duration> {
    let oldest = builds.iter().filter_map(|(_, build)| build.untaken_for).max()?;
    let wanting = builds.iter().filter(|(_, build)| build.untaken_for.is_none());
    let first = wanting.map(|(_, build)| build.ready_in).min()?;
    Some(first.max(PATIENCE.saturating_sub(oldest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: fn(Tag) -> bool = |_| false;
    const FREE: fn(Tag) -> bool = |_| true;

    /// The next offer among builds that are named by their numbers.
    fn next(builds: &[Standing], is_free: fn(Tag) -> bool) -> Option<(Tag, SlotFrom)> {
        super::next(&numbered(builds), is_free)
    }

    fn next_look(builds: &[Standing]) -> Option<Duration> {
        super::next_look(&numbered(builds))
    }

    fn numbered(builds: &[Standing]) -> Vec<(Tag, Standing)> {
        (0..).map(Tag).zip(builds.iter().copied()).collect()
    }

    fn wants(in_use: usize) -> Standing {
        Standing { in_use, ..Standing::default() }
    }

    fn leaves_untaken(age: Duration) -> Standing {
        Standing { untaken_for: Some(age), ..Standing::default() }
    }

    #[test]
    fn a_free_slot_goes_to_the_build_with_the_fewest_tokens() {
        assert_eq!(next(&[wants(2), wants(1), wants(3)], FREE), Some((Tag(1), SlotFrom::Free)));
        assert_eq!(next(&[wants(2), wants(1)], FULL), None);
    }

    #[test]
    fn among_equals_it_goes_to_the_build_whose_latest_offer_is_the_oldest() {
        let late = Standing { latest: 9, ..wants(1) };
        let early = Standing { latest: 3, ..wants(1) };
        assert_eq!(next(&[late, early], FREE), Some((Tag(1), SlotFrom::Free)));
    }

    #[test]
    fn a_returned_token_goes_to_the_build_that_has_fewer() {
        let rich = Standing { spare: 1, ..wants(3) };
        assert_eq!(next(&[rich, wants(1)], FULL), Some((Tag(1), SlotFrom::Spare(Tag(0)))));
        assert_eq!(next(&[rich, wants(4)], FULL), Some((Tag(0), SlotFrom::Spare(Tag(0)))));
    }

    #[test]
    fn a_build_with_an_untaken_offer_gets_no_other() {
        assert_eq!(next(&[leaves_untaken(Duration::ZERO)], FREE), None);
    }

    #[test]
    fn an_untaken_offer_goes_to_another_build_after_a_while() {
        let soon = [wants(5), leaves_untaken(PATIENCE / 4)];
        assert_eq!(next(&soon, FULL), None);
        assert_eq!(next_look(&soon), Some(PATIENCE / 4 * 3));
        let now = [wants(5), leaves_untaken(PATIENCE)];
        assert_eq!(next(&now, FULL), Some((Tag(0), SlotFrom::Untaken(Tag(1)))));
        assert_eq!(next_look(&now), Some(Duration::ZERO));
    }

    #[test]
    fn a_build_that_is_passed_over_takes_no_offer_from_others_until_its_time() {
        let rests = Standing { ready_in: PATIENCE * 7, ..wants(0) };
        let builds = [rests, leaves_untaken(PATIENCE)];
        assert_eq!(next(&builds, FULL), None);
        assert_eq!(next_look(&builds), Some(PATIENCE * 7));
        assert_eq!(
            next(&builds, FREE),
            Some((Tag(0), SlotFrom::Free)),
            "what is free it gets at once"
        );
        assert_eq!(
            next(&[rests, wants(4)], FREE),
            Some((Tag(1), SlotFrom::Free)),
            "after the others"
        );
    }

    #[test]
    fn a_single_build_is_never_looked_at_by_time() {
        assert_eq!(next_look(&[wants(3)]), None);
        assert_eq!(next_look(&[leaves_untaken(PATIENCE)]), None);
    }
}
