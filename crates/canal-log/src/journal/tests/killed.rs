//! Kills a real process.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use super::*;
use canal_sys::rerun;

/// The directory in which [`writer`] plays.
const DIR: &str = "CANAL_TEST_JOURNAL";

#[test]
fn records_appended_before_the_writer_was_killed_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..8 {
        let mut writer = rerun::command("journal::tests::killed::writer", "")
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(writer.stdout.take().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        let number =
            |line: String| line.strip_prefix("appended ").map(|n| n.parse::<u64>().unwrap());
        // It is killed some time after this many lines, and may print more until then.
        let mut appended: Vec<u64> =
            lines.by_ref().filter_map(number).take(1 + 37 * round).collect();
        writer.kill().unwrap();
        appended.extend(lines.filter_map(number));
        writer.wait().unwrap();
        let said = *appended.last().unwrap();
        assert!(said > last, "round {round} appended nothing");
        let opened = try_open(dir.path()).unwrap();
        let first = opened.snapshot.unwrap().globals.revision.0;
        let found = first + opened.records.len() as u64;
        assert!(found >= said, "{said} was appended, and {found} is found");
        assert_eq!(opened.records, records(first + 1..found + 1));
        last = found;
    }
}

#[test]
#[ignore = "a scene"]
fn writer() {
    if !rerun::plays("journal::tests::killed::writer") {
        return;
    }
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let opened = open(&dir);
    let mut journal = opened.journal;
    let mut next = opened.records.last().map(|last| last.revision.0);
    next = next.or(opened.snapshot.map(|snapshot| snapshot.globals.revision.0));
    let mut next = next.map_or(1, |last| last + 1);
    let mut out = io::stdout();
    while next < 1_000_000 {
        if journal.wants_compaction() {
            journal.compact(&snapshot(next - 1), &origin(), 5, 100).unwrap();
        }
        // Some batches have several pages.
        let size = if next.is_multiple_of(5) { 60 } else { 1 + next % 3 };
        journal.append_all(&records(next..next + size)).unwrap();
        next += size;
        writeln!(out, "appended {}", next - 1).unwrap();
    }
    unreachable!("nobody killed the writer");
}
