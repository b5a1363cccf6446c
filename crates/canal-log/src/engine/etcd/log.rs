//! The log in etcd: appends batches, reads them, and stores snapshots.
//!
//! An append is one transaction, which also returns the reason if it was not carried out. It does
//! not compare the author's lease: an incarnation whose lease has expired has not ended until
//! another host's batch ends it, and until then its batches (above all, releases) are valid. Its
//! deadline prevents a late grant. The transaction compares no key that other appends write, so
//! concurrent appends do not conflict.
//!
//! A snapshot is stored in three steps: first its pieces, next to those of the old one; then one
//! transaction moves the pointer; then the covered batches are deleted.
//!
//! Invariants: each batch is delivered once, in the order of positions, without a gap: either the
//! range read has it, or the watch that begins at the revision after it. At every revision the
//! pointer names a snapshot whose pieces all exist.

use std::time::Duration;

use tokio::time::sleep;

use super::error::{EtcdError, Result};
use super::keys::{Keys, Pointer, State, decode, position, revision};
use super::messages::{
    Header, KeyValue, Operation, Range, Ranged, Txn, all, delete, delete_all, get, is_put_after,
    is_there, one, put, revision_is, value_is, version_is,
};
use super::shared::{OwnIncarnation, Shared, declared_gone};
use crate::engine::encoding::json;
use crate::engine::engine_thread::random;
use crate::engine::{Answer, Append, Ends, Evidence, Hash, Outage, Placed, Position, Read, Stored};

/// The largest body of a batch, in bytes: etcd accepts requests of up to 1.5 MiB.
pub const BODY_MAX: usize = 1 << 20;

/// The number of batches per request.
const PAGE: i64 = 256;

/// How long the watch may be behind the head that a renewal saw before it is replaced.
const LAG: Duration = Duration::from_secs(1);

/// How many times a compaction by etcd may interrupt a read.
const READ_TRIES: usize = 8;

/// The size of a piece of a snapshot, in bytes.
const PIECE: usize = 1 << 20;

/// The number of keys deleted in one transaction; etcd's own limit is 128 (`--max-txn-ops`).
const DELETES: usize = 100;

/// The number of keys listed at once to delete some of them.
const KEYS_PAGE: i64 = 1000;

/// How many times another host's snapshot may come first.
const STORE_TRIES: usize = 10;

pub(crate) async fn append(shared: Shared, append: Append) -> Result<()> {
    if append.body.len() > BODY_MAX {
        let why = format!("a batch of {} bytes exceeds etcd's limit", append.body.len());
        return Err(Outage::refused(why, None).into());
    }
    let answer = shared.once_there_is_room(async || append_once(&shared, &append).await).await?;
    shared.engine.has_room(true);
    shared.engine.say(answer);
    Ok(())
}

async fn append_once(shared: &Shared, append: &Append) -> Result<Answer> {
    let Append { host, sequence, ends, .. } = *append;
    if let Some(Ends { evidence: Evidence::Silent { .. }, .. }) = ends {
        // etcd expires leases itself; one host's view of another's silence proves nothing.
        return Ok(Answer::Overtaken { host, sequence, ends });
    }
    let Some(own) = shared.own(host).await? else { return Ok(declared_gone(host)) };
    let done = shared.client.txn(appending(shared.keys(), append, &own)).await?;
    if done.succeeded {
        let position = position(done.header.revision);
        shared.engine.reaches(position.0);
        return Ok(Answer::Appended { host, sequence, position });
    }
    let [name, state, batch] = done.found();
    let lives = name.kvs.first().is_some_and(|kv| kv.value == own.name);
    verdict(append, state.kvs.first().filter(|_| lives), batch.kvs.first())
}

/// The transaction that appends a batch, or reads why it cannot.
fn appending(keys: &Keys, append: &Append, own: &OwnIncarnation) -> Txn {
    let Append { host, sequence, ends, ref body } = *append;
    let (name, state, batch) = (keys.name(host), keys.state(host), keys.batch(host, sequence));
    let questions = [&name, &state, &batch].map(|key| get(one(key.clone())));
    let version = i64::try_from(sequence).unwrap_or(i64::MAX);
    let mut txn = Txn {
        compare: vec![value_is(name, own.name.clone()), version_is(state, version)],
        success: vec![put(batch, body.clone()), put(keys.head(), Vec::new())],
        failure: questions.into(),
    };
    // A transaction may put a key only once.
    if ends.is_none_or(|ends| ends.host != host) {
        let state = State { sequence, body: Hash::of(body).to_string(), ttl_ms: own.ttl_ms };
        txn.success.push(put(keys.state(host), json(&state)));
    }
    if let Some(Ends { host, evidence }) = ends {
        txn.compare.push(match evidence {
            Evidence::Unknown => version_is(keys.state(host), 0),
            _ => is_there(keys.state(host)),
        });
        if evidence == Evidence::Lapsed {
            txn.compare.push(version_is(keys.host(host), 0));
        }
        txn.success.extend([keys.name(host), keys.state(host), keys.host(host)].map(delete));
    }
    txn
}

