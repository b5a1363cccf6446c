//! The eras of an etcd: recognizes a new one, and notes it in the log before any other call.
//!
//! Proofs of a new era are another id of the cluster, a smaller lead (see [`Observation`]), and a
//! revision below one that this daemon has seen before ([`Known`]). The last one reveals that
//! etcd's folder was replaced by an old copy, regardless of the lead.

use super::client::{Client, Known};
use super::error::{EtcdError, Result};
use super::hosts::meta_of;
use super::keys::{Keys, position};
use super::messages::{Header, Status, Txn, one, put, revision_is};
use super::shared::Shared;
use crate::engine::NO_HOST;
use crate::engine::encoding::json;
use crate::engine::engine_thread::random;
use crate::engine::era::Era;
use canal_core::UnixMillis;
use canal_sys::clock;

/// How many times a member may be behind what it has just reported.
const TRIES: usize = 10;

/// The report of an etcd: its cluster's id, and its *lead*, by which the index of raft's log
/// exceeds the revision of the store. An entry of raft makes each revision, so within one history
/// the lead never shrinks. A restored snapshot keeps its revision and begins a new raft log, so the
/// lead drops by about as many entries as the old log had, although the id often stays the same. A
/// restart or another leader changes neither, and loses nothing.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    cluster: u64,
    /// The bounds of the lead.
    lead_least: i64,
    lead_most: i64,
    /// The revision of the store.
    revision: i64,
    /// The era that the log names, and the revision of its key.
    noted: Option<(Era, i64)>,
}

impl Observation {
    /// The era that has begun, if the log does not name it. Its sign is the id, a lower bound of
    /// its leads, and a random number `unique` (the same snapshot can be restored twice).
    fn begun(&self, known: &Known, unique: u128) -> Option<Era> {
        let before = self.noted.as_ref().map(|(era, _)| era);
        let has_lost = self.revision < known.revision.get();
        let may_lack = match before {
            None => has_lost,
            Some(era) if !self.is_in(&era.sign) => true,
            // All hosts know about the loss if a later era reports it.
            Some(era) if has_lost && (known.era.borrow().as_ref() == before || !era.may_lack()) => {
                true
            }
            Some(_) => return None,
        };
        let sign = format!("{:x}/{}/{unique:x}", self.cluster, self.lead_least);
        Some(Era::after(before, &sign, may_lack))
    }

    /// Whether an etcd of that era may report this.
    fn is_in(&self, sign: &str) -> bool {
        let mut parts = sign.split('/');
        let (Some(cluster), Some(lead)) = (parts.next(), parts.next()) else { return false };
        u64::from_str_radix(cluster, 16) == Ok(self.cluster)
            && lead.parse().is_ok_and(|lead: i64| self.lead_most >= lead)
    }
}

/// Gets a report of the connected etcd, whose member has just returned this status.
///
/// The member reads its revision before its indexes, and its answer to a transaction comes after
/// both. So the first revision gives the greatest possible lead, and the second one the least.
pub(crate) async fn look_after(
    mut status: Status,
    client: &Client,
    keys: &Keys,
) -> Result<Observation> {
    for _ in 0..TRIES {
        let (cluster, first) = (status.header.cluster_id, status.header.revision);
        let (Header { revision, .. }, [meta, era]) =
            client.read([one(keys.meta()), one(keys.era())]).await?;
        meta_of(&meta)?;
        let noted: Option<(Era, i64)> = era.value()?;
        // A member that has not yet applied the era is still in an earlier one.
        if noted.as_ref().is_none_or(|(_, at)| *at <= first) {
            let index = |index: u64| i64::try_from(index).unwrap_or(i64::MAX);
            let applied = index(status.raft_applied_index);
            let lead_most = index(status.raft_index).max(applied).saturating_sub(first);
            let lead_least = applied.saturating_sub(revision);
            return Ok(Observation { cluster, lead_least, lead_most, revision, noted });
        }
        status = client.status().await?;
    }
    Err(EtcdError::away("this etcd member is behind the others"))
}

