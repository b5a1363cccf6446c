//! Eras of the server, and how a new one is recognised.
//!
//! A server is known by its *place* (the identifier of its system, its timeline and the oid of the
//! `head` table) and by the time of its start. Another place or start means another era. The sign
//! of an era is the place, the start, and [`LACKS`] if something may be missing.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::error::Result;
use super::rows::number;
use crate::engine::era::{Era, LACKS};
use canal_core::HostId;
use canal_sys::clock::boottime_ms;

/// The identifier of the system, where canal may ask for it.
pub(crate) const SYSTEM: &str = "(SELECT system_identifier::text FROM pg_control_system())";

/// The columns that [`Observation::of`] reads.
pub(crate) const SHOWN: &str = "era, era_sign, position, tableoid, {system}, \
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), \
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
    (pg_current_wal_flush_lsn() - '0/0')::bigint";

/// The state that the server showed when a session began. A promoted standby has another timeline,
/// and a loaded dump or another copy of the table has another oid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observation {
    /// The era that the log names.
    pub(super) noted: Option<Era>,
    place: String,
    started: i64,
    /// The oid of `head`.
    pub table: u32,
    /// How far the log has advanced. Like `lsn`, it never goes back unless history is lost.
    pub(super) position: u64,
    /// The position up to which the server's own log is on its disk.
    lsn: u64,
}

/// The knowledge of this host from its session and all earlier ones.
///
/// A server started from a base backup or a copy of the disk shows only another start, like a
/// server that merely restarted. So only a host that has just seen the server accepts it as a
/// restart: it knows how far the log and the server had advanced, and a copy has not advanced that
/// far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The nonces of the incarnations that were registered here. After a fail-over that lost them,
    /// the server could assign the same numbers to others.
    pub nonces: BTreeMap<HostId, u128>,
    /// The server in the era that was settled last, as far as it has advanced since.
    seen: Option<Observation>,
    /// When the server last answered, in milliseconds of CLOCK_BOOTTIME.
    at: u64,
    /// The TTL of this host; 0 before it has one.
    pub ttl_ms: u64,
}

impl Known {
    /// Records a server whose era the log names.
    pub(super) fn sees(&mut self, seen: &Observation) {
        self.seen = Some(seen.clone());
        self.at = boottime_ms();
    }

    /// Records that the log reaches up to this position.
    pub(super) fn reaches(&mut self, position: u64) {
        if let Some(seen) = &mut self.seen {
            seen.position = seen.position.max(position);
        }
    }

    /// Records that the server has flushed its log up to here.
    pub(super) fn flushed(&mut self, lsn: u64) {
        if let Some(seen) = &mut self.seen {
            seen.lsn = seen.lsn.max(lsn);
        }
        self.at = boottime_ms();
    }

    /// The condition that a row of `hosts` belongs to the incarnation of this daemon.
    pub(super) fn is_own(&self, host: HostId) -> String {
        match self.nonces.get(&host) {
            Some(nonce) => format!("AND nonce = '\\x{nonce:032x}'"),
            None => String::new(),
        }
    }

    /// Whether the server still has everything that it was known to have.
    fn confirms(&self, seen: &Observation) -> bool {
        self.seen.as_ref().is_some_and(|last| last.place == seen.place && !seen.is_behind(last))
    }

    /// Whether the server has since lost something that no era reports.
    fn denies(&self, seen: &Observation) -> bool {
        let Some(last) = &self.seen else { return false };
        let is_told = seen.noted != last.noted && seen.noted.as_ref().is_some_and(Era::may_lack);
        last.place == seen.place && seen.is_behind(last) && !is_told
    }
}

impl Observation {
    /// Reads the columns of [`SHOWN`], which begin at `column`.
    pub(crate) fn of(row: &Row, column: usize) -> Result<Self> {
        let noted = noted(number(row, column)?, row.try_get(column + 1)?);
        let position = number(row, column + 2)?;
        let table: u32 = row.try_get(column + 3)?;
        let (system, timeline): (&str, &str) = (row.try_get(column + 4)?, row.try_get(column + 5)?);
        let (started, lsn) = (row.try_get(column + 6)?, number(row, column + 7)?);
        let place = format!("{system}/{timeline}/{table}");
        Ok(Self { noted, place, started, table, position, lsn })
    }

    /// Whether the log or the server has advanced less than in an earlier observation. Each era
    /// that was noted since then is a batch, which can have taken the position of one that is lost.
    fn is_behind(&self, last: &Self) -> bool {
        let number = |of: &Self| of.noted.as_ref().map_or(0, |era| era.number);
        let eras = number(self).saturating_sub(number(last));
        self.position.saturating_sub(eras) < last.position || self.lsn < last.lsn
    }

