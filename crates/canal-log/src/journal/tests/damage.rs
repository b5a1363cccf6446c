//! Cut or changed files: recovery finds either the records or the damage.

use super::*;

/// A small journal with four records, its bytes, and the end of each record.
fn small() -> (TempDir, Vec<u8>, Vec<usize>) {
    let (dir, mut journal) = begun();
    let mut ends = vec![journal.live.as_ref().unwrap().end as usize];
    for revision in 1..5 {
        journal.append_all(&[record(revision)]).unwrap();
        ends.push(journal.live.as_ref().unwrap().end as usize);
    }
    drop(journal);
    let bytes = fs::read(file::path(dir.path(), 0)).unwrap();
    (dir, bytes, ends)
}

fn damage(dir: &Path) -> (PathBuf, u64, Option<Origin>) {
    match try_open(dir) {
        Err(OpenError::Damaged { path, offset, .. }) => (path, offset, last_origin(dir)),
        other => panic!("not damaged: {other:?}"),
    }
}

#[test]
fn cut_at_any_byte_it_holds_exactly_the_records_that_were_whole() {
    let (dir, whole, ends) = small();
    let live = file::path(dir.path(), 0);
    for cut in ends[0]..=ends[4] {
        let mut bytes = whole.clone();
        bytes[cut..].fill(0);
        fs::write(&live, &bytes).unwrap();
        let kept = ends.iter().filter(|end| **end <= cut).count();
        let opened = open(dir.path());
        assert_eq!(opened.records, records(1..kept as u64), "cut at {cut}");
        let torn = &bytes[ends[kept - 1]..cut];
        let written = torn.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        assert_eq!(opened.torn_bytes, written as u64, "cut at {cut}");
        // The tail is gone for good, and the next record takes its place.
        let next = record(kept as u64);
        let mut journal = opened.journal;
        journal.append_all(std::slice::from_ref(&next)).unwrap();
        drop(journal);
        let opened = open(dir.path());
        assert_eq!(opened.torn_bytes, 0, "cut at {cut}");
        assert_eq!(opened.records.last(), Some(&next), "cut at {cut}");
        assert_eq!(opened.records.len(), kept, "cut at {cut}");
    }
}

#[test]
fn cut_before_its_records_it_is_damaged() {
    let (dir, whole, ends) = small();
    let live = file::path(dir.path(), 0);
    for cut in 1..ends[0] {
        let mut bytes = whole.clone();
        bytes[cut..].fill(0);
        fs::write(&live, &bytes).unwrap();
        let (path, offset, _) = damage(dir.path());
        assert_eq!(path, live, "cut at {cut}");
        assert!(offset <= cut as u64, "cut at {cut}, found at {offset}");
        assert_eq!(fs::read(&live).unwrap(), bytes, "a damaged file was changed");
    }
}

#[test]
fn a_file_that_was_truncated_is_damaged_wherever() {
    let (dir, whole, ends) = small();
    let live = file::path(dir.path(), 0);
    let page = file::PAGE as usize;
    let ends = ends.into_iter().flat_map(|end| [end - 1, end, end + 1]);
    for length in ends.chain([0, 1, 7, 8, 16, page, whole.len() - 1]) {
        fs::write(&live, &whole[..length]).unwrap();
        assert_eq!(damage(dir.path()).0, live, "truncated to {length}");
    }
}

/// The changes of one byte to try.
fn changes(byte: u8) -> impl Iterator<Item = u8> {
    let changes = [byte ^ 1, byte ^ 0x20, byte ^ 0x80, !byte, 0];
    changes.into_iter().filter(move |change| *change != byte)
}

