//! Whole journals: cut, damaged, stopped, killed, full.

mod compaction;
mod damage;
mod full;
mod killed;
mod lives;
pub(super) mod longest;
mod model;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use canal_core::{
    Ask, Change, Command, Entry, FrameId, Globals, Granted, GrantedItem, HostId, Item, Key,
    Outcome, Owner, ProcessId, Request, RequestId, Settings, SlotRange, Slots, Tag, Token,
    UnixMillis, View, Wait,
};

/// The size of these tests' files: small, so that tests can try much of them.
const SIZE: u64 = 8192;

fn origin() -> Origin {
    Origin { boot_id: "this-boot".into(), pid_namespace: 7, time_namespace: 8 }
}

fn other_origin() -> Origin {
    Origin { boot_id: "an-older-boot".into(), ..origin() }
}

/// A table after this many entries, each of which stored a size.
fn snapshot(revision: u64) -> Snapshot {
    let key = Key::new(&format!("after/{revision}")).unwrap();
    let view = Some(View::Slots { slots: revision });
    let settings = [(key, Settings { view, ..Settings::default() })].into();
    let (revision, next_token) = (Revision(revision), Token(revision));
    let globals = Globals { revision, next_token, ..Globals::default() };
    Snapshot { globals, settings, ..Snapshot::default() }
}

impl Journal {
    pub(super) fn append_all(&mut self, records: &[Record]) -> io::Result<()> {
        let mut batch = Batch::default();
        records.iter().for_each(|it| batch.push(it.revision, &it.entry, &it.outcomes));
        self.append(&batch)
    }
}

/// The record of a revision: always the same for one revision, with several kinds.
fn record(revision: u64) -> Record {
    let request = RequestId(revision);
    let frame = FrameId(revision);
    let (change, outcomes) = match revision % 3 {
        0 => (Change::Request(Arc::new(asked(revision))), vec![granted(revision)]),
        1 => (Change::Withdraw { request }, vec![]),
        _ => (Change::End { frame }, vec![Outcome::FrameGone { frame }]),
    };
    let entry = Entry { version: 1, at: UnixMillis(1_700_000_000_000 + revision), change };
    Record { revision: Revision(revision), entry, outcomes }
}

fn records(revisions: std::ops::Range<u64>) -> Vec<Record> {
    revisions.map(record).collect()
}

fn asked(revision: u64) -> Request {
    let ask = Ask::slots(1, Some(View::Buckets { per: 3, buckets: 2 }));
    Request {
        tag: Tag(revision.into()),
        host: HostId(0),
        owner: Owner::Process(ProcessId { pid: 77, started: revision, inode: 0 }),
        parent: None,
        uid: 1000,
        command: Command("make \"it\"\n".into()),
        note: None,
        items: vec![Item { key: Key::new("db/ä").unwrap(), ask }],
        wait: Wait::Yes { until: None },
        priority: 0,
        max_waiting: None,
        supersede: None,
        max_run_ms: None,
        provisional: false,
        children: false,
        ttl_ms: None,
        on_lost: Default::default(),
        asker: None,
        over_nodes: None,
        above: None,
    }
}

fn granted(revision: u64) -> Outcome {
    let view = View::Buckets { per: 3, buckets: 2 };
    let slots = Slots(vec![SlotRange(2, 2)]);
    Outcome::Granted(Granted {
        request: RequestId(revision),
        frame: FrameId(revision),
        token: Token(revision),
        items: vec![GrantedItem { acquired: 3, slots, shared: false, view: Some(view) }],
        bypassed_blockers: false,
    })
}

fn try_open(dir: &Path) -> Result<Opened, OpenError> {
    open::open(dir, SIZE)
}

fn open(dir: &Path) -> Opened {
    try_open(dir).unwrap()
}

/// A directory in memory if possible: these tests create thousands.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A journal whose snapshot is that of revision 0.
fn begun() -> (TempDir, Journal) {
    let dir = scratch();
    let mut journal = open(dir.path()).journal;
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    (dir, journal)
}

/// Copies the files of a journal into a new directory.
fn copy(dir: &Path) -> TempDir {
    let to = scratch();
    for index in 0..2 {
        let from = file::path(dir, index);
        if from.exists() {
            fs::copy(from, file::path(to.path(), index)).unwrap();
        }
    }
    to
}

fn names(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap();
    let name = |file: io::Result<fs::DirEntry>| file.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = files.map(name).collect();
    names.sort();
    names
}

#[test]
fn a_new_journal_is_two_private_files_that_have_their_space() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Journal::open(dir.path()).unwrap();
    assert_eq!(opened.origin, None);
    assert_eq!(opened.snapshot, None);
    assert!(opened.records.is_empty());
    assert!(opened.journal.wants_compaction());
    assert_eq!(names(dir.path()), ["journal.0", "journal.1"]);
    for index in 0..2 {
        let file = fs::metadata(file::path(dir.path(), index)).unwrap();
        assert_eq!(file.len(), FILE_BYTES);
        assert!(file.blocks() * 512 >= FILE_BYTES, "{file:?}");
        assert_eq!(file.permissions().mode() & 0o7777, 0o600);
    }
}

#[test]
fn a_new_journal_takes_no_record_before_its_first_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path()).journal;
    assert!(journal.append_all(&records(1..2)).is_err());
    drop(journal);
    assert_eq!(open(dir.path()).snapshot, None);
}