/// Why it was not carried out. `state` is `None` if the author has ended.
fn verdict(append: &Append, state: Option<&KeyValue>, batch: Option<&KeyValue>) -> Result<Answer> {
    let Append { host, sequence, .. } = *append;
    let appended =
        |kv: &KeyValue| Answer::Appended { host, sequence, position: position(kv.mod_revision) };
    let other =
        || Answer::Fenced { host, why: format!("another daemon is appending as host {host}") };
    if let Some(batch) = batch {
        return Ok(if batch.value == append.body { appended(batch) } else { other() });
    }
    let Some(kv) = state else { return Ok(declared_gone(host)) };
    let State { sequence: last, body, .. } = decode(kv)?;
    Ok(if last.checked_add(1) == Some(sequence) {
        Answer::Overtaken { host, sequence, ends: append.ends }
    } else if last == sequence && body == Hash::of(&append.body).to_string() {
        // A snapshot has covered it meanwhile.
        appended(kv)
    } else if last < sequence {
        Answer::Fenced { host, why: format!("the log in etcd lost batches of host {host}") }
    } else {
        other()
    })
}

/// Delivers the snapshot and all batches after it, then those that are appended from then on.
pub(crate) async fn load(shared: Shared) -> Result<()> {
    let (snapshot, (batches, cursor, revision)) = despite_compaction(async || {
        let snapshot = read_snapshot(&shared).await?;
        let position = snapshot.as_ref().map_or(Position(0), |snapshot| snapshot.position);
        let further = read_after(&shared, Cursor { position, read: None }).await?;
        // Another snapshot has replaced it meanwhile.
        Ok((snapshot, further.map_err(|_| EtcdError::OtherRevision)?))
    })
    .await?;
    shared.engine.reaches(cursor.position.0);
    shared.engine.say(Answer::Loaded { snapshot, batches });
    go_on(&shared, cursor, Some(revision)).await
}

/// Delivers the batches after one that was read, now and from then on.
pub(crate) async fn follow(shared: Shared, after: Option<Read>) -> Result<()> {
    go_on(&shared, Cursor::after(after), None).await
}

/// Delivers the batches after a cursor while the log can be read from there. All that exist at
/// `revision` were delivered before. Without a revision, the first answer comes even without
/// batches.
async fn go_on(shared: &Shared, mut cursor: Cursor, mut revision: Option<i64>) -> Result<()> {
    loop {
        if let Some(revision) = revision {
            match watch(shared, &mut cursor, revision).await {
                Err(EtcdError::OtherRevision) | Ok(()) => {}
                Err(other) => return Err(other),
            }
        }
        let read = despite_compaction(async || read_after(shared, cursor).await).await?;
        let (batches, further, at) = match read {
            Ok(further) => further,
            Err(stopped) => {
                shared.engine.say(stopped);
                return Ok(());
            }
        };
        if revision.is_none() || !batches.is_empty() {
            shared.engine.say(Answer::Batches(batches));
        }
        (cursor, revision) = (further, Some(at));
    }
}

/// Delivers the batches appended after a revision, until the watch lags.
async fn watch(shared: &Shared, cursor: &mut Cursor, revision: i64) -> Result<()> {
    let mut watch = shared.client.watch(shared.keys().log(), revision + 1).await?;
    loop {
        let behind = async {
            shared.engine.beyond(cursor.position.0).await;
            sleep(LAG).await;
        };
        let kvs = tokio::select! {
            biased;
            kvs = watch.next() => kvs?,
            () = behind => {
                tracing::warn!("the etcd watch is behind the log; creating another one");
                return Ok(());
            }
        };
        let batches = placed(shared, kvs, cursor.position);
        if let Some(last) = batches.last() {
            *cursor = Cursor::behind(last);
            shared.engine.say(Answer::Batches(batches));
        }
    }
}

