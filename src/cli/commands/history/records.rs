//! `canal history`: shows which requests ended, when and how, and how long they waited and held
//! their locks.

use std::time::Duration;

use itertools::Itertools as _;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cli::find_job::{add_numbers_of_ended, look_up};
use crate::cli::kill_and_supersede;
use crate::cli::output::columns::{NOTE, PLAIN, Page, print, table};
use crate::cli::{
    HistoryArgs, Now, Result, Target, command_line, millis, plural, sanitize, short, stdout,
    user_name,
};
use crate::client::Client;
use crate::protocol::{HistoryClient, HistoryPage, HistoryQuery, HistoryRecord, HistoryStep};
use crate::run::job_files::Folder;

/// How many records to show if the user passes no count.
const SHOWN: u64 = 50;

pub(crate) fn run(args: &HistoryArgs, target: &Target) -> Result {
    let (mut client, key, session) = look_up(args.key.as_ref(), target)?;
    let query = HistoryQuery {
        key: key.map(ToString::to_string),
        since_ms: args.since.flatten().map(millis),
        uid: args.user,
        session,
        failed: args.failed,
        ..HistoryQuery::default()
    };
    let all = if args.json || args.csv { u64::MAX } else { SHOWN };
    let mut found = ask_all(&mut client, query, args.count.unwrap_or(all))?;
    add_numbers_of_ended(&mut found.records, &Folder::of(&target.place));
    if args.json || args.csv {
        return stdout::report(&found, args.json, || csv(&found.records));
    }
    print(&page(&found.records, found.dropped, &Now::here()))
}

/// Asks for the latest `count` records of a key and of the keys below it.
pub(crate) fn of_key(client: &mut Client, key: &str, count: u64) -> Result<HistoryPage> {
    let query = HistoryQuery { key: Some(key.to_owned()), ..HistoryQuery::default() };
    ask_all(client, query, count)
}

/// Asks for one page after the other until there are as many records as requested. Returns them all
/// in one page, the oldest first.
pub(super) fn ask_all(client: &mut Client, query: HistoryQuery, count: u64) -> Result<HistoryPage> {
    let (mut query, mut left) = (query, count);
    let mut found = HistoryPage::default();
    loop {
        query.limit = Some(left);
        let HistoryPage { mut records, before, dropped } = client.history(&query)?;
        records.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= records.len() as u64;
        found.records.append(&mut records);
        found.dropped = dropped;
        // If the next page is not older than this one, this one counts as the last.
        let goes_on = before.filter(|next| query.before.is_none_or(|last| *next < last));
        let Some(next) = goes_on.filter(|_| left > 0) else { break };
        query.before = Some(next);
    }
    found.records.reverse();
    Ok(found)
}

/// `0.3s`, `42s`, `3m12s`.
pub(super) fn length(ms: u64) -> String {
    if ms < 10_000 {
        return format!("{}.{}s", ms / 1000, ms % 1000 / 100);
    }
    short(Duration::from_millis(ms))
}

/// The number of columns.
const COLUMNS: usize = 8;

const NAMES: [&str; COLUMNS] = ["ENDED", "HOW", "WAITED", "HELD", "PID", "USER", "KEY", "COMMAND"];

/// The column that shows how a record ended.
const HOW: usize = 1;

/// On a terminal, long keys may take up to half of the space that they share with the commands.
fn layout(widest: [usize; COLUMNS], columns: usize) -> [Option<usize>; COLUMNS] {
    let mut widths = table::<HOW, COLUMNS>(widest, columns);
    if let [.., Some(keys), Some(commands)] = &mut widths {
        let more = widest[COLUMNS - 2].saturating_sub(*keys);
        let more = more.min(commands.saturating_sub(*keys) / 2);
        (*keys, *commands) = (*keys + more, *commands - more);
    }
    widths
}

