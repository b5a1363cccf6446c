//! Reads the log: first everything that exists at one revision, then all batches from the next
//! revision on.
//!
//! Invariant: each batch is delivered once, in the order of positions, without a gap: either the
//! range read has it, or the watch that begins at the revision after it.

use std::time::Duration;

use tokio::time::sleep;

use super::connection::error::EtcdError;
use super::connection::messages::{KeyValue, Range, Ranged};
use super::connection::transaction::{all, one, reads};
use super::connection::watch::Watch;
use super::layout::{Pointer, decode, position, revision};
use super::shared::Shared;
use crate::engine::{Answer, Hash, Placed, Position, Read, Stored};

/// The number of batches per request.
const PAGE: i64 = 256;

/// How long the watch may be behind the head that a renewal saw before it is replaced.
const LAG: Duration = Duration::from_secs(1);

/// How many times a compaction by etcd may interrupt a read.
const TRIES: usize = 8;

pub(crate) async fn load(shared: Shared) -> Result<(), EtcdError> {
    let (snapshot, batches, revision) = despite_compaction(|| read_all(&shared)).await?;
    let covered = snapshot.as_ref().map_or(Position(0), |snapshot| snapshot.position);
    let cursor = match batches.last() {
        Some(last) => Cursor::behind(last),
        None => Cursor { position: covered, read: None },
    };
    shared.reaches(cursor.position.0);
    shared.say(Answer::Loaded { snapshot, batches });
    go_on(&shared, cursor, revision).await
}

pub(crate) async fn follow(shared: Shared, after: Option<Read>) -> Result<(), EtcdError> {
    match catch_up(&shared, Cursor::after(after)).await? {
        CatchUp::Up { batches, cursor, revision } => {
            shared.say(Answer::Batches(batches));
            go_on(&shared, cursor, revision).await
        }
        CatchUp::Stopped(answer) => {
            shared.say(answer);
            Ok(())
        }
    }
}

/// Delivers the batches after a cursor while the log can be read from there.
async fn go_on(shared: &Shared, mut cursor: Cursor, mut revision: i64) -> Result<(), EtcdError> {
    loop {
        match watch(shared, &mut cursor, revision).await {
            Err(EtcdError::OtherRevision) | Ok(()) => {}
            Err(other) => return Err(other),
        }
        match catch_up(shared, cursor).await? {
            CatchUp::Up { batches, cursor: further, revision: at } => {
                (cursor, revision) = (further, at);
                if !batches.is_empty() {
                    shared.say(Answer::Batches(batches));
                }
            }
            CatchUp::Stopped(answer) => {
                shared.say(answer);
                return Ok(());
            }
        }
    }
}

/// Delivers the batches appended after a revision, until the watch lags.
async fn watch(shared: &Shared, cursor: &mut Cursor, revision: i64) -> Result<(), EtcdError> {
    let mut watch = Watch::new(&shared.client, shared.keys().log(), revision + 1).await?;
    loop {
        let behind = async {
            shared.beyond(cursor.position.0).await;
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
            shared.say(Answer::Batches(batches));
        }
    }
}

/// The result of reading further from a cursor.
enum CatchUp {
    Up { batches: Vec<Placed>, cursor: Cursor, revision: i64 },
    Stopped(Answer),
}

async fn catch_up(shared: &Shared, cursor: Cursor) -> Result<CatchUp, EtcdError> {
    despite_compaction(|| read_after(shared, cursor)).await
}

/// Reads again if etcd compacts the revision meanwhile.
async fn despite_compaction<T, F>(read: impl Fn() -> F) -> Result<T, EtcdError>
where
    F: Future<Output = Result<T, EtcdError>>,
{
    for _ in 0..TRIES {
        match read().await {
            Err(EtcdError::OtherRevision) => {}
            done => return done,
        }
    }
    Err(EtcdError::Away("etcd compacts faster than canal can read".into()))
}

