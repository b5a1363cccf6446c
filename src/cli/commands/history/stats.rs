//! `canal stats`: reports how long requests waited and held their locks, by user and by command;
//! how much of each key was in use; and how many slots a key should have.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::chart::{self, Glyphs, single_key};
use super::records::length;
use super::svg;
use crate::cli::output::columns::{self, COLUMNS, KEY, NOTE, PLAIN, Page, Screen, table};
use crate::cli::output::sanitize::fold;
use crate::cli::{
    Failed, Now, Result, StatsArgs, Target, command_line, millis, plural, stated, stdout, user_name,
};
use crate::protocol::{
    HistoryCount, HistorySlots, HistorySlotsRow, HistoryStats, HistoryStatsQuery,
};

/// How many users and keys a page shows.
const SHOWN: usize = 10;

/// How many commands a page shows.
const COMMANDS_SHOWN: usize = 3;

/// A command that ran less often is only counted: its figures mean little.
const RUNS_MIN: u64 = 3;

/// The indentation of a line of a page.
const INDENT: usize = 2;

const NAMES: [&str; COLUMNS] = ["", "MEDIAN", "COUNT", "P90", "P99", "MAX", "OF"];

pub(crate) fn run(args: &StatsArgs, target: &Target) -> Result {
    let since = args.since.flatten();
    let query = HistoryStatsQuery {
        key: args.key.as_ref().map(ToString::to_string),
        since_ms: since.map(millis),
        uid: args.user,
    };
    let found = target.connect()?.history_stats(&query)?;
    let about = args.key.as_ref().map_or("all keys", |key| key.as_str());
    if args.json {
        stdout::print_json(&found)?;
    } else if let Some(file) = &args.svg {
        let picture = svg::report(&found, about, &counts(&found, since), &Now::here());
        write(file, &picture, args.force)?;
    } else {
        let columns = Screen::of_stdout().map_or(columns::COLUMNS_ASSUMED, |screen| screen.columns);
        let value = |name| std::env::var(name).unwrap_or_default();
        let glyphs = match args.ascii {
            true => Glyphs::Ascii,
            false => Glyphs::of_locale(&value("LC_ALL"), &value("LC_CTYPE"), &value("LANG")),
        };
        let mut page = page(&found, about, since, columns);
        draw(&mut page, &found, columns, glyphs, &Now::here());
        stdout::print_styled(&page.render(Some(columns)))?;
    }
    Ok(())
}

/// `1204 grants in 7d00h, 31 never granted`.
fn counts(found: &HistoryStats, since: Option<Duration>) -> String {
    let HistoryCount { count, refused, .. } = found.all;
    let within = since.map(|length| format!(" in {}", stated(length))).unwrap_or_default();
    let granted = plural(count.saturating_sub(refused), "grant", "grants");
    format!("{granted}{within}, {refused} never granted")
}

/// The recommended number of slots, which is the most common question, and then the counts.
fn page(found: &HistoryStats, about: &str, since: Option<Duration>, columns: usize) -> Page {
    let mut page = Page::default();
    let HistoryCount { count, refused, .. } = found.all;
    page.title(about.to_owned(), counts(found, since), KEY);
    if let Some(slots) = &found.slots {
        let columns = columns.saturating_sub(INDENT);
        part(&mut page, &chart::slots_said(slots), slots_table(slots), columns);
        page.line("", PLAIN);
    }
    if count > refused {
        page.names(NAMES);
        rows(&mut page, &found.all, "everything");
    }
    if found.users.len() > 1 {
        for user in found.users.iter().filter(|it| it.count > it.refused).take(SHOWN) {
            rows(&mut page, user, &user_name::name(user.uid.unwrap_or(0)));
        }
    }
    let commands = found.commands.iter().filter(|it| it.count > it.refused);
    let (often, seldom): (Vec<_>, Vec<_>) =
        commands.partition(|it| it.count - it.refused >= RUNS_MIN);
    for of in often.iter().take(COMMANDS_SHOWN) {
        let command = command_line(of.command.as_deref().unwrap_or_default());
        let like = of.commands.map(|count| format!("{count} like ")).unwrap_or_default();
        rows(&mut page, of, &(like + &command));
    }
    if !seldom.is_empty() {
        let commands = plural(seldom.len() as u64, "command", "commands");
        page.note(format!("{commands} with fewer than {RUNS_MIN} runs"), NOTE);
    }
    let is_cut = found.users.len().max(found.keys.len()) > SHOWN;
    if found.left_out || is_cut || often.len() > COMMANDS_SHOWN {
        let more = "more users, commands or keys are left out; --json shows more";
        page.note(more.to_owned(), NOTE);
    }
    page
}