/// The batches after a cursor, the next cursor, and the revision at which they are complete; or the
/// reason why the log cannot be read from there.
type CatchUp = Result<(Vec<Placed>, Cursor, i64), Answer>;

/// Reads again if etcd compacts the revision, or a snapshot is replaced, meanwhile.
async fn despite_compaction<T>(read: impl AsyncFn() -> Result<T>) -> Result<T> {
    for _ in 0..READ_TRIES {
        match read().await {
            Err(EtcdError::OtherRevision) => {}
            done => return done,
        }
    }
    Err(EtcdError::away("etcd compacts faster than canal can read"))
}

async fn read_after(shared: &Shared, cursor: Cursor) -> Result<CatchUp> {
    let keys = shared.keys();
    let batch = cursor.read.map_or_else(|| keys.log(), |read| keys.batch(read.host, read.sequence));
    let ranges = [one(keys.pointer()), one(batch), page(shared, cursor.position)];
    let (Header { revision, .. }, [pointer, batch, log]) = shared.client.read(ranges).await?;
    let covered = pointer.value()?.map_or(Position(0), |(Pointer { position, .. }, _)| position);
    if let Some(stopped) = stop(&cursor, covered, batch.kvs.first()) {
        return Ok(Err(stopped));
    }
    let kvs = rest(shared, log, cursor.position, revision).await?;
    let batches = placed(shared, kvs, cursor.position);
    let cursor = batches.last().map_or(cursor, Cursor::behind);
    Ok(Ok((batches, cursor, revision)))
}

/// The snapshot, if there is one.
async fn read_snapshot(shared: &Shared) -> Result<Option<Stored>> {
    let (Header { revision, .. }, [pointer]) =
        shared.client.read([one(shared.keys().pointer())]).await?;
    let Some((at, _)) = pointer.value::<Pointer>()? else { return Ok(None) };
    let mut body = Vec::new();
    for number in 0..at.pieces {
        let range = Range { revision, ..one(shared.keys().piece(&at.name, number)) };
        let (_, [found]) = shared.client.read([range]).await?;
        body.extend(found.kvs.into_iter().flat_map(|kv| kv.value));
    }
    if Hash::of(&body) != at.body {
        return Err(EtcdError::refused(
            format!("the snapshot `{}` in etcd is damaged", at.name),
            "stop all daemons, then delete everything below the prefix: etcdctl del --prefix",
        ));
    }
    Ok(Some(Stored { position: at.position, body }))
}

/// A range of the first batches after a position, by key.
fn page(shared: &Shared, after: Position) -> Range {
    let min_mod_revision = revision(after) + 1;
    Range { limit: PAGE, min_mod_revision, ..all(shared.keys().log()) }
}

/// All batches after a position at a revision; the first page is already known.
async fn rest(
    shared: &Shared,
    mut found: Ranged,
    after: Position,
    revision: i64,
) -> Result<Vec<KeyValue>> {
    let mut kvs = Vec::new();
    loop {
        let next = found.next_key();
        kvs.append(&mut found.kvs);
        let Some(key) = next else { return Ok(kvs) };
        let range = Range { key, revision, ..page(shared, after) };
        (_, [found]) = shared.client.read([range]).await?;
    }
}

/// Batches in the order of the log, without those up to a position.
fn placed(shared: &Shared, kvs: Vec<KeyValue>, after: Position) -> Vec<Placed> {
    let batch = |kv: KeyValue| {
        let (host, sequence) = shared.keys().batch_in(&kv.key)?;
        let batch = Placed { position: position(kv.mod_revision), host, sequence, body: kv.value };
        Some(batch).filter(|batch| batch.position > after)
    };
    let mut batches: Vec<_> = kvs.into_iter().filter_map(batch).collect();
    batches.sort_by_key(|batch| batch.position);
    batches
}

/// The position up to which a reader has read.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// The position of the last batch, or of the snapshot; 0 before the first.
    position: Position,
    /// The batch read there; `None` after a snapshot and before the first batch.
    read: Option<Read>,
}

impl Cursor {
    fn after(read: Option<Read>) -> Self {
        Self { position: read.map_or(Position(0), |read| read.position), read }
    }

    /// The cursor after a batch.
    fn behind(batch: &Placed) -> Self {
        Self::after(Some(batch.read()))
    }
}

