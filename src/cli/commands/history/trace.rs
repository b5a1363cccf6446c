//! `canal trace`: prints ended requests as a trace in the Chrome trace-event format, for
//! ui.perfetto.dev.
//!
//! A key is a process, each of its slots a thread, and each hold an event in the row of its slot. A
//! wait is an asynchronous event of the key.
//!
//! Invariant: no two events of a row overlap.

use std::collections::BTreeMap;

use itertools::Itertools as _;
use serde::Serialize;

use super::records::ask_all;
use crate::cli::{Result, Target, TraceArgs, command_line, millis, sanitize, stdout, user_name};
use crate::protocol::{HistoryItem, HistoryQuery, HistoryRecord, Mode};

/// The most slots of one hold that get a row.
const SLOTS_SHOWN_MAX: usize = 256;

/// Prints a trace. If the reader goes away, that is a failure, because half a trace is useless.
pub(crate) fn run(args: &TraceArgs, target: &Target) -> Result {
    let query = HistoryQuery {
        key: args.key.as_ref().map(ToString::to_string),
        since_ms: args.since.flatten().map(millis),
        ..HistoryQuery::default()
    };
    let mut client = target.connect()?;
    let found = ask_all(&mut client, query, u64::MAX)?;
    let lines: Vec<String> = events(&found.records).iter().map(stdout::json).try_collect()?;
    let events = lines.iter().map(|line| line.trim_end()).join(",\n");
    let first = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    stdout::print_or_fail(&format!("{first}\n{events}\n]}}\n"))
}

/// An event of the Chrome trace-event format. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
struct Event<'a> {
    name: String,
    /// `X` for a hold, `b` and `e` for the begin and the end of a wait, `M` for the name of a row.
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    args: Args<'a>,
}

impl<'a> Event<'a> {
    fn new(name: String, ph: &'static str, at_ms: u64, pid: usize, args: Args<'a>) -> Self {
        let ts = at_ms.saturating_mul(1000);
        Self { name, ph, cat: None, ts, dur: None, pid, tid: 0, id: None, args }
    }
}

/// The details of a selected event, or the name of a row.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name {
        name: String,
    },
    Order {
        sort_index: usize,
    },
    Record {
        user: String,
        #[serde(flatten)]
        record: &'a HistoryRecord,
    },
}

/// A part of a key, in display order. It has one row, or several for holds at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Slot(u64),
    Write,
    Read,
    /// Holds that share the slots of another hold.
    Shared,
    /// Requests that wait.
    Waiting,
}

/// The parts of a key that a request holds: at most this many slots.
pub(crate) fn lanes(item: &HistoryItem, slots_max: usize) -> Vec<Lane> {
    match (item.mode, &item.slots) {
        (Mode::Read, _) => vec![Lane::Read],
        (Mode::Write, _) => vec![Lane::Write],
        (Mode::Counted, None) => vec![Lane::Shared],
        (Mode::Counted, Some(ranges)) => slots(ranges).take(slots_max).map(Lane::Slot).collect(),
    }
}

impl Lane {
    /// The name of a row; the first one has number 0.
    fn row(self, number: usize) -> String {
        let name = match self {
            Self::Slot(slot) => format!("slot {slot}"),
            Self::Write => "writes".to_owned(),
            Self::Read => "reads".to_owned(),
            Self::Shared => "shares a slot".to_owned(),
            Self::Waiting => "waiting".to_owned(),
        };
        if number == 0 { name } else { format!("{name} {}", number + 1) }
    }

    /// The holds of each row.
    fn rows(self, mut spans: Vec<Span<'_>>) -> Vec<Vec<Span<'_>>> {
        spans.sort_by_key(|span| (span.begin_ms, span.end_ms, span.record.number));
        if matches!(self, Self::Slot(_)) {
            // The holds of a slot never overlap. The end of a hold is recorded shortly after the
            // next one begins, so this moves the end to that begin.
            let begins: Vec<u64> = spans.iter().skip(1).map(|span| span.begin_ms).collect();
            for (span, next) in spans.iter_mut().zip(begins) {
                span.end_ms = span.end_ms.min(next);
            }
        }
        // Others may overlap, so each goes into the first row that has room for it.
        let mut rows: Vec<Vec<Span<'_>>> = Vec::new();
        for span in spans {
            let is_over = |last: &Span<'_>| last.end_ms <= span.begin_ms;
            match rows.iter_mut().find(|row| row.last().is_none_or(is_over)) {
                Some(row) => row.push(span),
                None => rows.push(vec![span]),
            }
        }
        rows
    }
}

/// A hold or a wait, in milliseconds since 1970 UTC.
#[derive(Clone, Copy, Debug)]
struct Span<'a> {
    begin_ms: u64,
    end_ms: u64,
    record: &'a HistoryRecord,
}

