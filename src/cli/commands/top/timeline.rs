//! Draws a key over time, as rows of characters: its slots, its readers and writers, and its
//! waiters.

use std::collections::BTreeMap;

use crate::cli::commands::history::trace::{self, Lane};
use crate::cli::{Now, stated};
use crate::duration;
use crate::protocol::{HistoryRecord, KeyInfo, Mode};

/// How many records of a key the chart shows.
pub(super) const RECORDS_IN_CHART: u64 = 50;

/// The lengths of time that a timeline can cover, in seconds.
const SPANS: [u64; 12] =
    [60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 259_200, 604_800, 1_209_600, 2_592_000];

/// The most rows of slots.
const SLOTS_MAX: usize = 8;

/// The most columns of the name of a row.
const NAME_COLUMNS: usize = 9;

/// The begin and the end in milliseconds before now, so the begin is the larger number.
type Span = (u64, u64);

/// The rows, from ended requests and from present holders and waiters. Empty if there is nothing to
/// draw.
pub(super) fn timeline(
    name: &str,
    records: &[HistoryRecord],
    present: Option<&KeyInfo>,
    columns: usize,
    now: &Now,
) -> Vec<String> {
    let mut lanes: BTreeMap<Lane, Vec<Span>> = BTreeMap::new();
    let mut add = |lane, span| lanes.entry(lane).or_default().push(span);
    for record in records {
        let Some(item) = record.items.iter().find(|item| item.key == name) else { continue };
        let ended = milliseconds(&record.ended, now);
        let granted = ended.saturating_add(record.held_ms.unwrap_or(0));
        if record.waited_ms > 0 {
            add(Lane::Waiting, (granted.saturating_add(record.waited_ms), granted));
        }
        if record.held_ms.is_some() {
            // Holds that share the slots of another hold have no row.
            let held = trace::lanes(item, SLOTS_MAX * 2).into_iter();
            let held = held.filter(|lane| *lane != Lane::Shared);
            held.for_each(|lane| add(lane, (granted, ended)));
        }
    }
    for holder in present.iter().flat_map(|key| &key.holders) {
        let span = (milliseconds(&holder.since, now), 0);
        match holder.mode {
            Some(Mode::Read) => add(Lane::Read, span),
            Some(Mode::Write) => add(Lane::Write, span),
            Some(Mode::Counted) | None => {
                let slots = holder.slots.iter().take(SLOTS_MAX * 2);
                slots.for_each(|slot| add(Lane::Slot(*slot), span));
            }
        }
    }
    for waiter in present.iter().flat_map(|key| &key.waiters) {
        add(Lane::Waiting, (milliseconds(&waiter.since, now), 0));
    }
    let oldest = lanes.values().flatten().map(|(begin, _)| *begin).max();
    let Some(oldest) = oldest.filter(|_| columns > NAME_COLUMNS * 2) else { return Vec::new() };
    let fits = |seconds: &&u64| **seconds * 1000 >= oldest;
    let seconds = *SPANS.iter().find(fits).unwrap_or(&SPANS[SPANS.len() - 1]);
    let room = columns - NAME_COLUMNS;
    let mut rows = vec![format!("the last {}", stated(std::time::Duration::from_secs(seconds)))];
    // Slots come before the other lanes.
    let slots = lanes.keys().filter(|lane| matches!(lane, Lane::Slot(_))).count();
    for (at, (lane, spans)) in lanes.iter().enumerate() {
        if at < SLOTS_MAX || at >= slots {
            // These two lanes show how many requests there were at the same time.
            let is_count = matches!(lane, Lane::Read | Lane::Waiting);
            let cells = cells(spans, seconds * 1000, room as u64, is_count);
            rows.push(format!("{:<NAME_COLUMNS$}{cells}", title(*lane)));
        }
    }
    if slots > SLOTS_MAX {
        rows.push("and more slots".to_owned());
    }
    rows
}