/// Why a reader cannot continue from a cursor; `None` if it can. A snapshot covers the log up to
/// `covered`. `batch` is the value at the key of the batch that was read.
///
/// The batch at that position itself is deleted only after there is a newer pointer, so a
/// reader that has read exactly up to it can be checked too.
fn stop(cursor: &Cursor, covered: Position, batch: Option<&KeyValue>) -> Option<Answer> {
    let is_same_history = match (&cursor.read, batch) {
        (Some(read), Some(kv)) => {
            position(kv.mod_revision) == read.position && Hash::of(&kv.value) == read.body
        }
        // A snapshot may have covered it.
        (Some(_), None) => covered > cursor.position,
        (None, _) => covered >= cursor.position,
    };
    let compacted = (covered > cursor.position).then_some(Answer::Compacted);
    if is_same_history { compacted } else { Some(Answer::Rewritten) }
}

/// Replaces the snapshot, unless the present one is at least as new.
pub(crate) async fn store(shared: Shared, stored: Stored) -> Result<()> {
    let position = shared.once_there_is_room(async || store_once(&shared, &stored).await).await?;
    shared.engine.say(Answer::Stored { position });
    Ok(())
}

async fn store_once(shared: &Shared, stored: &Stored) -> Result<Position> {
    let keys = shared.keys();
    let mut made: Option<Pointer> = None;
    for _ in 0..STORE_TRIES {
        let ranges = [one(keys.pointer()), one(keys.head())];
        let (_, [pointer, head]) = shared.client.read(ranges).await?;
        let head = head.kvs.first().map_or(0, |kv| kv.mod_revision);
        let pointer = pointer.value::<Pointer>()?;
        let (now, seen) = pointer.map_or((Position(0), 0), |(it, at)| (it.position, at));
        // The new one is no newer, or belongs to a history that this etcd has lost.
        if now >= stored.position || position(head) < stored.position {
            if let Some(Pointer { name, .. }) = &made {
                change(shared, vec![delete_all(keys.pieces(name))]).await?;
            }
            return Ok(now);
        }
        let made = match &mut made {
            Some(made) => made,
            none => none.insert(put_pieces(shared, stored).await?),
        };
        let before = revision(made.position).saturating_sub(1);
        let compare = vec![revision_is(keys.pointer(), seen), is_put_after(keys.head(), before)];
        let success = vec![put(keys.pointer(), json(made))];
        if shared.client.txn(Txn { compare, success, ..Txn::default() }).await?.succeeded {
            tidy(shared, made).await?;
            return Ok(made.position);
        }
    }
    Err(EtcdError::away("too many daemons are storing snapshots at the same time"))
}

/// Stores the pieces under a new name: two hosts may store snapshots of one position with different
/// bytes.
async fn put_pieces(shared: &Shared, stored: &Stored) -> Result<Pointer> {
    let name = format!("{}-{:08x}", stored.position.0, random()? >> 96);
    for (piece, number) in stored.body.chunks(PIECE).zip(0..) {
        let key = shared.keys().piece(&name, number);
        change(shared, vec![put(key, piece.to_vec())]).await?;
    }
    let pieces = stored.body.len().div_ceil(PIECE) as u64;
    Ok(Pointer { position: stored.position, name, pieces, body: Hash::of(&stored.body) })
}

/// Deletes the batches before the snapshot's last one, and the pieces of older snapshots, complete
/// or not. The last batch stays for readers that have read exactly up to it.
async fn tidy(shared: &Shared, now: &Pointer) -> Result<()> {
    let keys = shared.keys();
    let covered = Range { max_mod_revision: revision(now.position) - 1, ..all(keys.log()) };
    delete_found(shared, covered, |kv| position(kv.mod_revision) < now.position).await?;
    delete_found(shared, all(keys.snapshots()), |kv| {
        keys.piece_in(&kv.key).is_some_and(|position| position < now.position)
    })
    .await
}

/// Deletes the wanted keys of a range. No host puts any of them again.
async fn delete_found(
    shared: &Shared,
    range: Range,
    wanted: impl Fn(&KeyValue) -> bool,
) -> Result<()> {
    let mut range = Range { keys_only: true, limit: KEYS_PAGE, ..range };
    loop {
        let (_, [found]) = shared.client.read([range.clone()]).await?;
        let keys: Vec<_> =
            found.kvs.iter().filter(|kv| wanted(kv)).map(|kv| delete(kv.key.clone())).collect();
        for some in keys.chunks(DELETES) {
            change(shared, some.to_vec()).await?;
        }
        let Some(next) = found.next_key() else { return Ok(()) };
        range.key = next;
    }
}

