//! Formats a snapshot as OpenMetrics 1.0.

use std::fmt::Write;

use crate::metrics::counters::{
    APPENDS, Counters, EngineFigures, Histogram, KeyFigures, LENGTHS, LOSSES, OTHER, REFUSALS,
    Series, Snapshot,
};
use canal_core::Key;

/// The content type of the text, for an HTTP header.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of a snapshot.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    let mut text = Text(String::with_capacity(16 * 1024));
    text.about_the_daemon(snapshot);
    let counters = &snapshot.counters;
    let keys = counters.keys.iter().map(|(key, series)| (escaped(key), series));
    let all: Vec<_> = keys.chain([(OTHER.to_owned(), &counters.other)]).collect();
    text.about_keys(&all);
    text.counted(counters, &all);
    if let Some(engine) = &snapshot.engine {
        text.about_the_engine(engine);
    }
    text.0.push_str("# EOF\n");
    text.0
}

/// The value of a label. A key contains no line break.
fn escaped(key: &Key) -> String {
    key.as_str().replace('\\', r"\\").replace('"', "\\\"")
}

/// A label and its value.
type Label<'a> = (&'a str, &'a str);

/// The figure of a key, a time in microseconds; `None` if it has none.
type OfKey = fn(&KeyFigures) -> Option<u64>;

/// The histogram of a key.
type Lengths = fn(&Series) -> &Histogram;

struct Text(String);