#[test]
fn no_change_of_a_byte_is_taken_for_other_content() {
    let (dir, whole, ends) = small();
    let live = file::path(dir.path(), 0);
    let trailer = ends[4] - 1;
    for at in 0..ends[4] {
        for change in changes(whole[at]) {
            let mut bytes = whole.clone();
            bytes[at] = change;
            fs::write(&live, &bytes).unwrap();
            if at == trailer && change == 0 {
                // A last record without a trailer is the trace of a kill.
                let opened = open(dir.path());
                assert_eq!(opened.records, records(1..4));
                assert_eq!(opened.torn_bytes as usize, ends[4] - ends[3] - 1);
                continue;
            }
            let (path, offset, _) = damage(dir.path());
            assert_eq!(path, live);
            // Where its record begins, or within the bytes that its length claims.
            assert!(offset <= ends[4] as u64, "{at}: found at {offset}");
            assert_eq!(fs::read(&live).unwrap(), bytes, "a damaged file was changed");
        }
    }
}

#[test]
fn a_byte_behind_the_last_record_loses_nothing() {
    let (dir, whole, ends) = small();
    let live = file::path(dir.path(), 0);
    let near = ends[4]..ends[4] + 400;
    let far = (near.end..whole.len()).step_by(97);
    for at in near.chain(far) {
        let mut bytes = whole.clone();
        bytes[at] = 0x20;
        fs::write(&live, &bytes).unwrap();
        match try_open(dir.path()) {
            Ok(opened) => assert_eq!(opened.records, records(1..5), "{at}"),
            Err(OpenError::Damaged { path, offset, .. }) => {
                assert_eq!(path, live);
                assert!((at as u64 - 3..=at as u64).contains(&offset), "{at}: found at {offset}");
            }
            Err(other) => panic!("{at}: {other}"),
        }
    }
}

#[test]
fn no_changed_byte_brings_back_records_from_before_a_compaction() {
    // As after a kill between the two marks: both files are in use, one of them older.
    let (dir, mut journal) = begun();
    journal.append_all(&records(1..3)).unwrap();
    let older = fs::read(file::path(dir.path(), 0)).unwrap();
    journal.append_all(&records(3..4)).unwrap();
    journal.compact(&snapshot(3), &origin(), 5, 0).unwrap();
    drop(journal);
    let newer = fs::read(file::path(dir.path(), 1)).unwrap();
    let files = [(0, &older), (1, &newer)];
    for (index, file) in files {
        let used = file.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        for at in 0..used {
            for change in changes(file[at]) {
                for (index, file) in files {
                    fs::write(file::path(dir.path(), index), file).unwrap();
                }
                let mut bytes = file.clone();
                bytes[at] = change;
                fs::write(file::path(dir.path(), index), &bytes).unwrap();
                match try_open(dir.path()) {
                    Ok(opened) => {
                        assert_eq!(opened.snapshot, Some(snapshot(3)), "file {index} at {at}");
                        assert!(opened.records.is_empty());
                    }
                    Err(OpenError::Damaged { .. }) => {}
                    Err(other) => panic!("file {index} at {at}: {other}"),
                }
            }
        }
    }
}

#[test]
fn a_revision_that_is_missing_is_damage() {
    let (dir, mut journal) = begun();
    journal.append_all(&records(1..3)).unwrap();
    let live = journal.live.as_mut().unwrap();
    let (gap, before) = (live.end, live.revision);
    live.revision = Revision(before.0 + 1);
    journal.append_all(&records(4..5)).unwrap();
    drop(journal);
    assert_eq!(damage(dir.path()).1, gap);
    let error = try_open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("found revision 4 instead of 3"), "{error}");
}

/// A journal with one record that has this JSON.
fn with_payload(json: &serde_json::Value) -> TempDir {
    let (dir, mut journal) = begun();
    let live = journal.live.as_mut().unwrap();
    let mut bytes = Vec::new();
    format::encode(&mut bytes, json).unwrap();
    live.file.append(live.end, &bytes).unwrap();
    dir
}

#[test]
fn entries_of_a_later_version_are_refused_as_such() {
    let mut later = serde_json::to_value(record(1)).unwrap();
    later["e"]["v"] = 2.into();
    let newer = |dir: TempDir| match try_open(dir.path()) {
        Err(OpenError::Newer { path, found: 2, known: 1 }) => path == file::path(dir.path(), 0),
        other => panic!("{other:?}"),
    };
    assert!(newer(with_payload(&later)));
    later["e"]["do"] = serde_json::json!({"something-of-tomorrow": {"x": 1}});
    assert!(newer(with_payload(&later)));
    later["e"]["v"] = 1.into();
    damage(with_payload(&later).path());
}

