use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::sim::disk_faults as fault;
use canal_core::{
    Ask, Command, FrameId, HeldItem, HostId, Item, Key, LeaseId, LeaseState, Mode, Owner, Request,
    RequestId, SlotRange, Slots, Tag, UnixMillis, View, Wait,
};
use canal_sys::rerun;

/// The lease with this token; the same lease at each call.
fn lease(token: u64) -> HeldLease {
    let key = Key::new(&format!("jobs/{token}/ä\n").replace('\n', "\"")).unwrap();
    let owner = Owner::Lease(LeaseId(token.into()));
    let view = Some(View::Slots { slots: 3 });
    let asked = Request {
        tag: Tag(token.into()),
        host: HostId(0),
        owner: owner.clone(),
        parent: None,
        uid: 1000,
        command: Command("make \"it\"\n".into()),
        note: None,
        items: vec![Item { key: key.clone(), ask: Ask::slots(1, view) }],
        wait: Wait::No,
        priority: 0,
        max_waiting: None,
        supersede: None,
        max_run_ms: None,
        provisional: false,
        children: false,
        ttl_ms: Some(60_000),
        on_lost: Default::default(),
        asker: None,
        over_nodes: None,
        above: None,
    };
    let slots = Slots(vec![SlotRange(0, 0)]);
    let (mode, shared, stated) = (Mode::Counted, false, view);
    let item = HeldItem { key, mode, slots, shared, view, stated };
    let lease = Some(LeaseState { ttl_ms: 60_000, renewals: 0, renewed: None });
    let frame = FrameId(token);
    HeldLease {
        frame: FrameState {
            id: frame,
            host: HostId(0),
            owner,
            parent: None,
            uid: 1000,
            ended: false,
            lease,
        },
        hold: HoldState {
            token: Token(token),
            request: RequestId(token),
            asked: Arc::new(asked),
            frame,
            since: UnixMillis(token),
            asked_at: UnixMillis(token),
            provisional: false,
            orphaned: false,
            passed: 0,
            items: vec![item],
        },
    }
}

fn leases(tokens: &[u64]) -> Vec<HeldLease> {
    tokens.iter().copied().map(lease).collect()
}

fn changes(ended: &[u64], held: &[u64]) -> Changes {
    Changes { ended: ended.iter().copied().map(Token).collect(), held: leases(held) }
}

/// A log that appends from now on.
fn begun(tokens: &[u64]) -> (TempDir, LeaseLog) {
    let dir = tempfile::tempdir().unwrap();
    let Opened { mut log, leases: found, torn_bytes } = LeaseLog::open(dir.path()).unwrap();
    assert_eq!((found, torn_bytes), (None, 0));
    log.write_anew(leases(tokens)).unwrap();
    (dir, log)
}

impl LeaseLog {
    fn append_all(&mut self, ended: &[u64], held: &[u64]) -> io::Result<()> {
        self.store(changes(ended, held), || panic!("it is appended to"))
    }
}

fn found(dir: &Path) -> Result<(Vec<u64>, u64), OpenError> {
    let Opened { leases, torn_bytes, .. } = LeaseLog::open(dir)?;
    let leases = leases.unwrap_or_default();
    leases.iter().for_each(|(token, it)| assert_eq!(*it, lease(token.0)));
    Ok((leases.into_keys().map(|token| token.0).collect(), torn_bytes))
}

/// The content of a file with these bytes.
fn said(bytes: &[u8]) -> Result<(Vec<u64>, u64), OpenError> {
    let (leases, end) = held(Path::new(NAME), bytes)?;
    let tokens = leases.into_keys().map(|token| token.0).collect();
    Ok((tokens, (bytes.len() - end) as u64))
}

fn whole(dir: &Path) -> Vec<u64> {
    let (tokens, torn) = found(dir).unwrap();
    assert_eq!(torn, 0);
    tokens
}

fn file(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// The length of the file after each append, and the leases at that point.
fn grown() -> (TempDir, Vec<(usize, Vec<u64>)>) {
    let (dir, mut log) = begun(&[1, 2]);
    let mut states = vec![(log.end as usize, vec![1, 2])];
    for (ended, held, now) in [
        (&[][..], &[3][..], &[1, 2, 3][..]),
        (&[1], &[], &[2, 3]),
        (&[2, 3], &[4, 5, 6], &[4, 5, 6]),
        // A token that no client received is used again.
        (&[6], &[6], &[4, 5, 6]),
    ] {
        log.append_all(ended, held).unwrap();
        states.push((log.end as usize, now.to_vec()));
    }
    (dir, states)
}

#[test]
fn stored_leases_are_found() {
    let (dir, states) = grown();
    assert_eq!(whole(dir.path()), states.last().unwrap().1);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(file(dir.path())).unwrap().permissions(),
    );
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn a_file_cut_at_any_byte_has_the_leases_stored_until_then() {
    let (dir, states) = grown();
    let bytes = fs::read(file(dir.path())).unwrap();
    let begin = states[0].0;
    for cut in begin..=bytes.len() {
        let (end, tokens) = states.iter().rfind(|(end, _)| *end <= cut).unwrap();
        // The bytes after the cut are missing, or are zeros.
        for len in [cut, bytes.len(), bytes.len() + 5000] {
            let mut left = bytes[..cut].to_vec();
            left.resize(len, 0);
            let expected = (tokens.clone(), (len - end) as u64);
            assert_eq!(said(&left).unwrap(), expected, "cut at {cut}");
        }
    }
    // Frames that were written together are never torn.
    for cut in 0..begin {
        let error = said(&bytes[..cut]).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "cut at {cut}: {error}");
    }
}

