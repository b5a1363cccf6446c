//! Draws plots on a terminal, with blocks or plain ASCII characters, and computes the use of a key
//! over time, in as many columns as there is room for.

use std::iter;

use itertools::Itertools as _;
use jiff::Timestamp;

use super::records::length;
use crate::cli::output::sanitize::{padded, width};
use crate::cli::{Now, cut, plural, sanitize};
use crate::protocol::{HistoryBin, HistoryKeyUse, HistorySlots, HistoryStats};

/// The height of a plot over time, in lines.
const LINES: usize = 8;

/// The largest width of a time bucket, used if there are few buckets.
const BUCKET_COLUMNS_MAX: usize = 4;

/// The longest bar of a histogram.
const BAR_COLUMNS_MAX: usize = 40;

/// The longest name in front of a small plot.
const NAME_COLUMNS_MAX: usize = 24;

/// The characters that form a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glyphs {
    /// Unicode's blocks, which have eight heights and lengths.
    Blocks,
    Ascii,
}

impl Glyphs {
    /// The characters that the locale supports, according to the first of these variables that is
    /// set.
    pub(super) fn of_locale(lc_all: &str, lc_ctype: &str, lang: &str) -> Self {
        let locale = [lc_all, lc_ctype, lang].into_iter().find(|value| !value.is_empty());
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Self::Blocks } else { Self::Ascii }
    }

    /// A character that is filled from the bottom by this many eighths.
    fn upward(self, eighths: usize) -> char {
        match (self, eighths) {
            (_, 0) => ' ',
            (Self::Blocks, _) => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][eighths.min(8) - 1],
            (Self::Ascii, 1..4) => '.',
            (Self::Ascii, 4..8) => ':',
            (Self::Ascii, _) => '#',
        }
    }

    /// A bar from the left. Its length is in eighths of a character.
    fn bar(self, eighths: usize) -> String {
        match self {
            Self::Blocks => {
                "█".repeat(eighths / 8) + ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]
            }
            Self::Ascii => "#".repeat(eighths.div_ceil(8)),
        }
    }
}

/// The length of a bar for `part`, in eighths of a character, if `whole` is `characters` long. A
/// part above zero gets at least one eighth.
fn eighths(part: f64, whole: f64, characters: usize) -> usize {
    if part <= 0.0 || whole <= 0.0 {
        return 0;
    }
    let most = characters * 8;
    ((part / whole * most as f64).round() as usize).clamp(1, most)
}

/// One line for each bin: its bounds, its count, and a bar.
pub(super) fn histogram(bins: &[HistoryBin], columns: usize, glyphs: Glyphs) -> Vec<String> {
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0);
    let up_to = if glyphs == Glyphs::Blocks { "≤" } else { "<=" };
    let bounds = bounds(bins, up_to);
    let wide = bounds.iter().map(|text| width(text)).max().unwrap_or(0);
    let digits = most.to_string().len();
    let room = columns.saturating_sub(wide + digits + 6).clamp(1, BAR_COLUMNS_MAX);
    let lines = bounds.into_iter().zip(bins).map(|(bounds, HistoryBin { count, .. })| {
        let bar = glyphs.bar(eighths(*count as f64, most as f64, room));
        format!("  {bounds:>wide$}  {count:>digits$}  {bar}")
    });
    lines.collect()
}

/// The bounds of each bin: `≤ 0.3s`, and `> 1d` for the last one.
pub(super) fn bounds(bins: &[HistoryBin], up_to: &str) -> Vec<String> {
    let before = iter::once(None).chain(bins.iter().map(|bin| bin.up_to_ms));
    let bounds = bins.iter().zip(before).map(|(bin, before)| match bin.up_to_ms {
        Some(ms) => format!("{up_to} {}", bound(ms)),
        None => format!("> {}", before.map_or_else(|| "1d".to_owned(), bound)),
    });
    bounds.collect()
}

/// `10ms`, `0.3s`, `30s`, `3m`, `8h`.
fn bound(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m")];
    match units.iter().find(|(unit, _)| ms.is_multiple_of(*unit)) {
        _ if ms < 100 => format!("{ms}ms"),
        _ if ms < 1_000 => length(ms),
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{}s", ms / 1000),
    }
}