#[test]
fn fields_that_are_unknown_are_let_pass() {
    let mut more = serde_json::to_value(record(1)).unwrap();
    more["x"] = 1.into();
    more["e"]["x"] = 1.into();
    assert_eq!(open(with_payload(&more).path()).records, records(1..2));
}

#[test]
fn a_file_in_use_that_is_gone_is_not_taken_for_a_new_journal() {
    let (dir, mut journal) = begun();
    let gone = |dir: &Path, index: usize| {
        let dir = copy(dir);
        fs::remove_file(file::path(dir.path(), index)).unwrap();
        (damage(dir.path()).0, file::path(dir.path(), index))
    };
    // Before the other file was ever used.
    let (found, expected) = gone(dir.path(), 0);
    assert_eq!(found, expected);
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    let (found, expected) = gone(dir.path(), 1);
    assert_eq!(found, expected);
    journal.compact(&snapshot(0), &origin(), 5, 0).unwrap();
    let (found, expected) = gone(dir.path(), 0);
    assert_eq!(found, expected);
}

#[test]
fn a_spare_file_that_is_gone_or_empty_is_made_again_by_the_next_compaction() {
    for empty in [false, true] {
        let (dir, mut journal) = begun();
        journal.append_all(&records(1..3)).unwrap();
        drop(journal);
        let spare = file::path(dir.path(), 1);
        match empty {
            true => drop(fs::File::create(&spare).unwrap()),
            false => fs::remove_file(&spare).unwrap(),
        }
        let opened = open(dir.path());
        assert_eq!(opened.records, records(1..3));
        let mut journal = opened.journal;
        journal.compact(&snapshot(2), &origin(), 5, 0).unwrap();
        journal.append_all(&records(3..4)).unwrap();
        drop(journal);
        let opened = open(dir.path());
        assert_eq!((opened.snapshot, opened.records), (Some(snapshot(2)), records(3..4)));
        assert!(fs::metadata(spare).unwrap().len() >= SIZE);
    }
}

#[test]
fn junk_is_damage_and_stays_as_it_is() {
    for junk in [&b"x"[..], b"hello, world, this is not a journal", &[0xff; 9000]] {
        let dir = tempfile::tempdir().unwrap();
        let path = file::path(dir.path(), 0);
        fs::write(&path, junk).unwrap();
        assert_eq!(damage(dir.path()), (path.clone(), 0, None));
        assert_eq!(fs::read(path).unwrap(), junk);
        assert_eq!(names(dir.path()), ["journal.0"]);
    }
}

#[test]
fn damage_is_reported_with_the_last_writer_if_readable() {
    let (dir, mut journal) = begun();
    let zero = |dir: &Path, index: usize, from: usize, to: usize| {
        let path = file::path(dir, index);
        let mut bytes = fs::read(&path).unwrap();
        bytes[from..to].fill(0);
        fs::write(path, bytes).unwrap();
    };
    journal.append_all(&records(1..4)).unwrap();
    let first = copy(dir.path());
    let records_begin = journal.live.as_ref().unwrap().begin as usize;
    zero(first.path(), 0, records_begin, records_begin + 40);
    assert_eq!(damage(first.path()).2, Some(origin()));
    // A power cut lost the first page of the file in use; the other one still has the origin.
    journal.compact(&snapshot(3), &origin(), 5, 0).unwrap();
    journal.append_all(&records(4..6)).unwrap();
    let second = copy(dir.path());
    zero(second.path(), 1, 0, 100);
    assert_eq!(damage(second.path()).2, Some(origin()));
    // But a file of an older boot never describes this boot's.
    journal.compact(&snapshot(5), &other_origin(), 5, 0).unwrap();
    journal.append_all(&records(6..7)).unwrap();
    let third = copy(dir.path());
    zero(third.path(), 0, 0, 100);
    assert_eq!(damage(third.path()).2, None);
}