#[test]
fn any_sectors_of_the_last_append_may_be_missing_after_a_power_cut() {
    let (dir, mut log) = begun(&[]);
    log.append_all(&[], &[1]).unwrap();
    let before = log.end as usize;
    log.append_all(&[], &[2, 3, 4, 5]).unwrap();
    let bytes = fs::read(file(dir.path())).unwrap();
    let sectors: Vec<usize> = (before / 512..=(bytes.len() - 1) / 512).collect();
    assert!(sectors.len() >= 4, "{sectors:?}");
    for missing in 1..1_u32 << sectors.len() {
        let mut left = bytes.clone();
        for (bit, sector) in sectors.iter().enumerate() {
            if missing & 1 << bit != 0 {
                let (from, to) = ((sector * 512).max(before), (sector + 1) * 512);
                left[from..to.min(bytes.len())].fill(0);
            }
        }
        assert_eq!(said(&left).unwrap().0, [1], "{missing:b}");
    }
}

#[test]
fn any_other_byte_in_a_frame_that_others_follow_is_damage() {
    let (dir, states) = grown();
    let whole = fs::read(file(dir.path())).unwrap();
    let last = states[states.len() - 2].0;
    for at in 0..last {
        for flip in [1, 0x20, 0x80, whole[at]] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip.max(1);
            let read = said(&bytes);
            assert!(matches!(read, Err(OpenError::Damaged { .. })), "{at} ^ {flip}");
        }
    }
}

#[test]
fn a_later_version_is_refused_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    format::encode(&mut bytes, &Header { version: 2, frames: 0 }).unwrap();
    fs::write(file(dir.path()), bytes).unwrap();
    let error = found(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
}

#[test]
fn one_more_lease_costs_as_much_with_ten_thousand_as_with_none() {
    let many: Vec<u64> = (1..=10_000).collect();
    let (dir, mut log) = begun(&many);
    let length = || fs::metadata(file(dir.path())).unwrap().len();
    let before = length();
    log.append_all(&[], &[10_001]).unwrap();
    assert!(length() - before < 2048, "{}", length() - before);
    assert_eq!(whole(dir.path()).len(), 10_001);
}

#[test]
fn the_file_is_rewritten_when_most_of_its_leases_have_ended() {
    let (dir, mut log) = begun(&[1]);
    let (mut anew, mut written) = (0, 0);
    for token in 2..3000 {
        let before = log.end;
        let all = || {
            anew += 1;
            leases(&[token])
        };
        log.store(changes(&[token - 1], &[token]), all).unwrap();
        written += if log.end > before { log.end - before } else { log.end };
        assert!(log.end < 2 * log.live_bytes + APPENDED_MIN + 2048);
    }
    assert!(anew > 2, "{anew}");
    assert!(log.live_bytes < 2048, "{}", log.live_bytes);
    assert!(written < 3000 * 2048, "{written}");
    assert_eq!(whole(dir.path()), [2999]);
}

/// Stores changes, and is stopped after `budget` bytes and steps unless it ends before.
fn stop_after(budget: u64, anew: bool) -> bool {
    let (dir, mut log) = begun(&[1, 2]);
    log.append_all(&[1], &[3]).unwrap();
    if anew {
        log.file = None;
    }
    let (stored, stopped) =
        fault::after(budget, || log.store(changes(&[2], &[4]), || leases(&[3, 4])));
    let (left, _) = found(dir.path()).unwrap();
    assert!(left == [3, 4] || left == [2, 3] && stored.is_err(), "{budget}: {left:?}");
    // Either this process continues, or the next one.
    for mut log in [log, LeaseLog::open(dir.path()).unwrap().log] {
        log.store(changes(&[2], &[4, 5]), || leases(&[3, 4, 5])).unwrap();
        assert_eq!(whole(dir.path()), [3, 4, 5]);
    }
    rerun::wait_until("nothing is left behind", || {
        drop(LeaseLog::open(dir.path()));
        fs::read_dir(dir.path()).unwrap().count() == 1
    });
    stopped
}

#[test]
fn a_store_that_is_stopped_anywhere_loses_nothing_that_was_stored_before() {
    // First with an append, then with a rewritten file.
    for anew in [false, true] {
        let ended = if anew { Vec::new() } else { vec![Token(2)] };
        let held = leases(if anew { &[3, 4] } else { &[4] });
        let mut bytes = Vec::new();
        format::encode(&mut bytes, &Changes { ended, held }).unwrap();
        let written = bytes.len() as u64;
        for part in 0..8 {
            assert!(stop_after(1 + part * written / 8, anew));
        }
        // From here, stops after each byte and each step, to the end.
        let mut budget = written - 3;
        while stop_after(budget, anew) {
            budget += if anew && budget < written { 16 } else { 1 };
        }
        assert!(budget > written, "{budget}");
    }
}