/// All events of these records.
fn events(records: &[HistoryRecord]) -> Vec<Event<'_>> {
    let mut keys: BTreeMap<&str, BTreeMap<Lane, Vec<Span<'_>>>> = BTreeMap::new();
    for record in records {
        let granted_ms = record.ended_ms.saturating_sub(record.held_ms.unwrap_or(0));
        for (number, item) in record.items.iter().enumerate() {
            let of_key = keys.entry(&item.key).or_default();
            let mut add = |lane, begin_ms, end_ms| {
                of_key.entry(lane).or_default().push(Span { begin_ms, end_ms, record });
            };
            // A wait belongs to the first key of its request.
            if number == 0 && record.waited_ms > 0 {
                add(Lane::Waiting, granted_ms.saturating_sub(record.waited_ms), granted_ms);
            }
            if record.held_ms.is_some() {
                let held = lanes(item, SLOTS_SHOWN_MAX).into_iter();
                held.for_each(|lane| add(lane, granted_ms, record.ended_ms));
            }
        }
    }
    let mut events = Vec::new();
    for (pid, (key, mut lanes)) in (1..).zip(keys) {
        events.push(named("process_name", sanitize(key), pid, 0));
        let waits = lanes.remove(&Lane::Waiting).unwrap_or_default();
        let rows = lanes.into_iter().flat_map(|(lane, spans)| {
            let rows = lane.rows(spans).into_iter().enumerate();
            rows.map(move |(number, spans)| (lane.row(number), spans))
        });
        for (tid, (row, spans)) in (1..).zip(rows) {
            events.push(named("thread_name", row, pid, tid));
            let args = Args::Order { sort_index: tid };
            events.push(Event { args, ..named("thread_sort_index", String::new(), pid, tid) });
            events.extend(spans.iter().map(|span| hold(span, pid, tid)));
        }
        events.extend(waits.iter().flat_map(|span| wait(span, pid)));
    }
    events
}

/// The numbers in `0-3,7`.
fn slots(ranges: &str) -> impl Iterator<Item = u64> {
    ranges.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let ends = first.parse().ok().zip(last.parse().ok());
        ends.into_iter().flat_map(|(first, last): (u64, u64)| first..=last)
    })
}

fn hold<'a>(span: &Span<'a>, pid: usize, tid: usize) -> Event<'a> {
    let Span { begin_ms, end_ms, record } = *span;
    Event {
        cat: Some("hold"),
        dur: Some((end_ms - begin_ms).saturating_mul(1000)),
        tid,
        ..Event::new(name(record), "X", begin_ms, pid, about(record))
    }
}

/// The begin and the end of a wait.
fn wait<'a>(span: &Span<'a>, pid: usize) -> [Event<'a>; 2] {
    let Span { begin_ms, end_ms, record } = *span;
    [("b", begin_ms), ("e", end_ms)].map(|(ph, at_ms)| Event {
        cat: Some("wait"),
        id: Some(record.number),
        ..Event::new(name(record), ph, at_ms, pid, about(record))
    })
}

/// The command, or the user if the caller may not see the command.
fn name(record: &HistoryRecord) -> String {
    let command = record.command.as_deref().filter(|command| !command.is_empty());
    command.map_or_else(|| user_name::name(record.uid), command_line)
}

fn about(record: &HistoryRecord) -> Args<'_> {
    Args::Record { user: user_name::name(record.uid), record }
}

