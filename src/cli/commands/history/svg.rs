//! Draws the report as a self-contained SVG file.
//!
//! Invariant: every text from outside goes through [`escaped`].

use super::chart::{Series, bounds, level, said, share, single_key, slots_said};
use super::records::length;
use crate::cli::{Now, cut, sanitize};
use crate::protocol::{HistoryBin, HistoryKeyUse, HistorySlots, HistoryStats};

const WIDTH: u32 = 860;
const MARGIN: u32 = 40;

/// The width of a plot that spans the whole picture.
const PLOT_WIDTH: u32 = WIDTH - 2 * MARGIN - 50;
const PLOT_HEIGHT: u32 = 150;

/// The height of the plot of the queue.
const QUEUE_HEIGHT: u32 = 60;

/// The space between one part and the title of the next.
const GAP: u32 = 44;

/// The height of a line of a histogram or a table.
const LINE: u32 = 22;

/// The most columns of a plot over time.
const COLUMNS_MAX: usize = 128;

/// The most keys that get a plot.
const KEYS_SHOWN: usize = 10;

/// The most characters of a text; the rest is cut.
const TEXT_MAX: usize = 90;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}\
    .title{font-size:19px;font-weight:600}.part{font-size:15px;font-weight:600}\
    .faint{fill:#59636e}.end{text-anchor:end}.middle{text-anchor:middle}\
    .axis{stroke:#8c959f;stroke-width:1}.grid{stroke:#d1d9e0;stroke-width:1}\
    .size{stroke:#1f2328;stroke-width:1.5;fill:none}.wait{fill:#bc4c00}.hold{fill:#0969da}.use{fill:#1a7f37}.now{font-weight:600}";

/// The report about one key or all keys. `about` names the subject, and `counts` describes how many
/// requests there are.
pub(super) fn report(found: &HistoryStats, about: &str, counts: &str, now: &Now) -> String {
    let mut picture = Picture { body: String::new(), y: 44 };
    picture.text(MARGIN, "title", &format!("canal stats: {about}"));
    picture.y += 22;
    picture.text(MARGIN, "faint", &format!("{counts}; made {}", now.stamp()));
    if let Some(key) = single_key(found) {
        picture.use_over_time(key, now);
    }
    if found.keys.len() > 1 {
        picture.keys(&found.keys);
    }
    picture.histograms(found);
    if let Some(slots) = &found.slots {
        picture.slots(slots);
    }
    let (body, height) = (picture.body, picture.y + 30);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// A text in XML form, shortened, and without characters that control a terminal.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#39;".to_owned(),
        // XML does not allow these characters.
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => "?".to_owned(),
        c => c.to_string(),
    };
    cut(&sanitize(text), TEXT_MAX).chars().map(escape).collect()
}

/// A point, or a width and a height.
type Pair = (u32, u32);

/// A picture that grows downward.
struct Picture {
    body: String,
    /// The base line of the next text.
    y: u32,
}

impl Picture {
    /// Adds a text at `x` on the current base line.
    fn text(&mut self, x: u32, class: &str, text: &str) {
        self.text_at(x, self.y, class, text);
    }

    fn text_at(&mut self, x: u32, y: u32, class: &str, text: &str) {
        let text = escaped(text);
        self.body += &format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n");
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        self.body += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"{class}\"/>\n"
        );
    }

    fn line(&mut self, (x1, y1): Pair, (x2, y2): Pair, class: &str) {
        self.body +=
            &format!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>\n");
    }

    /// Begins a part of the report.
    fn part(&mut self, title: &str) {
        self.y += GAP;
        self.text(MARGIN, "part", title);
    }

    /// Draws columns that are at most this high, from a corner of a rectangle.
    fn columns(&mut self, all: &[f64], max: f64, (x, y): Pair, (width, height): Pair, class: &str) {
        let each = f64::from(width) / all.len() as f64;
        for (at, amount) in all.iter().enumerate() {
            let high = amount / max * f64::from(height);
            if high > 0.0 {
                let left = f64::from(x) + at as f64 * each;
                // Columns touch, so that all look equally wide.
                let top = f64::from(y + height) - high;
                self.rect(left, top, each + 0.3, high, class);
            }
        }
    }

    /// Draws the number of slots as a line with steps.
    fn capacity(&mut self, series: &Series, (x, y): Pair, (width, height): Pair) {
        let each = f64::from(width) / series.capacity.len() as f64;
        let mut points = String::new();
        for (at, size) in series.capacity.iter().enumerate() {
            let level = f64::from(y + height) - size / series.top * f64::from(height);
            let left = f64::from(x) + at as f64 * each;
            points += &format!("{left:.1},{level:.1} {:.1},{level:.1} ", left + each);
        }
        if !points.is_empty() {
            self.body += &format!("<polyline points=\"{}\" class=\"size\"/>\n", points.trim_end());
        }
    }

    /// Draws how many requests waited, on the same scale of time.
    fn queue(&mut self, series: &Series) {
        let most = series.queue.iter().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return;
        }
        self.part("requests that waited");
        let (x, top) = (MARGIN + 50, self.y + 16);
        let bottom = top + QUEUE_HEIGHT;
        self.line((x, top), (x + PLOT_WIDTH, top), "grid");
        self.text_at(x - 8, top + 4, "faint end", &format!("{most:.1}"));
        self.text_at(x - 8, bottom + 4, "faint end", "0");
        self.columns(&series.queue, most, (x, top), (PLOT_WIDTH, QUEUE_HEIGHT), "wait");
        self.line((x, bottom), (x + PLOT_WIDTH, bottom), "axis");
        self.y = bottom;
    }

    fn use_over_time(&mut self, key: &HistoryKeyUse, now: &Now) {
        let Some(series) = Series::of(key, COLUMNS_MAX) else { return };
        self.part(&said(&series));
        let (x, top) = (MARGIN + 50, self.y + 16);
        let bottom = top + PLOT_HEIGHT;
        for part in 0..=4 {
            let y = top + PLOT_HEIGHT * part / 4;
            let slots = series.top * f64::from(4 - part) / 4.0;
            self.line((x, y), (x + PLOT_WIDTH, y), "grid");
            self.text_at(x - 8, y + 4, "faint end", &level(slots, series.one_size()));
        }
        self.columns(&series.columns, series.top, (x, top), (PLOT_WIDTH, PLOT_HEIGHT), "use");
        self.capacity(&series, (x, top), (PLOT_WIDTH, PLOT_HEIGHT));
        self.line((x, bottom), (x + PLOT_WIDTH, bottom), "axis");
        self.y = bottom + 18;
        self.text(x, "faint", &now.clock(&key.from));
        self.text(x + PLOT_WIDTH, "faint end", &now.clock(&key.until));
        self.queue(&series);
    }

    /// Draws a small plot for each key.
    fn keys(&mut self, keys: &[HistoryKeyUse]) {
        self.part("in use, by key");
        self.y += 8;
        for key in keys.iter().take(KEYS_SHOWN) {
            let Some(series) = Series::of(key, COLUMNS_MAX) else { continue };
            self.y += 30;
            self.text(MARGIN, "", &cut(&key.key, 28));
            self.text(MARGIN + 210, "faint", &share(&series));
            let x = MARGIN + 360;
            let width = WIDTH - MARGIN - x;
            self.columns(&series.columns, series.top, (x, self.y - 18), (width, 22), "use");
            self.line((x, self.y + 4), (x + width, self.y + 4), "axis");
        }
    }

    /// Draws the histograms of waits and holds next to each other.
    fn histograms(&mut self, found: &HistoryStats) {
        const LABEL: u32 = 70;
        const COUNT: u32 = 60;
        self.y += GAP;
        let top = self.y;
        let width = (WIDTH - 2 * MARGIN - 30) / 2;
        let mut lowest = top;
        for (n, title, bins, lengths, class) in [
            (0, "waits", &found.wait_bins, &found.all.waits, "wait"),
            (1, "holds", &found.hold_bins, &found.all.holds, "hold"),
        ] {
            self.y = top;
            let x = MARGIN + n * (width + 30);
            self.text(x, "part", title);
            self.y += 20;
            let [median, p90, max] =
                [lengths.median_ms, lengths.p90_ms, lengths.max_ms].map(length);
            let said = format!("median {median}, 90 % up to {p90}, longest {max}");
            self.text(x, "faint", &said);
            self.y += 6;
            let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
            let room = f64::from(width - LABEL - COUNT);
            for (HistoryBin { count, .. }, bounds) in bins.iter().zip(bounds(bins, "≤")) {
                self.y += LINE;
                self.text(x + LABEL - 8, "faint end", &bounds);
                let mut long = *count as f64 / most as f64 * room;
                if *count > 0 {
                    long = long.max(1.0);
                    self.rect(f64::from(x + LABEL), f64::from(self.y - 12), long, 15.0, class);
                }
                self.text(x + LABEL + 6 + long as u32, "", &count.to_string());
            }
            lowest = lowest.max(self.y);
        }
        self.y = lowest;
    }

    /// Draws a line for each number of slots, with bars for the median and for 90 percent.
    fn slots(&mut self, of: &HistorySlots) {
        self.part(&slots_said(of));
        self.y += LINE;
        let columns = [MARGIN, MARGIN + 90, MARGIN + 170, MARGIN + 250, MARGIN + 340];
        for (x, name) in columns.iter().zip(["slots", "median", "90 %", "longest"]) {
            self.text(*x, "faint", name);
        }
        let longest = of.rows.iter().map(|row| row.waits.p90_ms).max().unwrap_or(0).max(1);
        let room = f64::from(WIDTH - MARGIN - columns[4]);
        for row in &of.rows {
            self.y += LINE + 2;
            let is_present = row.slots == of.present;
            let (now, class) = if is_present { (" (now)", "now") } else { ("", "") };
            let [median, p90, max] =
                [row.waits.median_ms, row.waits.p90_ms, row.waits.max_ms].map(length);
            for (x, text) in columns.iter().zip([format!("{}{now}", row.slots), median, p90, max]) {
                self.text(*x, class, &text);
            }
            let long = row.waits.p90_ms as f64 / longest as f64 * room;
            self.rect(f64::from(columns[4]), f64::from(self.y - 12), long.max(1.0), 15.0, "wait");
        }
        self.y += LINE + 4;
        self.text(MARGIN, "faint", "Bars: 90 % of waits.");
        self.y += LINE;
        let assumed = "Assumes that requests arrive at the same times and hold their slots for as \
                       long.";
        self.text(MARGIN, "faint", assumed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::history::chart::tests::key_use;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{HistoryLengths, HistorySlotsRow};

    fn found() -> HistoryStats {
        let bin = |up_to_ms, count| HistoryBin { up_to_ms, count };
        let row = |slots, ms| HistorySlotsRow {
            slots,
            waits: HistoryLengths { median_ms: ms, p90_ms: 2 * ms, p99_ms: ms, max_ms: 3 * ms },
            unfit: 0,
        };
        HistoryStats {
            wait_bins: vec![bin(Some(10), 900), bin(Some(30), 0), bin(None, 3)],
            hold_bins: vec![bin(Some(60_000), 12)],
            keys: vec![key_use()],
            slots: Some(HistorySlots {
                key: "deploy".to_owned(),
                present: 2,
                requests: 12,
                more: false,
                rows: vec![row(1, 9_000), row(2, 300), row(3, 0)],
            }),
            ..HistoryStats::default()
        }
    }

    fn drawn(found: &HistoryStats, about: &str) -> String {
        report(found, about, "12 grants, 0 never granted", &at("2026-11-20T14:10:30Z"))
    }

    /// Checks that the report uses only its own elements, and that all are closed.
    fn check(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            assert!(["svg", "style", "rect", "line", "polyline", "text"].contains(&name), "{tag}");
            match (tag.strip_prefix('/'), tag.ends_with('/')) {
                (Some(name), _) => assert_eq!(open.pop(), Some(name)),
                (None, false) => open.push(name),
                (None, true) => {}
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!svg.contains("width=\"-") && !svg.contains("height=\"-"), "{svg}");
    }

    #[test]
    fn a_report_has_everything() {
        let svg = drawn(&found(), "deploy");
        check(&svg);
        for text in [
            "canal stats: deploy",
            "45% of 2 slots on average",
            ">requests that waited<",
            "class=\"size\"/>",
            ">waits<",
            ">holds<",
            "median 0.0s",
            ">2 (now)<",
            "waits by number of slots",
            "Assumes that requests arrive at the same times",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // The file loads nothing from elsewhere, and runs no scripts.
        assert!(!svg.contains("href") && !svg.contains("url(") && !svg.contains("script"));
    }

    #[test]
    fn no_text_gets_out_of_its_place() {
        let evil = "</text><script>x</script>\"'&\u{1b}[2J\u{ffff}";
        let key = HistoryKeyUse { key: evil.to_owned(), ..key_use() };
        let found = HistoryStats { keys: vec![key.clone(), key], slots: None, ..found() };
        let svg = drawn(&found, evil);
        check(&svg);
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;"), "{svg}");
        assert!(!svg.contains('\u{1b}') && !svg.contains('\u{ffff}'));
    }

    #[test]
    fn nothing_is_a_report_too() {
        check(&drawn(&HistoryStats::default(), "all keys"));
    }
}