#[test]
fn a_file_replaced_or_removed_by_another_process_is_recreated() {
    let (dir, mut log) = begun(&[1]);
    fs::remove_file(file(dir.path())).unwrap();
    log.store(changes(&[], &[2]), || leases(&[1, 2])).unwrap();
    assert_eq!(whole(dir.path()), [1, 2]);
    // Another daemon that shares the directory never writes into our file.
    let mut other = LeaseLog::open(dir.path()).unwrap().log;
    other.store(changes(&[], &[7]), || leases(&[7])).unwrap();
    log.store(changes(&[], &[3]), || leases(&[1, 2, 3])).unwrap();
    assert_eq!(whole(dir.path()), [1, 2, 3]);
}

#[test]
fn a_link_or_a_directory_in_its_place_is_named() {
    let (dir, log) = begun(&[1]);
    drop(log);
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(file(dir.path()), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, file(dir.path())).unwrap();
    assert!(matches!(found(dir.path()).unwrap_err(), OpenError::Io { .. }));
    fs::remove_file(file(dir.path())).unwrap();
    fs::create_dir(file(dir.path())).unwrap();
    assert!(matches!(found(dir.path()).unwrap_err(), OpenError::Io { .. }));
}

/// The environment variable that names the directory of [`full_disk`].
const DISK: &str = "CANAL_TEST_DISK";

#[test]
fn a_full_disk_refuses_a_lease_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=1m,mode=700 tmpfs \"${DISK}\" &&");
    let scene = rerun::command("lease_file::tests::full_disk", &mount);
    let mut program = std::process::Command::new("unshare");
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
    if !rerun::plays("lease_file::tests::full_disk") {
        return;
    }
    let dir = PathBuf::from(std::env::var_os(DISK).unwrap());
    let mut log = LeaseLog::open(&dir).unwrap().log;
    let many: Vec<u64> = (1..=200).collect();
    log.write_anew(leases(&many)).unwrap();
    let mut next = 201;
    while !log.wants_compaction() {
        log.append_all(&[next - 1], &[next]).unwrap();
        next += 1;
    }
    // There is no room for all leases again, but some for a frame.
    let mut ballast = File::create(dir.join("ballast")).unwrap();
    let full = io::copy(&mut io::repeat(1), &mut ballast).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    let length = ballast.metadata().unwrap().len();
    ballast.set_len(length - 16 * 1024).unwrap();
    let all = || leases(&(1..200).chain([next]).collect::<Vec<_>>());
    log.store(changes(&[next - 1], &[next]), all).unwrap();
    assert!(log.not_before > 0);
    let refused = loop {
        next += 1;
        match log.store(changes(&[], &[next]), || leases(&many)) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
    assert!(refused.to_string().starts_with(&log.path().display().to_string()), "{refused}");
    let before = whole(&dir);
    assert_eq!(before.last(), Some(&(next - 1)));
    ballast.set_len(0).unwrap();
    log.append_all(&[], &[next]).unwrap();
    assert_eq!(whole(&dir), [before, vec![next]].concat());
}

/// The environment variable that names the directory of [`writer`].
const DIR: &str = "CANAL_TEST_LEASES";

#[test]
fn leases_stored_before_the_writer_was_killed_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..4 {
        let mut writer = rerun::command("lease_file::tests::writer", "")
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(writer.stdout.take().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        let number = |line: String| line.strip_prefix("stored ").map(|n| n.parse::<u64>().unwrap());
        // It is killed some time after it has printed that many lines, and may print more until
        // then.
        let mut stored: Vec<u64> = lines.by_ref().filter_map(number).take(1 + 37 * round).collect();
        writer.kill().unwrap();
        stored.extend(lines.filter_map(number));
        writer.wait().unwrap();
        let said = *stored.last().unwrap();
        assert!(said > last, "round {round} stored nothing");
        let (found, _) = found(dir.path()).unwrap();
        last = *found.last().unwrap();
        assert!(last >= said, "{said} was stored, and {last} is found");
        assert_eq!(found, (last.saturating_sub(9).max(1)..=last).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "a scene"]
fn writer() {
    if !rerun::plays("lease_file::tests::writer") {
        return;
    }
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let Opened { mut log, leases: found, .. } = LeaseLog::open(&dir).unwrap();
    let last = found.and_then(|found| found.keys().next_back().map(|token| token.0));
    let mut out = io::stdout();
    for token in last.unwrap_or(0) + 1..1_000_000 {
        // Ten leases live at a time.
        let ended: &[u64] = if token > 10 { &[token - 10] } else { &[] };
        let all: Vec<u64> = (token.saturating_sub(9).max(1)..=token).collect();
        log.store(changes(ended, &[token]), || leases(&all)).unwrap();
        writeln!(out, "stored {token}").unwrap();
    }
    unreachable!("nobody killed the writer");
}