pub(crate) fn page(records: &[HistoryRecord], dropped: u64, now: &Now) -> Page<COLUMNS> {
    let mut page = Page::with(layout, 0..0);
    match records.is_empty() {
        true => page.line("no matching request has ended", PLAIN),
        false => page.names(NAMES),
    }
    for record in records {
        page.cells(cells(record, now), PLAIN);
        let did = if record.how == KILLED { KILLED } else { "released" };
        let by =
            |by: HistoryClient| format!("{did} by {} (pid {})", user_name::name(by.uid), by.pid);
        page.note(record.note.as_ref().map(|note| format!("note: {}", command_line(note))), NOTE);
        page.note(record.by.map(by), NOTE);
        let step = |HistoryStep { session, pid, key, .. }: &HistoryStep| {
            format!("{} (pid {pid}) for `{}`", sanitize(session), sanitize(key))
        };
        let cycle = record.cycle.iter().map(step).join(", ");
        let ring = format!("waited for each other: {cycle}");
        page.note((record.cycle.len() > 1).then_some(ring), NOTE);
    }
    if dropped > 0 {
        let records = plural(dropped, "record was", "records were");
        page.line(format!("{records} left out because too many arrived at the same time"), NOTE);
    }
    page
}

fn cells(record: &HistoryRecord, now: &Now) -> [String; COLUMNS] {
    let command = record.command.as_deref().map(command_line).unwrap_or_default();
    let job = record.job.map(|job| format!("%{job} ")).unwrap_or_default();
    let pid = if record.pid == 0 { "lease".to_owned() } else { record.pid.to_string() };
    let least = |ms: u64| if record.at_least { length(ms) + "+" } else { length(ms) };
    let waited = record.waited_ms;
    let waited = if record.held_ms.is_none() { least(waited) } else { length(waited) };
    [
        now.clock(&record.ended),
        how(record),
        waited,
        record.held_ms.map(least).unwrap_or_default(),
        pid,
        user_name::name(record.uid),
        record.items.iter().map(|item| sanitize(&item.key)).join(", "),
        job + &command,
    ]
}

/// The words of the protocol for two kinds of ends.
const KILLED: &str = "killed";
const MAX_RUN: &str = "max-run";