/// A plot of the use of a key over time, with axes.
pub(super) fn plot(key: &HistoryKeyUse, columns: usize, glyphs: Glyphs, now: &Now) -> Vec<String> {
    const LABEL: usize = 7;
    let room = columns.saturating_sub(LABEL + 3).max(1);
    let Some(series) = Series::of(key, room) else { return Vec::new() };
    let each = (room / series.columns.len().max(1)).clamp(1, BUCKET_COLUMNS_MAX);
    let heights = series.columns.iter().map(|used| eighths(*used, series.top, LINES)).collect_vec();
    // To the left of the plot, below it, and where the two axes meet.
    let [left, below, corner] = match glyphs {
        Glyphs::Blocks => ['│', '─', '└'],
        Glyphs::Ascii => ['|', '-', '+'],
    };
    let mut lines = vec![said(&series)];
    for line in 0..LINES {
        let under = (LINES - 1 - line) * 8;
        let label = match line {
            0 => level(series.top, series.one_size()),
            4 => level(series.top / 2.0, series.one_size()),
            _ => String::new(),
        };
        let cells = heights.iter().map(|height| glyphs.upward(height.saturating_sub(under).min(8)));
        let cells: String = cells.flat_map(|cell| iter::repeat_n(cell, each)).collect();
        lines.push(format!("  {label:>LABEL$}{left}{}", cells.trim_end()));
    }
    let wide = series.columns.len() * each;
    let line = below.to_string().repeat(wide);
    lines.push(format!("  {:>LABEL$}{corner}{line}", "0"));
    let (from, until) = (now.clock(&key.from), now.clock(&key.until));
    let gap = wide.saturating_sub(width(&from) + width(&until)).max(2);
    lines.push(format!("  {:>LABEL$} {from}{}{until}", "", " ".repeat(gap)));
    lines
}

/// `in use: 43% of 3 slots on average; each column 2h`.
pub(super) fn said(series: &Series) -> String {
    format!("in use: {} on average; each column {}", share(series), bound(series.column_ms))
}

/// `43% of 3 slots`; `43% of 2 to 8 slots` if the size changed; `1.3 at once` if the size is
/// unknown.
pub(super) fn share(series: &Series) -> String {
    let (Some(share), Some((least, most))) = (series.share, series.sizes) else {
        return format!("{:.1} at once", series.mean);
    };
    let least = if least < most { format!("{least} to ") } else { String::new() };
    format!("{}% of {least}{}", (share * 100.0).round(), plural(most, "slot", "slots"))
}

/// The label for a height of a plot.
pub(super) fn level(slots: f64, size: Option<u64>) -> String {
    match size {
        Some(size) if size > 0 => format!("{}%", (slots / size as f64 * 100.0).round()),
        _ => format!("{slots:.1}"),
    }
}

/// One line for each key: its name, its use, and a plot of one line.
pub(super) fn keys(keys: &[HistoryKeyUse], columns: usize, glyphs: Glyphs) -> Vec<String> {
    let names = keys.iter().map(|key| cut(&sanitize(&key.key), NAME_COLUMNS_MAX)).collect_vec();
    let wide = names.iter().map(|name| width(name)).max().unwrap_or(0);
    // The plot gets the room that the share leaves, which is nearly the same for all keys.
    let room = columns.saturating_sub(wide + 26).max(1);
    let line = |(key, name): (_, &String)| {
        let series = Series::of(key, room)?;
        let plot = series.columns.iter().map(|used| glyphs.upward(eighths(*used, series.top, 1)));
        let (plot, share) = (plot.collect::<String>(), share(&series));
        Some(format!("  {}  {share:<20}  {}", padded(name, wide), plot.trim_end()))
    };
    keys.iter().zip(&names).filter_map(line).collect()
}

/// The title of the table, or plot, of the waits with other numbers of slots.
pub(super) fn slots_said(of: &HistorySlots) -> String {
    let which = match (of.requests, of.more) {
        (1, false) => "the request".to_owned(),
        (all, false) => format!("all {all} requests"),
        (some, true) => format!("the last {some} requests"),
    };
    format!("simulated waits by number of slots, for {which} at the same times")
}

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
        // How much of a bucket, or of a column, is within the time of the report.
        let length = |at: u64, width: u64| {
            let begins = begin.saturating_add(at.saturating_mul(width));
            begins.saturating_add(width).min(until).saturating_sub(begins.max(from))
        };
        let averages = |amounts: &[u64]| -> Vec<f64> {
            let average = |(at, amounts): (u64, &[u64])| {
                let sum = amounts.iter().map(|amount| *amount as f64).sum::<f64>();
                sum / length(at, column_ms).max(1) as f64
            };
            (0..).zip(amounts.chunks(joined)).map(average).collect()
        };
        let mut columns = averages(&key.used);
        let queue = averages(&key.waited);
        let highest = columns.iter().copied().fold(1.0, f64::max);
        let each = sizes(key);
        let sizes = each.iter().copied().minmax().into_option();
        let top = match sizes {
            // Ends and grants at the same time overlap a little.
            Some((_, most)) if highest <= most as f64 * OVERLAP_MAX => most as f64,
            _ => highest.ceil(),
        };
        columns.iter_mut().for_each(|used| *used = used.min(top));
        let largest = |sizes: &[u64]| sizes.iter().max().map_or(0.0, |size| *size as f64);
        let slots_ms = (0..).zip(&each).map(|(at, size)| *size as f64 * length(at, width) as f64);
        let slots_ms = slots_ms.sum::<f64>();
        let share = (slots_ms > 0.0).then(|| key.used_ms as f64 / slots_ms);
        let mean = key.used_ms as f64 / (until - from) as f64;
        let capacity = each.chunks(joined).map(largest).collect();
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
    match key.size {
        _ if key.sizes.len() == key.used.len() && !key.sizes.contains(&0) => key.sizes.clone(),
        Some(size @ 1..) => vec![size; key.used.len()],
        _ => Vec::new(),
    }
}