/// The name of a row.
fn title(lane: Lane) -> String {
    match lane {
        Lane::Slot(slot) => format!("slot {slot}"),
        Lane::Write => "writer".to_owned(),
        Lane::Read => "readers".to_owned(),
        Lane::Shared | Lane::Waiting => "waiting".to_owned(),
    }
}

/// How many milliseconds ago that was.
fn milliseconds(at: &str, now: &Now) -> u64 {
    duration::milliseconds(now.passed(at).unwrap_or_default())
}

/// A character for each part of the time: `█` if more than half of it is covered, `▒` if some of it
/// is. In a row that counts, the character is the number of requests.
fn cells(spans: &[Span], whole: u64, count: u64, is_count: bool) -> String {
    let cell = |n: u64| {
        // The begin and the end of the part, in milliseconds before now.
        let (begin, end) = (whole * (count - n) / count, whole * (count - n - 1) / count);
        let covered = |(from, to): &Span| begin.min(*from).saturating_sub(end.max(*to));
        // A span of less than a millisecond is visible too.
        let touches = |span: &&Span| {
            covered(span) > 0 || (span.0 == span.1 && (end..begin).contains(&span.0))
        };
        let found = spans.iter().filter(touches).count();
        match found {
            0 => ' ',
            1..=9 if is_count => char::from_digit(found as u32, 10).unwrap_or('+'),
            _ if is_count => '+',
            _ if spans.iter().map(covered).sum::<u64>() * 2 > begin - end => '█',
            _ => '▒',
        }
    };
    (0..count).map(cell).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::top::model::tests::three;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::HistoryItem;

    fn record(ended: &str, held_ms: Option<u64>, waited_ms: u64, slots: &str) -> HistoryRecord {
        let slots = Some(slots.to_owned());
        let item = HistoryItem { key: "b".to_owned(), mode: Mode::Counted, count: 1, slots };
        HistoryRecord {
            ended: format!("2026-11-20T14:{ended}Z"),
            held_ms,
            waited_ms,
            items: vec![item],
            ..HistoryRecord::default()
        }
    }

    #[test]
    fn holds_and_waits_stand_where_they_were() {
        let now = at("2026-11-20T14:05:00Z");
        let records = [
            // A minute is ten columns.
            record("01:00", Some(60_000), 0, "0"),
            record("03:00", Some(90_000), 30_000, "0-1"),
            record("04:57", Some(3_000), 57_000, "0"),
            record("02:30", None, 12_000, ""),
        ];
        let rows = timeline("b", &records, None, 59, &now);
        assert_eq!(
            rows,
            [
                "the last 5m00s",
                "slot 0   ██████████     ███████████████                   ▒",
                "slot 1                  ███████████████",
                "waiting            11111        11              1111111111",
            ]
            .map(|row| row.trim_end().to_owned())
        );
    }

    #[test]
    fn what_holds_now_goes_on_to_the_right_edge() {
        let status = three();
        let now = at("2026-11-20T14:05:12Z");
        let rows = timeline("b", &[], Some(&status.keys[1]), 59, &now);
        // It was granted at 14:02:11, and two requests have waited since 14:02:11 and 14:03:11.
        assert_eq!(rows.len(), 3, "{rows:#?}");
        assert!(rows[1].ends_with(&"█".repeat(30)), "{rows:#?}");
        assert!(rows[2].ends_with("1111111111222222222222222222222"), "{rows:#?}");
    }

    #[test]
    fn there_is_no_timeline_without_room_or_events() {
        let now = at("2026-11-20T14:05:00Z");
        assert!(timeline("b", &[], None, 80, &now).is_empty());
        let records = [record("01:00", Some(60_000), 0, "0-400")];
        assert!(timeline("b", &records, None, 18, &now).is_empty());
        assert!(timeline("other", &records, None, 80, &now).is_empty());
        let rows = timeline("b", &records, None, 40, &now);
        assert_eq!(rows.len(), SLOTS_MAX + 2, "{rows:#?}");
        assert_eq!(rows[SLOTS_MAX + 1], "and more slots");
        assert!(rows.iter().all(|row| row.chars().count() <= 40));
    }
}