/// An event that names a row.
fn named(what: &str, name: String, pid: usize, tid: usize) -> Event<'static> {
    Event { tid, ..Event::new(what.to_owned(), "M", 0, pid, Args::Name { name }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn item(key: &str, mode: Mode, slots: Option<&str>) -> HistoryItem {
        HistoryItem { key: key.to_owned(), mode, count: 1, slots: slots.map(str::to_owned) }
    }

    fn record(
        number: u64,
        end_ms: u64,
        held_ms: Option<u64>,
        items: Vec<HistoryItem>,
    ) -> HistoryRecord {
        HistoryRecord {
            number,
            ended_ms: end_ms,
            held_ms,
            waited_ms: 500,
            how: "ended".to_owned(),
            uid: 4_000_000,
            command: Some(format!("job {number}")),
            items,
            ..HistoryRecord::default()
        }
    }

    fn shown(records: &[HistoryRecord]) -> Vec<Value> {
        events(records).iter().map(|event| serde_json::to_value(event).unwrap()).collect()
    }

    /// The name of an event's row.
    fn row(all: &[Value], event: &Value) -> String {
        let of_kind = |kind: &str, at: &str| {
            let is_it = |it: &&Value| {
                it["name"] == kind
                    && it["pid"] == event["pid"]
                    && (at.is_empty() || it[at] == event[at])
            };
            all.iter().find(is_it).unwrap()["args"]["name"].as_str().unwrap().to_owned()
        };
        format!("{}: {}", of_kind("process_name", ""), of_kind("thread_name", "tid"))
    }

    fn holds(all: &[Value]) -> Vec<(String, u64, u64, String)> {
        let holds = all.iter().filter(|it| it["ph"] == "X");
        let number = |value: &Value| value.as_u64().unwrap();
        let mut found: Vec<_> = holds
            .map(|it| {
                let name = it["name"].as_str().unwrap().to_owned();
                (row(all, it), number(&it["ts"]), number(&it["dur"]), name)
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn each_slot_is_a_row_and_each_key_a_process() {
        let records = [
            record(1, 9_000, Some(4_000), vec![item("db", Mode::Counted, Some("0-1"))]),
            // It began at the end of the one before, which was recorded 3 ms later.
            record(2, 9_500, Some(503), vec![item("db", Mode::Counted, Some("1"))]),
            record(3, 9_900, Some(900), vec![item("w", Mode::Write, None)]),
        ];
        let all = shown(&records);
        let hold = |row: &str, begin: u64, length: u64, name: &str| {
            (row.to_owned(), begin * 1000, length * 1000, name.to_owned())
        };
        assert_eq!(
            holds(&all),
            [
                hold("db: slot 0", 5_000, 4_000, "job 1"),
                hold("db: slot 1", 5_000, 3_997, "job 1"),
                hold("db: slot 1", 8_997, 503, "job 2"),
                hold("w: writes", 9_000, 900, "job 3"),
            ]
        );
    }

    #[test]
    fn holds_at_once_are_beside_each_other() {
        let read = |number, end_ms, held_ms| {
            record(number, end_ms, Some(held_ms), vec![item("doc", Mode::Read, None)])
        };
        let all = shown(&[read(1, 5_000, 4_000), read(2, 6_000, 3_000), read(3, 7_000, 2_000)]);
        let rows: Vec<_> = holds(&all).into_iter().map(|(row, .., name)| (row, name)).collect();
        let expected =
            [("doc: reads", "job 1"), ("doc: reads", "job 3"), ("doc: reads 2", "job 2")];
        assert_eq!(rows, expected.map(|(row, name)| (row.to_owned(), name.to_owned())));
    }

    #[test]
    fn a_wait_has_a_begin_and_an_end() {
        let refused = record(7, 2_000, None, vec![item("a", Mode::Counted, None)]);
        let all = shown(&[
            refused,
            record(8, 9_000, Some(1_000), vec![item("a", Mode::Counted, Some("0"))]),
        ]);
        let waits: Vec<_> = all
            .iter()
            .filter(|it| it["cat"] == "wait")
            .map(|it| {
                (it["ph"].as_str().unwrap(), it["id"].as_u64().unwrap(), it["ts"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(
            waits,
            [("b", 7, 1_500_000), ("e", 7, 2_000_000), ("b", 8, 7_500_000), ("e", 8, 8_000_000)]
        );
        assert!(all.iter().all(|it| it["ph"] != "X" || it["args"]["held_ms"] == 1_000));
    }

    #[test]
    fn what_is_not_the_callers_to_see_has_the_name_of_its_user() {
        let mut other = record(1, 9_000, Some(1), vec![item("a", Mode::Counted, Some("x,5,7-"))]);
        other.command = None;
        let all = shown(&[other]);
        // Ranges that make no sense are ignored.
        let found = holds(&all);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.as_str(), found[0].3.as_str()), ("a: slot 5", "4000000"));
    }

    proptest! {
        /// Whatever the clock does, the events of a row never overlap.
        #[test]
        fn no_events_of_a_row_overlap(
            all in proptest::collection::vec((0..50_u64, 0..30_u64, 0..4_u8, 0..3_u64), 1..40)
        ) {
            let records: Vec<HistoryRecord> = (1..)
                .zip(all)
                .map(|(number, (end, held, kind, slot))| {
                    let slot = slot.to_string();
                    let item = match kind {
                        0 => item("k", Mode::Read, None),
                        1 => item("k", Mode::Write, None),
                        2 => item("k", Mode::Counted, None),
                        _ => item("k", Mode::Counted, Some(&slot)),
                    };
                    record(number, 1_000 + end, Some(held), vec![item])
                })
                .collect();
            let shown = shown(&records);
            let found = holds(&shown);
            prop_assert_eq!(found.len(), records.len());
            for pair in found.windows(2) {
                let ((row, begin, length, _), (next_row, next, ..)) = (&pair[0], &pair[1]);
                prop_assert!(row != next_row || begin + length <= *next, "{:?}", pair);
            }
        }
    }
}