/// `exit 1`, `killed: TERM`, `max-run: TERM`, `busy`.
fn how(record: &HistoryRecord) -> String {
    let is_over = record.how == MAX_RUN;
    let text = match (record.exit, record.signal, record.how.as_str()) {
        (Some(status), ..) if is_over => format!("{MAX_RUN}: exit {status}"),
        (Some(status), ..) => format!("exit {status}"),
        (_, Some(signal), _) => {
            let what = if is_over { MAX_RUN } else { KILLED };
            let known = Signal::try_from(i32::from(signal)).map(kill_and_supersede::name);
            format!("{what}: {}", known.map_or_else(|_| signal.to_string(), str::to_owned))
        }
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

/// The columns of `--csv`: fields of a record, and the names of its keys and its user.
const CSV_NAMES: &str = "number,asked,ended,how,exit,signal,waited_ms,held_ms,keys,user,pid,\
                         session,token,host,note,command,at_least";

/// A line of names, and one line for each record.
fn csv(records: &[HistoryRecord]) -> String {
    [CSV_NAMES, "\r\n"].concat() + &records.iter().map(csv_line).collect::<String>()
}

fn csv_line(record: &HistoryRecord) -> String {
    let fields = serde_json::to_value(record).unwrap_or_default();
    let value = |name| match (name, &fields[name]) {
        ("keys", _) => record.items.iter().map(|item| &item.key).join(" "),
        ("user", _) => user_name::name(record.uid),
        (_, Value::Null) => String::new(),
        (_, Value::String(text)) => text.clone(),
        (_, other) => other.to_string(),
    };
    let quoted = |value: String| match value.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value,
    };
    CSV_NAMES.split(',').map(|name| quoted(sanitize(&value(name)))).join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{HistoryItem, Mode};

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
        let by = Some(HistoryClient { uid: 0, pid: 78 });
        let waiting = HistoryRecord { signal: Some(15), by, ..record("killed", None) };
        let limited = HistoryRecord { signal: Some(9), ..record("max-run", Some(60_000)) };
        let in_time = HistoryRecord { exit: Some(0), ..record("max-run", Some(60_000)) };
        let at_least = |record| HistoryRecord { at_least: true, ..record };
        let rebooted = [
            at_least(record("reboot", Some(9_000))),
            at_least(record("reboot", None)),
            at_least(record("ended", None)),
        ];
        let all = [exit, killed, record("full", None), refused, forced, waiting, limited, in_time];
        let all: Vec<_> = all.into_iter().chain(rebooted).collect();
        assert_eq!(
            shown(&all, 2, Some(80)),
            "  ENDED     HOW              WAITED  HELD   PID    USER  KEY     COMMAND\n  \
             14:02:11  exit 0           0.3s    3m12s  812    root  deploy  ./deploy.sh --…\n  \
             14:02:11  killed: TERM     0.3s    1.0s   812    root  deploy  %17 ./deploy.s…\n            \
             note: run 7\n  \
             14:02:11  busy             0.3s           812    root  deploy  ./deploy.sh --…\n  \
             14:02:11  deadlock         0.3s           812    root  deploy  ./deploy.sh --…\n            \
             waited for each other: s1 (pid 9) for `a`, s2 (pid 9) for `b`\n  \
             14:02:11  forced           0.3s    0.0s   lease  root  deploy  ./deploy.sh --…\n            \
             released by root (pid 77)\n  \
             14:02:11  (killed: TERM)   0.3s           812    root  deploy  ./deploy.sh --…\n            \
             killed by root (pid 78)\n  \
             14:02:11  max-run: KILL    0.3s    1m00s  812    root  deploy  ./deploy.sh --…\n  \
             14:02:11  max-run: exit 0  0.3s    1m00s  812    root  deploy  ./deploy.sh --…\n  \
             14:02:11  reboot           0.3s    9.0s+  812    root  deploy  ./deploy.sh --…\n  \
             14:02:11  reboot           0.3s+          812    root  deploy  ./deploy.sh --…\n  \
             14:02:11  gave up          0.3s+          812    root  deploy  ./deploy.sh --…\n\
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
            "  14:02:11  ended (exit status unknown)  0.3s    2.0s  root  deploy  ./deploy.s…";
        assert_eq!(text.lines().nth(1), Some(line), "{text}");
    }

    #[test]
    fn the_commands_are_aligned_whatever_the_keys() {
        let of = |keys: &[&str]| {
            let item = |key: &&str| HistoryItem {
                key: (*key).to_owned(),
                mode: Mode::Counted,
                count: 1,
                slots: None,
            };
            let (items, exit) = (keys.iter().map(item).collect(), Some(0));
            HistoryRecord { items, exit, ..record("ended", Some(1_000)) }
        };
        let long = "team/project/nightly/linux-x86_64";
        let all = [of(&["a"]), of(&["漢字/b"]), of(&["a", "db/main"]), of(&[long])];
        let whole = shown(&all[..3], 0, None);
        let begin = "  14:02:11  exit 0  0.3s    1.0s  812  root  ";
        assert_eq!(
            whole,
            format!(
                "  ENDED     HOW     WAITED  HELD  PID  USER  KEY         COMMAND\n\
                 {begin}a           ./deploy.sh --all\n\
                 {begin}漢字/b      ./deploy.sh --all\n\
                 {begin}a, db/main  ./deploy.sh --all\n"
            )
        );
        // A long key is cut to half of the space that it shares with the command.
        let cut = shown(&all, 0, Some(80));
        let last = cut.lines().last().unwrap_or_default();
        assert_eq!(last, format!("{begin}team/project/ni…  ./deploy.sh --all"), "{cut}");
        assert!(shown(&all, 0, Some(120)).contains(long), "there is room for it");
    }

    #[test]
    fn nothing_is_said_in_words() {
        assert_eq!(shown(&[], 0, None), "no matching request has ended\n");
    }

    #[test]
    fn what_separates_values_is_quoted() {
        let item = |key: &str| HistoryItem {
            key: key.to_owned(),
            mode: Mode::Counted,
            count: 1,
            slots: None,
        };
        let record = HistoryRecord {
            number: 7,
            how: "ended".to_owned(),
            exit: Some(1),
            uid: 4_000_000,
            command: Some("sh -c 'a, \"b\"'\nx".to_owned()),
            items: vec![item("a"), item("b")],
            ..HistoryRecord::default()
        };
        let text = csv(&[record]);
        let lines: Vec<_> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].split(',').count(), 17);
        assert_eq!(lines[1], "7,,,ended,1,,0,,a b,4000000,0,,,,,\"sh -c 'a, \"\"b\"\"'?x\",");
    }
}
