//! Formats records as a table: one line for each record, the newest last.

use nix::sys::signal::Signal;

use super::length;
use crate::cli::commands::status::page::{COLUMNS, HEAD, NOTE, PLAIN, Page};
use crate::cli::{Now, command_line, plural, sanitize, user_name};
use crate::protocol::HistoryRecord;

const NAMES: [&str; COLUMNS] = ["ENDED", "HOW", "WAITED", "HELD", "PID", "USER", "KEY  COMMAND"];
/// The column that shows how a record ended.
const HOW: usize = 1;

pub(crate) fn page(records: &[HistoryRecord], dropped: u64, now: &Now) -> Page {
    let mut page = Page::default();
    if records.is_empty() {
        page.line("no matching request has ended", PLAIN);
    } else {
        page.cells(NAMES.map(str::to_owned), HEAD);
        page.keep_whole(HOW);
    }
    for record in records {
        page.cells(cells(record, now), PLAIN);
        if let Some(note) = &record.note {
            page.note(format!("note: {}", command_line(note)), NOTE);
        }
        if let Some(by) = record.by {
            let text = format!("released by {} (pid {})", user_name::name(by.uid), by.pid);
            page.note(text, NOTE);
        }
        if record.cycle.len() > 1 {
            page.note(ring(record), NOTE);
        }
    }
    if dropped > 0 {
        let records = plural(dropped, "record was", "records were");
        page.line(format!("{records} left out because too many arrived at the same time"), NOTE);
    }
    page
}

fn cells(record: &HistoryRecord, now: &Now) -> [String; COLUMNS] {
    let keys: Vec<String> = record.items.iter().map(|item| sanitize(&item.key)).collect();
    let command = record.command.as_deref().map(command_line).unwrap_or_default();
    let job = record.job.map(|job| format!("%{job} ")).unwrap_or_default();
    let pid = if record.pid == 0 { "lease".to_owned() } else { record.pid.to_string() };
    let least = |ms: u64| if record.at_least { length(ms) + "+" } else { length(ms) };
    let waited = match record.held_ms {
        Some(_) => length(record.waited_ms),
        None => least(record.waited_ms),
    };
    [
        now.clock(&record.ended),
        how(record),
        waited,
        record.held_ms.map(least).unwrap_or_default(),
        pid,
        user_name::name(record.uid),
        format!("{}  {job}{command}", keys.join(", ")),
    ]
}

/// `exit 1`, `killed: TERM`, `busy`.
fn how(record: &HistoryRecord) -> String {
    let text = match (record.exit, record.signal, record.how.as_str()) {
        (Some(status), _, _) => format!("exit {status}"),
        (_, Some(signal), _) => format!("killed: {}", signal_name(signal)),
        (_, _, "ended") if record.held_ms.is_none() => "gave up".to_owned(),
        (_, _, "ended") => "ended (exit status unknown)".to_owned(),
        (_, _, "withdrawn") => "gave up".to_owned(),
        (_, _, "timeout") => "timed out".to_owned(),
        (_, _, "full") => "busy".to_owned(),
        (_, _, other) => sanitize(other),
    };
    match record.held_ms {
        // The process was ended while it waited.
        None if record.exit.is_some() || record.signal.is_some() => format!("({text})"),
        _ => text,
    }
}

fn signal_name(signal: u8) -> String {
    let known = Signal::try_from(i32::from(signal));
    known.map_or_else(|_| signal.to_string(), |it| it.as_str().trim_start_matches("SIG").to_owned())
}

