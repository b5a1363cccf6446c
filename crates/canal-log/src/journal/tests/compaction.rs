//! Compaction loses nothing, even when stopped at any byte and step.

use super::*;
use crate::journal::format::LIVE;
use crate::sim::disk_faults as fault;

/// The content of a journal: the revision of the snapshot, and that of the last record.
fn content(opened: &Opened) -> (u64, u64) {
    let first = opened.snapshot.as_ref().unwrap().globals.revision.0;
    assert_eq!(opened.snapshot, Some(snapshot(first)));
    let last = first + opened.records.len() as u64;
    assert_eq!(opened.records, records(first + 1..last + 1));
    (first, last)
}

/// Tries `work` on a copy of a journal with every budget until it is no longer stopped. `check`
/// gets each journal as it was left, and the result of the work.
fn stopped_everywhere(
    dir: &Path,
    work: impl Fn(&mut Journal, &Path) -> io::Result<()>,
    check: impl Fn(TempDir, Journal, io::Result<()>),
) -> u64 {
    stopped_every(1, dir, work, check)
}

/// The same, but stops at every byte only at the beginning and at the end; between them, the work
/// writes zeros over the spare file.
fn stopped_every(
    step: u64,
    dir: &Path,
    work: impl Fn(&mut Journal, &Path) -> io::Result<()>,
    check: impl Fn(TempDir, Journal, io::Result<()>),
) -> u64 {
    let mut budget = 1;
    loop {
        let dir = copy(dir);
        let mut journal = open(dir.path()).journal;
        let (done, stopped) = fault::after(budget, || work(&mut journal, dir.path()));
        assert!(stopped || done.is_ok(), "not stopped, and failed: {done:?}");
        check(dir, journal, done);
        if !stopped {
            return budget;
        }
        budget += if (64..SIZE - 800).contains(&budget) { step } else { 1 };
    }
}

/// Both files were in use before.
fn used() -> TempDir {
    let (dir, mut journal) = begun();
    journal.append_all(&records(1..6)).unwrap();
    journal.compact(&snapshot(5), &origin(), 5, 0).unwrap();
    journal.append_all(&records(6..9)).unwrap();
    dir
}

#[test]
fn a_compaction_killed_anywhere_loses_nothing() {
    let compact = |journal: &mut Journal, _: &Path| journal.compact(&snapshot(8), &origin(), 6, 0);
    let steps = stopped_everywhere(used().path(), compact, |dir, journal, done| {
        drop(journal);
        let opened = open(dir.path());
        let found = content(&opened);
        assert!(found == (5, 8) || found == (8, 8), "{found:?}");
        assert!(done.is_err() || found == (8, 8));
        assert_eq!(opened.rules, if found == (8, 8) { 6 } else { 5 });
        let live =
            |index: &usize| fs::read(file::path(dir.path(), *index)).unwrap().starts_with(&LIVE);
        assert_eq!([0, 1].iter().filter(|index| live(index)).count(), 1, "an old one stays in use");
    });
    assert!(steps > 250, "the compaction was stopped in {steps} places only");
}

#[test]
fn a_journal_goes_on_after_a_compaction_that_was_killed() {
    for target in [origin(), other_origin()] {
        let compact =
            |journal: &mut Journal, _: &Path| journal.compact(&snapshot(8), &target, 6, 0);
        stopped_every(97, used().path(), compact, |dir, journal, _| {
            drop(journal);
            let mut journal = open(dir.path()).journal;
            journal.append_all(&records(9..10)).unwrap();
            journal.compact(&snapshot(9), &origin(), 6, 0).unwrap();
            journal.append_all(&records(10..11)).unwrap();
            assert_eq!(content(&open(dir.path())), (9, 10));
        });
    }
}

#[test]
fn a_compaction_that_fails_anywhere_leaves_the_journal_in_use() {
    let compact = |journal: &mut Journal, _: &Path| journal.compact(&snapshot(8), &origin(), 6, 0);
    stopped_every(97, used().path(), compact, |dir, mut journal, done| {
        journal.append_all(&records(9..10)).unwrap();
        let first = if done.is_ok() { 8 } else { 5 };
        assert_eq!(content(&open(dir.path())), (first, 9));
        journal.compact(&snapshot(9), &origin(), 6, 0).unwrap();
        journal.append_all(&records(10..11)).unwrap();
        assert_eq!(content(&open(dir.path())), (9, 10));
    });
}

/// The other file's mark is in place, but the disk reports that it is not.
#[test]
fn a_compaction_whose_commit_fails_leaves_the_other_file_out_of_use() {
    let dir = used();
    let mut journal = open(dir.path()).journal;
    let done = fault::misreported_commit(|| journal.compact(&snapshot(8), &origin(), 6, 0));
    assert!(done.is_err());
    journal.append_all(&records(9..10)).unwrap();
    assert_eq!(content(&open(dir.path())), (5, 9));
    journal.compact(&snapshot(9), &origin(), 6, 0).unwrap();
    assert_eq!(content(&open(dir.path())), (9, 9));
}

#[test]
fn the_first_compaction_killed_anywhere_leaves_a_new_journal_or_a_whole_one() {
    let dir = scratch();
    open(dir.path());
    let compact = |journal: &mut Journal, _: &Path| journal.compact(&snapshot(0), &origin(), 5, 0);
    stopped_everywhere(dir.path(), compact, |dir, journal, done| {
        drop(journal);
        let mut opened = open(dir.path());
        assert!(done.is_err() || opened.origin.is_some());
        if opened.origin.is_none() {
            assert_eq!(opened.snapshot, None);
            opened.journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
        }
        opened.journal.append_all(&records(1..2)).unwrap();
        assert_eq!(content(&open(dir.path())), (0, 1));
    });
}

