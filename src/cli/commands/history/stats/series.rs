//! Computes the use of a key over time, in as many columns as there is room for.

use jiff::Timestamp;

use crate::protocol::{HistoryKeyUse, HistoryStats};

/// The factor by which inexact times may make the use of a key exceed its size.
const OVERLAP_MAX: f64 = 1.05;

/// The use of a key over time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// How many slots were in use on average, one number for each column.
    pub(super) columns: Vec<f64>,
    /// The length of a column in milliseconds.
    pub(super) column_ms: u64,
    /// How many slots were in use on average over the whole time.
    pub(super) mean: f64,
    /// The smallest and the largest size of the key during that time. `None` if the size is
    /// unknown.
    pub(super) sizes: Option<(u64, u64)>,
    /// The average share of slots in use, relative to the size at each time.
    pub(super) share: Option<f64>,
    /// How many slots the full height of a plot represents.
    pub(super) top: f64,
    /// How many slots there were, one number for each column; empty if that is unknown.
    pub(super) capacity: Vec<f64>,
    /// How many requests waited on average, one number for each column.
    pub(super) queue: Vec<f64>,
}

impl Series {
    /// The use of a key in at most `columns_max` columns; `None` if there was no use, or no time
    /// passed.
    pub(super) fn of(key: &HistoryKeyUse, columns_max: usize) -> Option<Self> {
        let (from, until) = (millis(&key.from)?, millis(&key.until)?);
        let width = key.bucket_ms;
        if width == 0 || key.used.is_empty() || until <= from || columns_max == 0 {
            return None;
        }
        let joined = key.used.len().div_ceil(columns_max);
        let column_ms = width.saturating_mul(joined as u64);
        let begin = from / width * width;
        let averages = |amounts: &[u64]| -> Vec<f64> {
            let each = (0_u64..).zip(amounts.chunks(joined));
            each.map(|(at, amounts)| {
                let begins = begin.saturating_add(at.saturating_mul(column_ms));
                let ends = begins.saturating_add(column_ms).min(until);
                let length = ends.saturating_sub(begins.max(from)).max(1);
                amounts.iter().map(|amount| *amount as f64).sum::<f64>() / length as f64
            })
            .collect()
        };
        let mut columns = averages(&key.used);
        let queue = averages(&key.waited);
        let highest = columns.iter().copied().fold(1.0, f64::max);
        let each = sizes(key);
        let sizes = each.iter().min().copied().zip(each.iter().max().copied());
        let top = match sizes {
            // Ends and grants at the same time overlap a little.
            Some((_, most)) if highest <= most as f64 * OVERLAP_MAX => most as f64,
            _ => highest.ceil(),
        };
        columns.iter_mut().for_each(|used| *used = used.min(top));
        let largest = |sizes: &[u64]| sizes.iter().max().map_or(0.0, |size| *size as f64);
        let in_columns = each.chunks(joined).map(largest).collect();
        let capacity = (0_u64..).zip(&each).map(|(at, size)| {
            let begins = begin.saturating_add(at.saturating_mul(width));
            let ends = begins.saturating_add(width).min(until);
            *size as f64 * ends.saturating_sub(begins.max(from)) as f64
        });
        let capacity = capacity.sum::<f64>();
        let share = (capacity > 0.0).then(|| key.used_ms as f64 / capacity);
        let mean = key.used_ms as f64 / (until - from) as f64;
        let capacity = in_columns;
        Some(Self { columns, column_ms, mean, sizes, share, top, capacity, queue })
    }

    /// The size of the key, if it never changed.
    pub(super) fn one_size(&self) -> Option<u64> {
        self.sizes.filter(|(least, most)| least == most).map(|(size, _)| size)
    }
}

/// The key that a report shows in full: the only one, or the requested one if that was in use
/// itself.
pub(super) fn single_key(found: &HistoryStats) -> Option<&HistoryKeyUse> {
    let asked_for = found.slots.as_ref().map(|slots| &slots.key);
    found.keys.iter().find(|key| found.keys.len() == 1 || asked_for == Some(&key.key))
}

/// The size of the key in each bucket; empty if the size is unknown.
fn sizes(key: &HistoryKeyUse) -> Vec<u64> {
    if key.sizes.len() == key.used.len() && key.sizes.iter().all(|size| *size > 0) {
        return key.sizes.clone();
    }
    let one = key.size.filter(|size| *size > 0);
    one.map(|size| vec![size; key.used.len()]).unwrap_or_default()
}