/// `deadlock: s12 waited for a, s14 for b`.
fn ring(record: &HistoryRecord) -> String {
    let steps: Vec<String> = record
        .cycle
        .iter()
        .map(|step| {
            let (session, key) = (sanitize(&step.session), sanitize(&step.key));
            format!("{session} (pid {}) for `{key}`", step.pid)
        })
        .collect();
    format!("waited for each other: {}", steps.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{HistoryClient, HistoryItem, HistoryStep, Mode};

    fn record(how: &str, held_ms: Option<u64>) -> HistoryRecord {
        let item =
            HistoryItem { key: "deploy".to_owned(), mode: Mode::Counted, count: 1, slots: None };
        HistoryRecord {
            ended: "2026-11-20T14:02:11Z".to_owned(),
            how: how.to_owned(),
            waited_ms: 300,
            held_ms,
            pid: 812,
            items: vec![item],
            command: Some("./deploy.sh  --all\n".to_owned()),
            ..HistoryRecord::default()
        }
    }

    fn shown(records: &[HistoryRecord], dropped: u64, columns: Option<usize>) -> String {
        let text = page(records, dropped, &at("2026-11-20T14:05:23Z")).render(columns);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn each_record_has_a_line_that_fits() {
        let mut exit = record("ended", Some(192_000));
        exit.exit = Some(0);
        let mut killed = record("ended", Some(1_000));
        killed.signal = Some(15);
        killed.note = Some("run 7".to_owned());
        killed.job = Some(17);
        let mut refused = record("deadlock", None);
        let step = |session: &str, key: &str| HistoryStep {
            session: session.to_owned(),
            uid: 0,
            pid: 9,
            key: key.to_owned(),
        };
        refused.cycle = vec![step("s1", "a"), step("s2", "b")];
        let mut forced = record("forced", Some(1));
        forced.by = Some(HistoryClient { uid: 0, pid: 77 });
        forced.pid = 0;
        let at_least = |record| HistoryRecord { at_least: true, ..record };
        let rebooted = [
            at_least(record("reboot", Some(9_000))),
            at_least(record("reboot", None)),
            at_least(record("ended", None)),
        ];
        let all = [exit, killed, record("full", None), refused, forced];
        let all: Vec<_> = all.into_iter().chain(rebooted).collect();
        assert_eq!(
            shown(&all, 2, Some(80)),
            "  ENDED     HOW           WAITED  HELD   PID    USER  KEY  COMMAND\n  \
             14:02:11  exit 0        0.3s    3m12s  812    root  deploy  ./deploy.sh --all\n  \
             14:02:11  killed: TERM  0.3s    1.0s   812    root  deploy  %17 ./deploy.sh -…\n            \
             note: run 7\n  \
             14:02:11  busy          0.3s           812    root  deploy  ./deploy.sh --all\n  \
             14:02:11  deadlock      0.3s           812    root  deploy  ./deploy.sh --all\n            \
             waited for each other: s1 (pid 9) for `a`, s2 (pid 9) for `b`\n  \
             14:02:11  forced        0.3s    0.0s   lease  root  deploy  ./deploy.sh --all\n            \
             released by root (pid 77)\n  \
             14:02:11  reboot        0.3s    9.0s+  812    root  deploy  ./deploy.sh --all\n  \
             14:02:11  reboot        0.3s+          812    root  deploy  ./deploy.sh --all\n  \
             14:02:11  gave up       0.3s+          812    root  deploy  ./deploy.sh --all\n\
             2 records were left out because too many arrived at the same time\n"
        );
        for columns in [40, 50, 60] {
            let narrow = shown(&all, 0, Some(columns));
            assert!(narrow.lines().all(|line| line.chars().count() <= columns), "{narrow}");
            assert!(narrow.contains("exit 0"), "{narrow}");
        }
    }

    #[test]
    fn an_unknown_exit_status_is_never_cut() {
        let text = shown(&[record("ended", Some(2_000))], 0, Some(80));
        let line =
            "  14:02:11  ended (exit status unknown)  0.3s    2.0s  812  root  deploy  ./dep…";
        assert_eq!(text.lines().nth(1), Some(line), "{text}");
    }

    #[test]
    fn nothing_is_said_in_words() {
        assert_eq!(shown(&[], 0, None), "no matching request has ended\n");
    }
}