async fn read_after(shared: &Shared, cursor: Cursor) -> Result<CatchUp, EtcdError> {
    let keys = shared.keys();
    let batch = cursor.read.map_or_else(|| keys.log(), |read| keys.batch(read.host, read.sequence));
    let ranges = [one(keys.pointer()), one(batch), page(shared, cursor.position)];
    let done = shared.client.txn(reads(ranges)).await?;
    let revision = done.revision();
    let [pointer, batch, log] = done.found();
    let pointer: Option<Pointer> = pointer.first().map(decode).transpose()?;
    match standing(&cursor, pointer.as_ref(), batch.first()) {
        CursorState::Good => {}
        CursorState::Rewritten => return Ok(CatchUp::Stopped(Answer::Rewritten)),
        CursorState::Compacted => return Ok(CatchUp::Stopped(Answer::Compacted)),
    }
    let kvs = rest(shared, log, cursor.position, revision).await?;
    let batches = placed(shared, kvs, cursor.position);
    let cursor = batches.last().map_or(cursor, Cursor::behind);
    Ok(CatchUp::Up { batches, cursor, revision })
}

/// The snapshot, the batches after it, and the revision at which they are complete.
async fn read_all(shared: &Shared) -> Result<(Option<Stored>, Vec<Placed>, i64), EtcdError> {
    let ranges = [one(shared.keys().pointer()), page(shared, Position(0))];
    let done = shared.client.txn(reads(ranges)).await?;
    let revision = done.revision();
    let [pointer, log] = done.found();
    let snapshot = match pointer.first() {
        Some(kv) => Some(read_snapshot(shared, decode(kv)?, revision).await?),
        None => None,
    };
    let covered = snapshot.as_ref().map_or(Position(0), |snapshot| snapshot.position);
    let kvs = rest(shared, log, Position(0), revision).await?;
    Ok((snapshot, placed(shared, kvs, covered), revision))
}

async fn read_snapshot(shared: &Shared, at: Pointer, revision: i64) -> Result<Stored, EtcdError> {
    let mut body = Vec::new();
    for number in 0..at.pieces {
        let range = Range { revision, ..one(shared.keys().piece(&at.name, number)) };
        let [found] = shared.client.txn(reads([range])).await?.found();
        body.extend(found.kvs.into_iter().flat_map(|kv| kv.value));
    }
    if Hash::of(&body).to_string() != at.body {
        return Err(EtcdError::refused(
            format!("the snapshot `{}` in etcd is damaged", at.name),
            "stop all daemons, then delete everything below the prefix: etcdctl del --prefix",
        ));
    }
    Ok(Stored { position: at.position, body })
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
) -> Result<Vec<KeyValue>, EtcdError> {
    let mut kvs = Vec::new();
    loop {
        let more = found.more;
        kvs.append(&mut found.kvs);
        let Some(last) = kvs.last().filter(|_| more) else {
            return Ok(kvs);
        };
        let mut key = last.key.clone();
        key.push(0);
        let range = Range { key, revision, ..page(shared, after) };
        [found] = shared.client.txn(reads([range])).await?.found();
    }
}

/// Batches in the order of the log, without those up to a position.
fn placed(shared: &Shared, kvs: Vec<KeyValue>, after: Position) -> Vec<Placed> {
    let cursor = |kv: KeyValue| {
        let (host, sequence) = shared.keys().batch_in(&kv.key)?;
        Some(Placed { position: position(kv.mod_revision), host, sequence, body: kv.value })
    };
    let mut batches: Vec<_> = kvs.into_iter().filter_map(cursor).collect();
    batches.retain(|batch| batch.position > after);
    batches.sort_by_key(|batch| batch.position);
    batches
}

/// The position up to which a reader has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The position of the last batch, or of the snapshot; 0 before the first.
    pub position: Position,
    /// The batch read there; `None` after a snapshot and before the first batch.
    pub read: Option<Read>,
}