#[test]
fn appended_records_are_found() {
    let (dir, mut journal) = begun();
    journal.append_all(&records(1..4)).unwrap();
    journal.append_all(&[]).unwrap();
    journal.append_all(&records(4..5)).unwrap();
    drop(journal);
    let opened = open(dir.path());
    assert_eq!(opened.origin, Some(origin()));
    assert_eq!(opened.rules, 5);
    assert_eq!(opened.snapshot, Some(snapshot(0)));
    assert_eq!(opened.records, records(1..5));
    assert_eq!(opened.torn_bytes, 0);
    let mut journal = opened.journal;
    journal.append_all(&records(5..6)).unwrap();
    assert_eq!(open(dir.path()).records, records(1..6));
}

#[test]
fn records_that_do_not_follow_are_refused() {
    let (dir, mut journal) = begun();
    assert!(journal.append_all(&records(2..3)).is_err());
    journal.append_all(&records(1..2)).unwrap();
    assert!(journal.append_all(&[record(2), record(4)]).is_err());
    journal.append_all(&records(2..3)).unwrap();
    assert_eq!(open(dir.path()).records, records(1..3));
}

#[test]
fn a_large_turn_makes_the_file_grow() {
    let (dir, mut journal) = begun();
    let many = records(1..500);
    journal.append_all(&many).unwrap();
    assert!(journal.appended() > SIZE);
    assert!(journal.wants_compaction());
    assert_eq!(open(dir.path()).records, many);
}

#[test]
fn a_discarded_journal_is_moved_aside_and_a_new_one_begins() {
    let (dir, mut journal) = begun();
    journal.append_all(&records(1..3)).unwrap();
    drop(journal);
    let content = fs::read(file::path(dir.path(), 0)).unwrap();
    let moved = Journal::discard(dir.path()).unwrap();
    // The file in use comes last.
    let stem = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(stem(&moved[0]).starts_with("journal.1.discarded-"), "{moved:?}");
    assert!(stem(&moved[1]).starts_with("journal.0.discarded-"), "{moved:?}");
    assert_eq!(moved.len(), 2);
    assert_eq!(fs::read(&moved[1]).unwrap(), content);
    assert_eq!(open(dir.path()).snapshot, None);
    // Another one within the same second overwrites no name.
    let again = Journal::discard(dir.path()).unwrap();
    assert_eq!(names(dir.path()).len(), 4);
    assert!(again.iter().all(|path| !moved.contains(path)));
    assert_eq!(Journal::discard(dir.path()).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_link_or_a_directory_in_its_place_is_refused() {
    let (dir, journal) = begun();
    drop(journal);
    let (live, elsewhere) = (file::path(dir.path(), 0), dir.path().join("elsewhere"));
    fs::rename(&live, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &live).unwrap();
    let error = try_open(dir.path()).unwrap_err();
    assert!(matches!(&error, OpenError::Io { path, .. } if *path == live), "{error}");
    fs::remove_file(&live).unwrap();
    fs::create_dir(&live).unwrap();
    assert!(
        matches!(try_open(dir.path()).unwrap_err(), OpenError::Io { path, .. } if path == live)
    );
}

/// Removes the file that is not in use.
fn remove_other(journal: &Journal, dir: &Path) {
    let index = journal.live.as_ref().map_or(0, |live| 1 - live.file.index);
    let _ = fs::remove_file(file::path(dir, index));
}

#[test]
fn vanished_files_are_noticed_and_recreated() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    fs::create_dir(&dir).unwrap();
    let mut journal = open(&dir).journal;
    assert!(!journal.vanished());
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    journal.append_all(&records(1..3)).unwrap();
    assert!(!journal.vanished());
    fs::remove_dir_all(&dir).unwrap();
    assert!(journal.vanished());
    // No directory: unchanged, and still open for appending.
    assert!(journal.compact(&snapshot(2), &origin(), 5, 0).is_err());
    journal.append_all(&records(3..4)).unwrap();
    fs::create_dir(&dir).unwrap();
    assert!(journal.vanished());
    journal.compact(&snapshot(3), &origin(), 5, 0).unwrap();
    assert!(!journal.vanished());
    journal.append_all(&records(4..6)).unwrap();
    let found = open(&dir);
    assert_eq!((found.snapshot, found.records), (Some(snapshot(3)), records(4..6)));
    journal.compact(&snapshot(5), &origin(), 5, 0).unwrap();
    journal.append_all(&records(6..7)).unwrap();
    let found = open(&dir);
    assert_eq!((found.snapshot, found.records), (Some(snapshot(5)), records(6..7)));
}

#[test]
fn another_file_under_its_name_counts_as_vanished() {
    let (dir, journal) = begun();
    let live = file::path(dir.path(), 0);
    let content = fs::read(&live).unwrap();
    fs::write(dir.path().join("copy"), content).unwrap();
    fs::rename(dir.path().join("copy"), live).unwrap();
    assert!(journal.vanished());
}

#[test]
fn a_borrowed_record_is_written_as_the_record_itself() {
    for record in records(1..10) {
        let Record { revision, entry, outcomes } = &record;
        let borrowed = Record { revision: *revision, entry, outcomes };
        let written = serde_json::to_string(&borrowed).unwrap();
        assert_eq!(written, serde_json::to_string(&record).unwrap());
    }
}

#[test]
fn a_batch_is_cut_between_its_records() {
    let (dir, mut journal) = begun();
    let mut batch = Batch::default();
    records(1..6).iter().for_each(|it| batch.push(it.revision, &it.entry, &it.outcomes));
    batch.truncate(3);
    assert_eq!(batch.len(), 3);
    journal.append(&batch).unwrap();
    assert_eq!(open(dir.path()).records, records(1..4));
}