#[test]
fn a_creation_killed_anywhere_can_be_done_again() {
    for budget in 1.. {
        let dir = scratch();
        let (made, stopped) = fault::after(budget, || try_open(dir.path()));
        assert_eq!(made.is_err(), stopped);
        let opened = open(dir.path());
        assert_eq!(opened.origin, None);
        assert_eq!(names(dir.path()), ["journal.0", "journal.1"]);
        if !stopped {
            assert!(budget > 4, "it was stopped in {budget} places only");
            return;
        }
    }
}

#[test]
fn a_compaction_into_a_file_that_was_removed_leaves_the_old_file_or_the_new_one() {
    let recreate = |journal: &mut Journal, dir: &Path| {
        remove_other(journal, dir);
        journal.compact(&snapshot(8), &origin(), 6, 0)
    };
    stopped_everywhere(used().path(), recreate, |dir, mut journal, done| {
        let opened = open(dir.path());
        let found = content(&opened);
        assert!(found == (5, 8) || found == (8, 8), "{found:?}");
        drop(opened);
        if done.is_err() {
            assert_eq!(found, (5, 8));
        }
        journal.append_all(&records(9..10)).unwrap();
        assert_eq!(content(&open(dir.path())), (found.0, 9));
    });
}

#[test]
fn an_append_killed_anywhere_leaves_a_beginning_of_it() {
    let append = |journal: &mut Journal, _: &Path| journal.append_all(&records(9..13));
    stopped_everywhere(used().path(), append, |dir, journal, done| {
        drop(journal);
        let opened = open(dir.path());
        let (first, last) = content(&opened);
        assert!(first == 5 && (8..13).contains(&last));
        assert!(done.is_err() || last == 12);
        let mut journal = opened.journal;
        journal.append_all(&records(last + 1..last + 2)).unwrap();
        assert_eq!(content(&open(dir.path())), (5, last + 1));
    });
}

#[test]
fn an_append_that_fails_anywhere_is_overwritten_by_the_next() {
    let append = |journal: &mut Journal, _: &Path| journal.append_all(&records(9..13));
    stopped_everywhere(used().path(), append, |dir, mut journal, done| {
        if done.is_ok() {
            return;
        }
        // Shorter than the records that failed.
        journal.append_all(&records(9..10)).unwrap();
        assert_eq!(content(&open(dir.path())), (5, 9));
    });
}

#[test]
fn a_torn_tail_whose_cutting_is_killed_stays_a_torn_tail() {
    let (dir, mut journal) = begun();
    // A record of several pages, without its last byte.
    let long = Record { outcomes: vec![granted(1); 200], ..record(1) };
    journal.append_all(&[long]).unwrap();
    assert!(journal.appended() > 4 * file::PAGE);
    let live = journal.live.as_ref().unwrap();
    let (path, begin, end) = (live.file.path.clone(), live.begin, live.end as usize - 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[end] = 0;
    drop(journal);
    for (cut, budget) in (1..).enumerate() {
        fs::write(&path, &bytes).unwrap();
        let mut file = JournalFile::open(dir.path(), 0).unwrap().unwrap();
        file.found(end as u64);
        let (done, stopped) = fault::after(budget, || file.cut(begin));
        assert_eq!(done.is_err(), stopped);
        let opened = open(dir.path());
        assert_eq!(content(&opened), (0, 0));
        assert_eq!(opened.torn_bytes > 0, stopped);
        if !stopped {
            assert!(cut > 4, "it was stopped in {cut} places only");
            return;
        }
    }
}

#[test]
fn a_spare_file_that_vanished_is_made_again() {
    let (dir, mut journal) = begun();
    journal.append_all(&records(1..3)).unwrap();
    fs::remove_file(file::path(dir.path(), 1)).unwrap();
    assert!(!journal.vanished());
    journal.compact(&snapshot(2), &origin(), 5, 0).unwrap();
    journal.append_all(&records(3..4)).unwrap();
    assert_eq!(content(&open(dir.path())), (2, 3));
}

#[test]
fn many_compactions_alternate_and_stay_small() {
    let (dir, mut journal) = begun();
    let mut compactions = 0;
    for revision in 1..2000 {
        journal.append_all(&[record(revision)]).unwrap();
        if journal.wants_compaction() {
            compactions += 1;
            journal.compact(&snapshot(revision), &origin(), 5, 100).unwrap();
            assert_eq!(journal.live.as_ref().unwrap().file.index, compactions % 2);
        }
    }
    assert!(compactions > 50, "{compactions}");
    assert_eq!(content(&open(dir.path())).1, 1999);
    for index in 0..2 {
        assert_eq!(fs::metadata(file::path(dir.path(), index)).unwrap().len(), SIZE);
    }
}

#[test]
fn the_space_of_a_large_table_is_given_back() {
    let (dir, mut journal) = begun();
    let size = |index| fs::metadata(file::path(dir.path(), index)).unwrap().len();
    let large = 40 * file::CHUNK;
    journal.admit(0, large).unwrap();
    journal.compact(&snapshot(0), &origin(), 5, large).unwrap();
    assert!(size(0) > large && size(1) > large);
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    assert!(size(0) <= file::CHUNK && size(1) <= file::CHUNK, "{} {}", size(0), size(1));
}