    /// The new era, if the log does not name it yet. `now` is in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn begun(&self, known: &Known, now: u64) -> Option<Era> {
        let sign = format!("{}/{}", self.place, self.started);
        let may_lack = match &self.noted {
            None => known.seen.is_some() && !known.confirms(self),
            Some(noted) => {
                let noted = noted.sign.strip_suffix(LACKS).unwrap_or(&noted.sign);
                if noted == sign && !known.denies(self) {
                    return None;
                }
                // Without an identifier, it may be any server.
                let same_place = !self.place.starts_with('/')
                    && noted.rsplit_once('/').is_some_and(|(place, _)| place == self.place);
                // A copy may have been made since then, which becomes more likely with time.
                let is_fresh = now.saturating_sub(known.at) <= known.ttl_ms;
                !(same_place && is_fresh && known.confirms(self))
            }
        };
        Some(Era::after(self.noted.as_ref(), &sign, may_lack))
    }
}

pub(super) fn noted(number: u64, sign: &str) -> Option<Era> {
    (number > 0).then(|| Era { number, sign: sign.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(noted: Option<(u64, &str)>, started: i64, progress: (u64, u64)) -> Observation {
        let noted = noted.map(|(number, sign)| Era { number, sign: sign.to_owned() });
        let (position, lsn) = progress;
        Observation { noted, place: "1/2/3".to_owned(), started, table: 3, position, lsn }
    }

    fn nothing() -> Known {
        Known::default()
    }

    fn known(seen: &Observation) -> Known {
        Known { seen: Some(seen.clone()), at: 1000, ttl_ms: 500, ..nothing() }
    }

    #[test]
    fn the_era_that_is_noted_goes_on_unless_something_was_lost() {
        let same = seen(Some((4, "1/2/3/7")), 7, (10, 100));
        assert_eq!(same.begun(&nothing(), 0), None);
        assert_eq!(same.begun(&known(&same), 9000), None);
        for lost in [(9, 100), (10, 99)] {
            let lost = Observation { position: lost.0, lsn: lost.1, ..same.clone() };
            let begun = lost.begun(&known(&same), 1000).unwrap();
            assert_eq!((begun.number, begun.may_lack()), (5, true));
            assert_eq!(begun.sign, "1/2/3/7/lacks");
            // Once one host has noted it, the others need not.
            let told = Observation { noted: Some(begun), ..lost.clone() };
            assert_eq!(told.begun(&known(&same), 1000), None);
            assert_eq!(told.begun(&nothing(), 1000), None);
            // Unless the host that noted the era did not know of the loss.
            let other = Era { number: 5, sign: "1/2/3/7".to_owned() };
            let untold = Observation { noted: Some(other), ..lost };
            assert!(untold.begun(&known(&same), 1000).unwrap().may_lack());
        }
    }

    /// Another host, which had seen less, took a restored backup for a restart.
    #[test]
    fn the_batch_of_an_era_does_not_stand_for_one_that_is_lost() {
        let before = known(&seen(Some((1, "1/2/3/7")), 7, (10, 100)));
        let restarted = |position| seen(Some((2, "1/2/3/8")), 8, (position, 120));
        assert_eq!(restarted(11).begun(&before, 1000), None, "nothing is lost");
        let begun = restarted(10).begun(&before, 1000).unwrap();
        assert_eq!((begun.number, begun.may_lack()), (3, true));
        let again = Observation { started: 9, ..restarted(10) };
        assert!(again.begun(&before, 1000).unwrap().may_lack());
    }

    #[test]
    fn the_first_era_lacks_nothing_unless_a_host_knows_more() {
        let first = seen(None, 7, (0, 100));
        let begun = first.begun(&nothing(), 0).unwrap();
        assert!(!begun.may_lack());
        assert_eq!(begun, Era { number: 1, sign: "1/2/3/7".to_owned() });
        assert!(!first.begun(&known(&first), 9000).unwrap().may_lack());
        let other = Observation { place: "1/2/4".to_owned(), ..first.clone() };
        assert!(first.begun(&known(&other), 1000).unwrap().may_lack());
    }

    #[test]
    fn a_restart_is_one_for_a_host_that_just_saw_the_server() {
        let seen_before = seen(Some((1, "1/2/3/7")), 7, (10, 100));
        let before = known(&seen_before);
        let again = seen(Some((1, "1/2/3/7")), 8, (10, 120));
        let lacks =
            |seen: &Observation, known: &Known, now| seen.begun(known, now).unwrap().may_lack();
        assert!(!lacks(&again, &before, 1500));
        assert!(lacks(&again, &before, 1501), "too long ago");
        assert!(lacks(&again, &nothing(), 1000), "a daemon that is started saw nothing");
        let copy = Observation { position: 9, lsn: 120, ..again.clone() };
        assert!(lacks(&copy, &before, 1000));
        // Another host may not know that something is missing.
        let promoted = Observation { place: "1/5/3".to_owned(), ..again.clone() };
        assert!(lacks(&promoted, &before, 1000));
        let there = Observation { place: "1/5/3".to_owned(), ..seen_before };
        assert!(lacks(&promoted, &known(&there), 1000));
        let unnamed =
            Observation { place: "/2/3".to_owned(), ..seen(Some((1, "/2/3/7")), 8, (10, 120)) };
        assert!(lacks(&unnamed, &Known { at: 0, ..known(&unnamed) }, 0));
    }
}