/// Adds the plots that have something to show.
fn draw(page: &mut Page, found: &HistoryStats, columns: usize, glyphs: Glyphs, now: &Now) {
    let columns = columns.saturating_sub(INDENT);
    for (name, bins) in [("waits", &found.wait_bins), ("holds", &found.hold_bins)] {
        part(page, name, chart::histogram(bins, columns, glyphs), columns);
    }
    let plot = single_key(found).map(|key| chart::plot(key, columns, glyphs, now));
    if let Some((said, lines)) = plot.as_deref().and_then(<[_]>::split_first) {
        part(page, said, lines.to_vec(), columns);
    }
    if found.keys.len() > 1 {
        let keys = &found.keys[..found.keys.len().min(SHOWN)];
        part(page, "in use, by key", chart::keys(keys, columns, glyphs), columns);
    }
}

/// How long requests would have waited with other numbers of slots, one line for each number.
fn slots_table(of: &HistorySlots) -> Vec<String> {
    let mut page = Page::with(table::<0, 4>, 0..0);
    page.names(["SLOTS", "MEDIAN", "P90", "MAX"]);
    for HistorySlotsRow { slots, waits, unfit } in &of.rows {
        let now = if *slots == of.present { " now" } else { "" };
        let [median, p90, max] = [waits.median_ms, waits.p90_ms, waits.max_ms].map(length);
        let more = if *unfit > 0 { format!("  ({unfit} need more slots)") } else { String::new() };
        page.cells([format!("{slots}{now}"), median, p90, max + &more], PLAIN);
    }
    page.lines(usize::MAX).into_iter().map(|line| line.text).collect()
}

/// Adds a title and the lines below it, if there are lines.
fn part(page: &mut Page, title: &str, lines: Vec<String>, columns: usize) {
    if !lines.is_empty() {
        page.line("", PLAIN);
        fold(title, columns).into_iter().for_each(|line| page.line(line, KEY));
        lines.into_iter().for_each(|line| page.line(line, PLAIN));
    }
}

fn rows(page: &mut Page, of: &HistoryCount, name: &str) {
    let granted = (of.count - of.refused).to_string();
    for (what, it) in [("waits", &of.waits), ("holds", &of.holds)] {
        let [median, p90, p99, max] = [it.median_ms, it.p90_ms, it.p99_ms, it.max_ms].map(length);
        let (what, name) = (what.to_owned(), name.to_owned());
        page.cells([what, median, granted.clone(), p90, p99, max, name], PLAIN);
    }
}

/// Writes a report. Replaces an existing file only with `force`, and only if it is a regular file.
fn write(path: &Path, text: &str, force: bool) -> Result {
    if path == Path::new("-") {
        return stdout::print_or_fail(text);
    }
    let shown = path.display();
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(Failed::new(format!("{shown} is not a regular file"))
            .hint("name another file, or `-` for standard output"));
    }
    write_whole(path, text, force).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failed::new(format!("{shown} already exists")).hint("replace it with `--force`")
        }
        _ => Failed::new(format!("cannot write {shown}: {error}")),
    })
}