fn millis(time: &str) -> Option<u64> {
    let time: Timestamp = time.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Ten minutes in buckets of a minute. The first and the last bucket are half as long.
    pub(crate) fn key_use() -> HistoryKeyUse {
        let minute = 60_000;
        HistoryKeyUse {
            key: "deploy".to_owned(),
            granted: 12,
            size: Some(2),
            used_ms: 9 * minute,
            from: "2026-11-20T14:00:30Z".to_owned(),
            until: "2026-11-20T14:10:30Z".to_owned(),
            bucket_ms: minute,
            sizes: Vec::new(),
            waited: [0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0].map(|waits| waits * minute).to_vec(),
            used: vec![
                minute,
                2 * minute,
                minute,
                0,
                0,
                minute,
                minute / 2,
                minute / 2,
                2 * minute,
                minute / 2,
                minute / 2,
            ],
        }
    }

    #[test]
    fn a_column_is_what_was_in_use_on_average() {
        let series = Series::of(&key_use(), 80).unwrap();
        assert_eq!(series.columns, [2.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 2.0, 0.5, 1.0]);
        assert_eq!(series.queue[..3], [0.0, 3.0, 1.0]);
        assert_eq!(series.capacity, [2.0; 11]);
        assert_eq!((series.column_ms, series.mean, series.top), (60_000, 0.9, 2.0));
    }

    #[test]
    fn buckets_are_joined_where_there_is_little_room() {
        let series = Series::of(&key_use(), 6).unwrap();
        assert_eq!(series.columns, [2.0, 0.5, 0.5, 0.5, 1.25, 1.0]);
        assert_eq!(series.column_ms, 120_000);
    }

    #[test]
    fn more_than_the_size_makes_a_higher_plot() {
        let more = HistoryKeyUse { size: Some(1), ..key_use() };
        assert_eq!(Series::of(&more, 80).unwrap().top, 2.0);
        let unknown = HistoryKeyUse { size: None, ..key_use() };
        assert_eq!(Series::of(&unknown, 80).unwrap().top, 2.0);
        let inexact = HistoryKeyUse { used: vec![60_700, 121_000], ..key_use() };
        let inexact = Series::of(&inexact, 80).unwrap();
        assert_eq!((inexact.top, inexact.columns), (2.0, vec![2.0, 2.0]));
        let large = HistoryKeyUse { size: Some(9), ..key_use() };
        assert_eq!(Series::of(&large, 80).unwrap().top, 9.0);
    }

    #[test]
    fn the_share_is_of_the_slots_that_there_were_at_the_time() {
        let minute = 60_000;
        // Two slots in the first half, all in use, and eight in the second half, one in use.
        let grown = HistoryKeyUse {
            size: Some(8),
            used_ms: 15 * minute,
            from: "2026-11-20T14:00:00Z".to_owned(),
            until: "2026-11-20T14:10:00Z".to_owned(),
            used: [[2 * minute; 5], [minute; 5]].concat(),
            sizes: [[2; 5], [8; 5]].concat(),
            ..key_use()
        };
        let series = Series::of(&grown, 80).unwrap();
        assert_eq!((series.sizes, series.one_size()), (Some((2, 8)), None));
        assert_eq!((series.share, series.top), (Some(15.0 / 50.0), 8.0));
        let one = Series::of(&key_use(), 80).unwrap();
        assert_eq!((one.one_size(), one.share), (Some(2), Some(0.45)));
        let unknown = Series::of(&HistoryKeyUse { size: None, ..key_use() }, 80).unwrap();
        assert_eq!((unknown.sizes, unknown.share), (None, None));
    }

    #[test]
    fn what_a_daemon_should_not_say_is_no_series() {
        assert_eq!(Series::of(&HistoryKeyUse::default(), 80), None);
        assert_eq!(Series::of(&HistoryKeyUse { bucket_ms: 0, ..key_use() }, 80), None);
        assert_eq!(Series::of(&HistoryKeyUse { until: "?".to_owned(), ..key_use() }, 80), None);
        let past = HistoryKeyUse { until: "2026-11-20T14:00:30Z".to_owned(), ..key_use() };
        assert_eq!(Series::of(&past, 80), None);
    }
}