impl Cursor {
    pub(crate) fn after(read: Option<Read>) -> Self {
        Self { position: read.map_or(Position(0), |read| read.position), read }
    }

    /// The cursor after a batch.
    pub(crate) fn behind(batch: &Placed) -> Self {
        Self { position: batch.position, read: Some(batch.read()) }
    }
}

/// Whether a reader can continue from a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorState {
    Good,
    Rewritten,
    Compacted,
}

/// `batch` is the value at the key of the batch that was read.
///
/// The batch at the pointer's own position is deleted only after there is a newer pointer, so a
/// reader that has read exactly up to it can be checked too.
pub(crate) fn standing(
    cursor: &Cursor,
    pointer: Option<&Pointer>,
    batch: Option<&KeyValue>,
) -> CursorState {
    let covered = pointer.map_or(Position(0), |pointer| pointer.position);
    let (same, other) = match (&cursor.read, batch) {
        (Some(read), Some(kv)) => {
            let at = position(kv.mod_revision);
            let same = at == read.position && Hash::of(&kv.value) == read.body;
            (same, !same)
        }
        (Some(_), None) => (false, false),
        (None, _) => (covered == cursor.position, false),
    };
    if other {
        CursorState::Rewritten
    } else if covered > cursor.position {
        CursorState::Compacted
    } else if same {
        CursorState::Good
    } else {
        CursorState::Rewritten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::HostId;

    fn batch(at: i64, body: &[u8]) -> KeyValue {
        KeyValue { mod_revision: at, value: body.into(), ..KeyValue::default() }
    }

    fn read(at: u64, body: &[u8]) -> Cursor {
        let position = Position(at);
        let read = Read { position, host: HostId(1), sequence: 1, body: Hash::of(body) };
        Cursor::after(Some(read))
    }

    fn pointer(at: u64) -> Option<Pointer> {
        let name = String::new();
        Some(Pointer { position: Position(at), name, pieces: 1, body: String::new() })
    }

    fn stands(cursor: &Cursor, pointer: Option<Pointer>, batch: Option<KeyValue>) -> CursorState {
        standing(cursor, pointer.as_ref(), batch.as_ref())
    }

    #[test]
    fn a_reader_that_finds_its_batch_goes_on_unless_a_snapshot_covers_the_next() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, None, Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, pointer(4), Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, pointer(5), Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, pointer(6), Some(batch(5, b"a"))), CursorState::Compacted);
    }

    #[test]
    fn another_batch_at_the_place_is_another_history() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, None, Some(batch(5, b"b"))), CursorState::Rewritten);
        assert_eq!(stands(&cursor, None, Some(batch(6, b"a"))), CursorState::Rewritten);
        assert_eq!(stands(&cursor, pointer(9), Some(batch(5, b"b"))), CursorState::Rewritten);
    }

    #[test]
    fn a_batch_that_is_missing_was_covered_or_never_was() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, pointer(6), None), CursorState::Compacted);
        assert_eq!(stands(&cursor, pointer(5), None), CursorState::Rewritten);
        assert_eq!(stands(&cursor, pointer(4), None), CursorState::Rewritten);
        assert_eq!(stands(&cursor, None, None), CursorState::Rewritten);
    }

    #[test]
    fn behind_a_snapshot_and_before_the_first_batch_the_pointer_decides() {
        let start = Cursor::after(None);
        assert_eq!(stands(&start, None, None), CursorState::Good);
        assert_eq!(stands(&start, pointer(3), None), CursorState::Compacted);
        let behind = Cursor { position: Position(3), read: None };
        assert_eq!(stands(&behind, pointer(3), None), CursorState::Good);
        assert_eq!(stands(&behind, pointer(4), None), CursorState::Compacted);
        assert_eq!(stands(&behind, None, None), CursorState::Rewritten);
    }
}