impl Text {
    fn about_the_daemon(&mut self, snapshot: &Snapshot) {
        self.family("canal_build_info", "gauge", "The version of the daemon; always 1.");
        self.sample("canal_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        let start_us = snapshot.counters.since_ms.saturating_mul(1000);
        let help = "When the daemon started, in seconds since 1970 UTC.";
        self.one("canal_start_time_seconds", help, start_us);
        self.one("canal_connections", "Connections that are open.", snapshot.connections);
        self.one("canal_holds", "Holds on all keys.", snapshot.holds);
        self.one("canal_waiting_requests", "Requests that are waiting.", snapshot.waiting);
        if let Some(bytes) = snapshot.journal_bytes {
            self.one("canal_journal_bytes", "Bytes in use in the journal.", bytes);
        }
        if let Some(bytes) = snapshot.history_bytes {
            self.one("canal_history_bytes", "Bytes of the history's files.", bytes);
        }
        let dropped = snapshot.history_dropped;
        self.total("canal_history_dropped_records", "Records that the history dropped.", dropped);
    }

    /// Writes the state of each key.
    fn about_keys(&mut self, all: &[(String, &Series)]) {
        let families: [(&str, &str, OfKey); 6] = [
            ("canal_key_held_slots", "Slots of the key that are held.", |key| Some(key.slots)),
            ("canal_key_holds", "Holds on the key, including reads and writes.", |key| {
                Some(key.holds)
            }),
            (
                "canal_key_capacity_slots",
                "Slots of the key: its stored size, or the latest holder's.",
                |key| key.capacity,
            ),
            ("canal_key_waiting_requests", "Requests that are waiting for the key.", |key| {
                Some(key.waiting)
            }),
            (
                "canal_key_oldest_wait_seconds",
                "How long the oldest waiter of the key has been waiting.",
                |key| Some(key.oldest_ms.saturating_mul(1000)),
            ),
            ("canal_key_paused", "Whether the key is paused.", |key| Some(key.paused.into())),
        ];
        for (name, help, value) in families {
            self.family(name, "gauge", help);
            for (key, series) in all {
                if let Some(value) = value(&series.now) {
                    self.sample(name, &[("key", key.as_str())], value);
                }
            }
        }
    }

    /// Writes the counters since the daemon started.
    fn counted(&mut self, counters: &Counters, all: &[(String, &Series)]) {
        self.family("canal_grants", "counter", "Requests of this host that were granted, by key.");
        for (key, series) in all {
            self.sample("canal_grants_total", &[("key", key.as_str())], series.grants);
        }
        let help = "Requests of this host that ended without a grant, by key and reason.";
        self.family("canal_refusals", "counter", help);
        for (key, series) in all {
            for (reason, count) in REFUSALS.into_iter().zip(series.refusals) {
                let labels = [("key", key.as_str()), ("reason", reason)];
                self.sample("canal_refusals_total", &labels, count);
            }
        }
        let lengths: [(&str, &str, Lengths); 2] = [
            ("canal_wait_seconds", "How long granted requests waited.", |series| &series.waits),
            ("canal_hold_seconds", "How long ended holds lasted.", |series| &series.holds),
        ];
        for (name, help, of) in lengths {
            self.family(name, "histogram", help);
            for (key, series) in all {
                self.histogram(name, &[("key", key.as_str())], &LENGTHS, of(series));
            }
        }
        let help = "Deadlocks that canal found; it ended each one by refusing a request.";
        self.total("canal_deadlocks", help, counters.deadlocks);
        let help = "Holds that their owner lost: the lease expired, the host lost the hold with \
                    an engine, or another client released it by force.";
        self.family("canal_lost_holds", "counter", help);
        for (why, count) in LOSSES.into_iter().zip(counters.losses) {
            self.sample("canal_lost_holds_total", &[("why", why)], count);
        }
    }

    fn about_the_engine(&mut self, engine: &EngineFigures) {
        let up = u64::from(!engine.is_away);
        self.one("canal_engine_up", "Whether the daemon can use its engine.", up);
        let member = u64::from(engine.is_member);
        self.one("canal_engine_member", "Whether this host is a member of the table.", member);
        let help = "How long, in total, the daemon has been unable to use its engine.";
        self.total("canal_engine_away_seconds", help, engine.away_ms.saturating_mul(1000));
        let help = "How long changes of this host took to come back from the engine's log.";
        self.family("canal_engine_append_seconds", "histogram", help);
        self.histogram("canal_engine_append_seconds", &[], &APPENDS, &engine.appends);
    }

    /// Writes a gauge without labels.
    fn one(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// Writes a counter without labels.
    fn total(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(&format!("{name}_total"), &[], value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to memory does not fail, here and below.
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
        if let Some(unit) = unit(name) {
            let _ = writeln!(self.0, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: u64) {
        self.0.push_str(name);
        for (n, (label, value)) in labels.iter().enumerate() {
            self.0.push(if n == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"{value}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        // A time is in microseconds.
        let _ = match unit(name) {
            Some("seconds") => writeln!(self.0, " {}", seconds(value)),
            _ => writeln!(self.0, " {value}"),
        };
    }

    fn histogram(&mut self, name: &str, labels: &[Label<'_>], limits: &[u64], found: &Histogram) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        let limits = limits.iter().map(|limit| seconds(*limit));
        for (limit, count) in limits.chain(["+Inf".to_owned()]).zip(found.counts) {
            below += count;
            let mut labels = labels.to_vec();
            labels.push(("le", limit.as_str()));
            self.sample(&bucket, &labels, below);
        }
        self.sample(&format!("{name}_count"), labels, below);
        self.sample(&format!("{name}_sum"), labels, found.sum_us);
    }
}

/// The unit of a family or a sample.
fn unit(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix("_total").or(name.strip_suffix("_sum")).unwrap_or(name);
    ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit))
}

/// Microseconds, written as seconds: `0.5`, `60.0`.
fn seconds(us: u64) -> String {
    format!("{:?}", us as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::counters::tests::request;

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot {
            counters: Counters::since(1_763_000_000_123),
            journal_bytes: Some(7),
            engine: Some(EngineFigures { away_ms: 1500, ..EngineFigures::default() }),
            ..Snapshot::default()
        };
        let odd = r#"a/"quoted"\b"#;
        snapshot.counters.granted(&request(&["db", odd]), 1, 1_200);
        let held =
            KeyFigures { slots: 2, capacity: Some(3), oldest_ms: 61_000, ..KeyFigures::default() };
        snapshot.counters.keys.get_mut(&Key::new("db").unwrap()).unwrap().now = held;
        snapshot
    }

    #[test]
    fn times_are_written_in_seconds_without_rounding() {
        let shown = [0, 500, 10_000, 1_500_000, 60_000_000, 86_400_000_001];
        let shown = shown.map(seconds);
        assert_eq!(shown, ["0.0", "0.0005", "0.01", "1.5", "60.0", "86400.000001"]);
    }

    #[test]
    fn each_figure_is_said_with_its_labels() {
        let text = text(&snapshot());
        for line in [
            "# TYPE canal_key_held_slots gauge",
            "canal_key_held_slots{key=\"db\"} 2",
            "canal_key_capacity_slots{key=\"db\"} 3",
            "canal_key_oldest_wait_seconds{key=\"db\"} 61.0",
            "canal_key_oldest_wait_seconds{key=\"other\"} 0.0",
            "canal_grants_total{key=\"a/\\\"quoted\\\"\\\\b\"} 1",
            "canal_wait_seconds_bucket{key=\"db\",le=\"1.0\"} 0",
            "canal_wait_seconds_bucket{key=\"db\",le=\"5.0\"} 1",
            "canal_wait_seconds_bucket{key=\"db\",le=\"+Inf\"} 1",
            "canal_wait_seconds_count{key=\"db\"} 1",
            "canal_wait_seconds_sum{key=\"db\"} 1.2",
            "canal_refusals_total{key=\"other\",reason=\"deadlock\"} 0",
            "canal_start_time_seconds 1763000000.123",
            "canal_journal_bytes 7",
            "canal_engine_away_seconds_total 1.5",
            "canal_engine_append_seconds_bucket{le=\"0.0005\"} 0",
        ] {
            assert!(text.lines().any(|each| each == line), "{line}\n{text}");
        }
        assert!(!text.contains("canal_history_bytes"), "it is not known");
        assert!(!text.contains("canal_key_capacity_slots{key=\"other\"}"));
    }

    /// The specification's requirements on the whole text.
    #[test]
    fn families_are_in_one_piece_and_the_end_is_marked() {
        let text = text(&snapshot());
        assert!(text.ends_with("\n# EOF\n"));
        let mut families: Vec<(String, String)> = Vec::new();
        let mut samples = BTreeSet::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "TYPE", name, kind] => {
                    assert!(families.iter().all(|(known, _)| known != name), "{name} comes twice");
                    families.push((name.to_owned(), kind.to_owned()));
                }
                ["#", "HELP" | "UNIT", name, _] => {
                    assert_eq!(families.last().unwrap().0, name, "{line}");
                }
                _ => {
                    let (sample, value) = line.rsplit_once(' ').unwrap();
                    assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
                    assert!(samples.insert(sample.to_owned()), "{sample} comes twice");
                    let (name, kind) = families.last().unwrap();
                    let endings: &[&str] = match kind.as_str() {
                        "gauge" => &[""],
                        "counter" => &["_total"],
                        "histogram" => &["_bucket", "_count", "_sum"],
                        other => panic!("{other}"),
                    };
                    let of = sample.split('{').next().unwrap();
                    let fits = |ending: &&str| of == format!("{name}{ending}");
                    assert!(endings.iter().any(fits), "{line} in {name}");
                }
            }
        }
        assert!(families.len() > 15, "{families:?}");
    }

    /// The names of figures in a text.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        words.filter(|word| word.starts_with("canal_")).collect()
    }

    #[test]
    fn dashboard_alerts_and_pages_name_what_there_is_and_the_page_all_of_it() {
        let text = text(&Snapshot { history_bytes: Some(1), ..snapshot() });
        let mut known: BTreeSet<String> = BTreeSet::new();
        let mut main = BTreeSet::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let total = if kind == "counter" { "_total" } else { "" };
            main.insert(format!("{name}{total}"));
            known.insert(format!("{name}{total}"));
            if kind == "histogram" {
                known.extend(["_bucket", "_count", "_sum"].map(|ending| format!("{name}{ending}")));
            }
        }
        for (file, text) in [
            ("dashboard", include_str!("../../../../contrib/grafana/canal.json")),
            ("alerts", include_str!("../../../../contrib/prometheus/canal.rules.yml")),
            ("test of alerts", include_str!("../../../../contrib/prometheus/canal.rules.test.yml")),
            ("docs", include_str!("../../../../docs/metrics.md")),
            ("page", include_str!("../../../../src/cli/man/metrics.roff")),
        ] {
            let named = named(text);
            assert!(named.len() >= 3, "{file}: {named:?}");
            let unknown: Vec<_> = named.iter().filter(|name| !known.contains(**name)).collect();
            assert!(unknown.is_empty(), "{file}: {unknown:?}");
        }
        let page = named(include_str!("../../../../src/cli/man/metrics.roff"));
        let missing: Vec<_> = main.iter().filter(|name| !page.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_dashboard_and_the_alerts_can_be_read() {
        let dashboard = include_str!("../../../../contrib/grafana/canal.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let mut ids = BTreeSet::new();
        for panel in panels {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                    let count = |bracket| expression.matches(bracket).count();
                    assert_eq!(count(open), count(close), "{expression}");
                }
            }
        }
        let alerts = include_str!("../../../../contrib/prometheus/canal.rules.yml");
        let alerts: serde_yaml_ng::Value = serde_yaml_ng::from_str(alerts).unwrap();
        for rule in alerts["groups"][0]["rules"].as_sequence().unwrap() {
            for field in ["alert", "expr"] {
                assert!(rule[field].is_string(), "{rule:?}");
            }
            assert!(rule["annotations"]["summary"].is_string(), "{rule:?}");
        }
    }

    #[test]
    fn the_text_of_as_many_keys_as_there_can_be_is_bounded() {
        let mut snapshot = Snapshot::default();
        for n in 0..1_000 {
            let key = format!("{n:04}{}", "\"".repeat(1_000));
            snapshot.counters.granted(&request(&[&key]), 1, 1);
        }
        assert!(text(&snapshot).len() < 16 << 20);
    }
}