/// Notes the era, with a batch in the log, if the log does not name it.
pub(crate) async fn settle(shared: &Shared, mut seen: Observation) -> Result<()> {
    let (known, keys, unique) = (&shared.engine.known, shared.keys(), random()?);
    let look = async || look_after(shared.client.status().await?, &shared.client, keys).await;
    while seen.begun(known, unique).is_some() {
        // Look once more: a member that had been behind no longer is, and reports its lead more
        // exactly.
        seen = look().await?;
        let Some(era) = seen.begun(known, unique) else { break };
        let at = seen.noted.as_ref().map_or(0, |(_, at)| *at);
        let body = era.batch(UnixMillis(clock::unix_ms()));
        let txn = Txn {
            compare: vec![revision_is(keys.era(), at)],
            success: vec![
                put(keys.era(), json(&era)),
                put(keys.batch(NO_HOST, era.number), body),
                put(keys.head(), Vec::new()),
            ],
            ..Txn::default()
        };
        let done = shared.client.txn(txn).await?;
        if done.succeeded {
            shared.engine.reaches(position(done.header.revision).0);
            known.settle(done.header.revision, Some(era));
            return Ok(());
        }
        // Another host has noted it.
        seen = look().await?;
    }
    known.settle(seen.revision, seen.noted.map(|(era, _)| era));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era(number: u64, sign: &str) -> Era {
        Era { number, sign: sign.to_owned() }
    }

    fn seen(cluster: u64, lead: (i64, i64), noted: Option<Era>) -> Observation {
        let (lead_least, lead_most) = lead;
        Observation {
            cluster,
            lead_least,
            lead_most,
            revision: 100,
            noted: noted.map(|era| (era, 50)),
        }
    }

    fn known(revision: i64, era: Option<Era>) -> Known {
        let known = Known::default();
        known.settle(revision, era);
        known
    }

    #[test]
    fn the_first_era_lacks_nothing_unless_this_daemon_knows_more() {
        let first = seen(0xab, (7, 9), None);
        let begun = first.begun(&Known::default(), 0xc).unwrap();
        assert_eq!((begun.may_lack(), begun), (false, era(1, "ab/7/c")));
        assert!(!first.begun(&known(100, None), 0xc).unwrap().may_lack());
        let wiped = first.begun(&known(101, None), 0xc).unwrap();
        assert_eq!((wiped.may_lack(), wiped), (true, era(1, "ab/7/c/lacks")));
    }

    #[test]
    fn an_era_goes_on_while_the_lead_does_not_shrink() {
        let noted = era(3, "ab/7/c");
        for most in [7, 8, 1000] {
            assert_eq!(
                seen(0xab, (0, most), Some(noted.clone())).begun(&Known::default(), 0xc),
                None
            );
        }
        let shrunk = seen(0xab, (4, 6), Some(noted.clone())).begun(&Known::default(), 0xc).unwrap();
        assert_eq!((shrunk.may_lack(), shrunk), (true, era(4, "ab/4/c/lacks")));
        assert!(seen(0xac, (7, 9), Some(noted)).begun(&Known::default(), 0xc).unwrap().may_lack());
        // Below 0, as after a snapshot was restored.
        let restored = seen(0xab, (-90, -88), Some(era(4, "ab/-90/c/lacks")));
        assert_eq!(restored.begun(&Known::default(), 0xc), None);
    }

    #[test]
    fn a_revision_that_went_back_is_noted_once() {
        let before = era(3, "ab/7/c");
        let back = seen(0xab, (7, 9), Some(before.clone()));
        let knows = known(120, Some(before));
        let begun = back.begun(&knows, 0xc).unwrap();
        assert_eq!(begun, era(4, "ab/7/c/lacks"));
        let told = Observation { noted: Some((begun, 101)), ..back.clone() };
        assert_eq!(told.begun(&knows, 0xc), None);
        let untold = Observation { noted: Some((era(4, "ab/7/c"), 101)), ..back };
        assert!(untold.begun(&knows, 0xc).is_some());
    }

    #[test]
    fn an_unknown_sign_is_another_era() {
        for sign in ["", "ab", "xy/7", "ab/", "ab/seven"] {
            assert!(!seen(0xab, (7, 9), None).is_in(sign), "{sign}");
        }
        assert!(seen(0xab, (7, 9), None).is_in("ab/9/c/lacks"));
    }
}