fn millis(time: &str) -> Option<u64> {
    u64::try_from(time.parse::<Timestamp>().ok()?.as_millisecond()).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;

    fn bins() -> Vec<HistoryBin> {
        let bin = |up_to_ms, count| HistoryBin { up_to_ms, count };
        vec![bin(Some(300), 1), bin(Some(1_000), 0), bin(Some(86_400_000), 40), bin(None, 13)]
    }

    #[test]
    fn a_bar_is_as_long_as_its_bin_is_large() {
        assert_eq!(
            histogram(&bins(), 30, Glyphs::Blocks),
            [
                "  ≤ 0.3s   1  ▍",
                "    ≤ 1s   0  ",
                "    ≤ 1d  40  ████████████████",
                "    > 1d  13  █████▎",
            ]
        );
        assert_eq!(
            histogram(&bins(), 30, Glyphs::Ascii),
            [
                "  <= 0.3s   1  #",
                "    <= 1s   0  ",
                "    <= 1d  40  ###############",
                "     > 1d  13  #####",
            ]
        );
        for columns in 0..100 {
            let lines = histogram(&bins(), columns, Glyphs::Blocks);
            assert!(lines.iter().all(|line| width(line) <= columns.max(16)), "{lines:?}");
        }
    }

    #[test]
    fn bounds_are_short() {
        let shown = [10, 300, 1_000, 30_000, 180_000, 28_800_000, 86_400_000].map(bound);
        assert_eq!(shown, ["10ms", "0.3s", "1s", "30s", "3m", "8h", "1d"]);
    }

    #[test]
    fn a_plot_over_time_has_a_column_for_each_bucket() {
        let now = at("2026-11-20T14:10:30Z");
        let lines = plot(&key_use(), 40, Glyphs::Blocks, &now);
        assert_eq!(
            lines,
            [
                "in use: 45% of 2 slots on average; each column 1m",
                "     100%│████            ██",
                "         │████            ██",
                "         │████            ██",
                "         │████            ██",
                "      50%│██████    ██    ██  ██",
                "         │██████    ██    ██  ██",
                "         │██████    ████████████",
                "         │██████    ████████████",
                "        0└──────────────────────",
                "          14:00:30      14:10:30",
            ]
        );
        let ascii = plot(&key_use(), 40, Glyphs::Ascii, &now);
        assert!(ascii.iter().all(|line| line.is_ascii()), "{ascii:?}");
        for columns in 30..100 {
            let lines = plot(&key_use(), columns, Glyphs::Blocks, &now);
            assert!(lines[1..].iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
        }
    }

    #[test]
    fn each_key_has_a_line() {
        let unknown = HistoryKeyUse { key: "db\x1b".to_owned(), size: None, ..key_use() };
        assert_eq!(
            keys(&[key_use(), unknown], 60, Glyphs::Blocks),
            [
                "  deploy  45% of 2 slots        ██▄  ▄▂▂█▂▄",
                "  db?     0.9 at once           ██▄  ▄▂▂█▂▄",
            ]
        );
    }

    #[test]
    fn a_locale_without_utf_8_gets_ascii() {
        assert_eq!(Glyphs::of_locale("", "", "de_DE.UTF-8"), Glyphs::Blocks);
        assert_eq!(Glyphs::of_locale("", "C.utf8", "C"), Glyphs::Blocks);
        assert_eq!(Glyphs::of_locale("C", "", "de_DE.UTF-8"), Glyphs::Ascii);
        assert_eq!(Glyphs::of_locale("", "", ""), Glyphs::Ascii);
    }

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
