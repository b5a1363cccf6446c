//! A full disk refuses only new requests.

use std::process::Command as Program;

use super::*;
use crate::sim::disk_faults as fault;
use canal_sys::rerun;

#[test]
fn no_room_for_a_new_journal_is_an_error_that_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fault::disk(Some(SIZE - 1));
    let error = try_open(dir.path()).unwrap_err();
    fault::disk(None);
    assert!(matches!(&error, OpenError::Io { path, .. } if *path == file::path(dir.path(), 0)));
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn a_full_disk_refuses_newcomers_and_still_takes_ends() {
    let (dir, mut journal) = begun();
    fault::disk(Some(SIZE));
    let each = encoded(&record(3));
    let (mut revision, mut reserve) = (0, 0);
    let refused = loop {
        match journal.admit(each, reserve + each) {
            Ok(()) => reserve += each,
            Err(no_room) => break no_room,
        }
        revision += 1;
        journal.append_all(&[record(revision)]).unwrap();
    };
    assert_eq!(refused.dir, dir.path());
    assert!(revision > 3, "only {revision} were let in");
    // A compaction makes room on the same full disk: the records shrink to a snapshot.
    journal.compact(&snapshot(revision), &origin(), 5, reserve).unwrap();
    journal.admit(each, reserve + each).unwrap();
    // Everything that was promised can be written.
    while reserve >= each {
        revision += 1;
        reserve -= each;
        journal.append_all(&[record(revision)]).unwrap();
    }
    fault::disk(None);
    assert_eq!(open(dir.path()).records.last(), Some(&record(revision)));
}

#[test]
fn a_compaction_without_room_fails_and_is_not_asked_for_at_once() {
    let (dir, mut journal) = begun();
    let mut revision = 0;
    let mut append_until_wanted = |journal: &mut Journal| {
        while !journal.wants_compaction() {
            revision += 1;
            journal.append_all(&[record(revision)]).unwrap();
        }
        revision
    };
    let first = append_until_wanted(&mut journal);
    fault::disk(Some(SIZE));
    let error = journal.compact(&snapshot(first), &origin(), 5, SIZE).unwrap_err();
    fault::disk(None);
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(!journal.wants_compaction());
    let second = append_until_wanted(&mut journal);
    assert!(second > first + 2);
    journal.compact(&snapshot(second), &origin(), 5, SIZE).unwrap();
    assert_eq!(open(dir.path()).snapshot, Some(snapshot(second)));
}

fn encoded(record: &Record) -> u64 {
    let mut bytes = Vec::new();
    format::encode(&mut bytes, record).unwrap();
    bytes.len() as u64
}

/// A directory where [`full_disk`] plays.
const DISK: &str = "CANAL_TEST_DISK";

#[test]
fn a_really_full_disk_refuses_newcomers_and_still_takes_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=3m,mode=700 tmpfs \"${DISK}\" &&");
    let scene = rerun::command("journal::tests::full::full_disk", &mount);
    let mut program = Program::new("unshare");
    program.args(["--mount", "--map-root-user"]).arg(scene.get_program()).args(scene.get_args());
    program.envs(scene.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = program.env(DISK, dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare:") || said.contains("mount:") {
        return crate::isolation::skipped(&format!("no mount of our own here: {said}"));
    }
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "a scene"]
fn full_disk() {
    if !rerun::plays("journal::tests::full::full_disk") {
        return;
    }
    let dir = PathBuf::from(std::env::var_os(DISK).unwrap());
    // 3 MiB: two files of 1 MiB, and the rest belongs to others.
    let mut journal = Journal::open(&dir).unwrap().journal;
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    let ballast = fs::File::create(dir.join("ballast")).unwrap();
    let full = io::copy(&mut io::repeat(1), &mut &ballast).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);

    let each = encoded(&record(3));
    let (mut revision, mut reserve) = (0, 0);
    let no_room = loop {
        match journal.admit(each, reserve + each) {
            Ok(()) => reserve += each,
            Err(no_room) => break no_room,
        }
        revision += 1;
        journal.append_all(&[record(revision)]).unwrap();
    };
    assert_eq!(no_room.error.kind(), io::ErrorKind::StorageFull, "{no_room}");
    // Admitted requests fill the file; the full disk has cost none of it.
    assert!(reserve > FILE_BYTES / 3, "{reserve}");
    for _ in 0..10 {
        journal.compact(&snapshot(revision), &origin(), 5, reserve).unwrap();
    }
    while reserve >= each {
        revision += 1;
        reserve -= each;
        journal.append_all(&[record(revision)]).unwrap();
    }
    drop(journal);
    let opened = Journal::open(&dir).unwrap();
    assert_eq!(opened.records.last(), Some(&record(revision)));
    // A second journal finds no room at all.
    let second = dir.join("second");
    fs::create_dir(&second).unwrap();
    let error = Journal::open(&second).unwrap_err();
    assert!(
        matches!(&error, OpenError::Io { error, .. } if error.kind() == io::ErrorKind::StorageFull)
    );
    assert_eq!(names(&second), Vec::<String>::new());
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_like_a_full_disk() {
    // Less than a file of the journal; the daemon ignores SIGXFSZ.
    rerun::run("journal::tests::full::limited", "trap '' XFSZ; ulimit -f 1500;");
}

#[test]
#[ignore = "a scene"]
fn limited() {
    if !rerun::plays("journal::tests::full::limited") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let error = Journal::open(dir.path()).unwrap_err();
    assert!(
        matches!(&error, OpenError::Io { error, .. } if error.kind() == io::ErrorKind::FileTooLarge)
    );
    assert_eq!(names(dir.path()), Vec::<String>::new());
    let mut journal = open(dir.path()).journal;
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    let no_room = journal.admit(0, FILE_BYTES).unwrap_err();
    assert_eq!(no_room.error.kind(), io::ErrorKind::FileTooLarge, "{no_room}");
    journal.append_all(&records(1..3)).unwrap();
    assert_eq!(open(dir.path()).records, records(1..3));
}