/// Writes the text to another file in the same directory, and gives it its name once it is
/// complete. Without `force`, a file that already has the name keeps it.
fn write_whole(path: &Path, text: &str, force: bool) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The umask restricts it, as for any new file.
    let mode = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().permissions(mode).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    let named = if force { file.persist(path) } else { file.persist_noclobber(path) };
    named.map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::history::chart::tests::key_use;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{HistoryBin, HistoryLengths};

    fn of(count: u64, command: Option<&str>) -> HistoryCount {
        let lengths =
            |ms| HistoryLengths { median_ms: ms, p90_ms: 2 * ms, p99_ms: 3 * ms, max_ms: 192_000 };
        HistoryCount {
            uid: command.map(|_| 0),
            command: command.map(str::to_owned),
            commands: command.filter(|it| it.contains('#')).map(|_| 12),
            count,
            refused: 2,
            waits: lengths(100),
            holds: lengths(20_000),
        }
    }

    #[test]
    fn the_present_number_of_slots_is_marked() {
        let row = |slots, ms, unfit| HistorySlotsRow {
            slots,
            waits: HistoryLengths { median_ms: ms, p90_ms: 9 * ms, p99_ms: 0, max_ms: 90 * ms },
            unfit,
        };
        let of = HistorySlots {
            key: "deploy".to_owned(),
            present: 2,
            requests: 120,
            more: false,
            rows: vec![row(1, 61_000, 7), row(2, 1_000, 0), row(3, 0, 0)],
        };
        assert_eq!(
            slots_table(&of),
            [
                "  SLOTS  MEDIAN  P90    MAX",
                "  1      1m01s   9m09s  1h31m  (7 need more slots)",
                "  2 now  1.0s    9.0s   1m30s",
                "  3      0.0s    0.0s   0.0s",
            ]
        );
        let said = "simulated waits by number of slots, for all 120 requests at the same times";
        assert_eq!(chart::slots_said(&of), said);
        let some = HistorySlots { more: true, ..of };
        assert!(chart::slots_said(&some).contains("the last 120 requests"));
    }

    #[test]
    fn waits_and_holds_have_a_line_each() {
        let found = HistoryStats {
            all: of(12, None),
            users: vec![of(12, Some(""))],
            commands: vec![
                of(7, Some("make  -j4")),
                of(12, Some("./job # of a long array")),
                of(4, Some("ls")),
                of(3, Some("pwd")),
            ],
            ..HistoryStats::default()
        };
        let text = page(&found, "deploy", Some(Duration::from_secs(3600)), 80).render(Some(80));
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "deploy  10 grants in 1h00m, 2 never granted\n         \
             MEDIAN  COUNT  P90   P99    MAX    OF\n  \
             waits  0.1s    10     0.2s  0.3s   3m12s  everything\n  \
             holds  20s     10     40s   1m00s  3m12s  everything\n  \
             waits  0.1s    5      0.2s  0.3s   3m12s  make -j4\n  \
             holds  20s     5      40s   1m00s  3m12s  make -j4\n  \
             waits  0.1s    10     0.2s  0.3s   3m12s  12 like ./job # of a long array\n  \
             holds  20s     10     40s   1m00s  3m12s  12 like ./job # of a long array\n         \
             2 commands with fewer than 3 runs\n"
        );
        let none = page(&HistoryStats::default(), "all keys", None, 80).render(None);
        assert_eq!(
            anstream::adapter::strip_str(&none).to_string(),
            "all keys  0 grants, 0 never granted\n"
        );
    }

    #[test]
    fn what_is_there_is_drawn_in_parts() {
        let bin = |up_to_ms, count| HistoryBin { up_to_ms, count };
        let row = HistorySlotsRow { slots: 2, waits: HistoryLengths::default(), unfit: 0 };
        let found = HistoryStats {
            wait_bins: vec![bin(Some(10), 3)],
            keys: vec![key_use()],
            slots: Some(HistorySlots {
                key: "deploy".to_owned(),
                present: 2,
                requests: 3,
                more: false,
                rows: vec![row],
            }),
            ..HistoryStats::default()
        };
        let drawn = |found: &HistoryStats| {
            let mut page = Page::default();
            draw(&mut page, found, 40, Glyphs::Ascii, &at("2026-11-20T14:10:30Z"));
            let first = super::page(found, "deploy", None, 40).render(Some(40));
            let first = anstream::adapter::strip_str(&first).to_string();
            let answer = "deploy  0 grants, 0 never granted\n\nsimulated waits by number of \
                          slots,\nfor all 3";
            assert!(found.slots.is_none() || first.starts_with(answer), "{first}");
            anstream::adapter::strip_str(&page.render(Some(40))).to_string()
        };
        let text = drawn(&found);
        assert!(text.starts_with("\nwaits\n  <= 10ms  3  ####"), "{text}");
        assert!(text.contains("\n\nin use: 45% of 2 slots on average"), "{text}");
        assert!(!text.contains("holds"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        let two = HistoryStats { keys: vec![key_use(), key_use()], slots: None, ..found };
        assert!(drawn(&two).contains("in use, by key\n  deploy  45% of 2 slots"), "{text}");
        assert_eq!(drawn(&HistoryStats::default()), "");
    }

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_only_by_force_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.svg");
        write(&path, "one", false).unwrap();
        let refused = write(&path, "two", false).unwrap_err();
        assert!(refused.message.ends_with("report.svg already exists"), "{refused:?}");
        assert_eq!(refused.hint.as_deref(), Some("replace it with `--force`"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        write(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names(dir.path()), ["report.svg"]);
    }

    #[test]
    fn no_link_is_followed_and_no_directory_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &dangling).unwrap();
        for path in [&link, &dangling, dir.path()] {
            for force in [false, true] {
                let refused = write(path, "x", force).unwrap_err();
                assert!(refused.message.ends_with("is not a regular file"), "{refused:?}");
            }
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert_eq!(names(dir.path()), ["dangling", "link", "target"]);
        let nowhere = write(&dir.path().join("no/report.svg"), "x", false).unwrap_err();
        assert!(nowhere.message.starts_with("cannot write "), "{nowhere:?}");
    }
}