async fn change(shared: &Shared, success: Vec<Operation>) -> Result<()> {
    shared.client.txn(Txn { success, ..Txn::default() }).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::HostId;

    fn ask(sequence: u64) -> Append {
        Append { host: HostId(1), sequence, body: b"body".into(), ends: None }
    }

    fn state(sequence: u64, body: &[u8]) -> KeyValue {
        let state = State { sequence, body: Hash::of(body).to_string(), ttl_ms: 1000 };
        KeyValue { value: json(&state), mod_revision: 7, ..KeyValue::default() }
    }

    #[test]
    fn a_batch_that_a_snapshot_covered_counts_as_appended_if_it_is_the_same() {
        let same = verdict(&ask(3), Some(&state(3, b"body")), None).unwrap();
        assert!(matches!(same, Answer::Appended { sequence: 3, position, .. } if position.0 == 7));
        let other = verdict(&ask(3), Some(&state(3, b"other")), None).unwrap();
        assert!(matches!(other, Answer::Fenced { .. }));
    }

    #[test]
    fn only_a_batch_that_could_have_been_appended_is_overtaken() {
        let next = verdict(&ask(3), Some(&state(2, b"before")), None).unwrap();
        assert!(matches!(next, Answer::Overtaken { sequence: 3, .. }));
        let gap = verdict(&ask(3), Some(&state(1, b"before")), None).unwrap();
        assert!(matches!(gap, Answer::Fenced { why, .. } if why.contains("lost batches")));
        let old = verdict(&ask(3), Some(&state(4, b"after")), None).unwrap();
        assert!(matches!(old, Answer::Fenced { .. }));
        assert!(matches!(verdict(&ask(3), None, None).unwrap(), Answer::Fenced { .. }));
    }

    fn batch(at: i64, body: &[u8]) -> KeyValue {
        KeyValue { mod_revision: at, value: body.into(), ..KeyValue::default() }
    }

    fn read(at: u64, body: &[u8]) -> Cursor {
        let position = Position(at);
        let read = Read { position, host: HostId(1), sequence: 1, body: Hash::of(body) };
        Cursor::after(Some(read))
    }

    #[derive(Debug, PartialEq, Eq)]
    enum CursorState {
        Good,
        Rewritten,
        Compacted,
    }

    fn stands(cursor: &Cursor, covered: u64, batch: Option<KeyValue>) -> CursorState {
        match stop(cursor, Position(covered), batch.as_ref()) {
            None => CursorState::Good,
            Some(Answer::Rewritten) => CursorState::Rewritten,
            Some(Answer::Compacted) => CursorState::Compacted,
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reader_that_finds_its_batch_goes_on_unless_a_snapshot_covers_the_next() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, 0, Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, 4, Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, 5, Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, 6, Some(batch(5, b"a"))), CursorState::Compacted);
    }

    #[test]
    fn another_batch_at_the_place_is_another_history() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, 0, Some(batch(5, b"b"))), CursorState::Rewritten);
        assert_eq!(stands(&cursor, 0, Some(batch(6, b"a"))), CursorState::Rewritten);
        assert_eq!(stands(&cursor, 9, Some(batch(5, b"b"))), CursorState::Rewritten);
    }

    #[test]
    fn a_batch_that_is_missing_was_covered_or_never_was() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, 6, None), CursorState::Compacted);
        assert_eq!(stands(&cursor, 5, None), CursorState::Rewritten);
        assert_eq!(stands(&cursor, 4, None), CursorState::Rewritten);
        assert_eq!(stands(&cursor, 0, None), CursorState::Rewritten);
    }

    #[test]
    fn behind_a_snapshot_and_before_the_first_batch_the_pointer_decides() {
        let start = Cursor::after(None);
        assert_eq!(stands(&start, 0, None), CursorState::Good);
        assert_eq!(stands(&start, 3, None), CursorState::Compacted);
        let behind = Cursor { position: Position(3), read: None };
        assert_eq!(stands(&behind, 3, None), CursorState::Good);
        assert_eq!(stands(&behind, 4, None), CursorState::Compacted);
        assert_eq!(stands(&behind, 0, None), CursorState::Rewritten);
    }
}
