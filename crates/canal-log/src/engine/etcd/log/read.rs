//! Reads the log: first everything that exists at one revision, then all batches from the next
//! revision on.
//!
//! Invariant: each batch is delivered once, in the order of positions, without a gap: either the
//! range read has it, or the watch that begins at the revision after it.

use std::time::Duration;

use tokio::time::sleep;

use super::cursor::{Cursor, CursorState, standing};
use crate::engine::etcd::connection::error::EtcdError;
use crate::engine::etcd::connection::messages::{KeyValue, Range};
use crate::engine::etcd::connection::transaction::{RangeResult, all, one, reads};
use crate::engine::etcd::connection::watch::Watch;
use crate::engine::etcd::layout::{Pointer, decode, position};
use crate::engine::etcd::shared::Shared;
use crate::engine::{Answer, Hash, Placed, Position, Read, Stored};

/// The number of batches per request.
const PAGE: i64 = 256;

/// How long the watch may be behind the head that a renewal saw before it is replaced.
const LAG: Duration = Duration::from_secs(1);

/// How often a compaction by etcd may interrupt a read.
const TRIES: usize = 8;

pub(crate) async fn load(shared: Shared) -> Result<(), EtcdError> {
    for _ in 0..TRIES {
        let (snapshot, batches, revision) = match read_all(&shared).await {
            Err(EtcdError::OtherRevision) => continue,
            done => done?,
        };
        let covered = snapshot.as_ref().map_or(Position(0), |snapshot| snapshot.position);
        let cursor = match batches.last() {
            Some(last) => Cursor::behind(last),
            None => Cursor { position: covered, read: None },
        };
        shared.reaches(cursor.position.0);
        shared.say(Answer::Loaded { snapshot, batches });
        return go_on(&shared, cursor, revision).await;
    }
    Err(EtcdError::Away("etcd compacts faster than canal can read".into()))
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

/// The result of reading on from a cursor.
enum CatchUp {
    Up { batches: Vec<Placed>, cursor: Cursor, revision: i64 },
    Stopped(Answer),
}

async fn catch_up(shared: &Shared, cursor: Cursor) -> Result<CatchUp, EtcdError> {
    for _ in 0..TRIES {
        match read_after(shared, cursor).await {
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

/// The snapshot, the batches after it, and the revision at which these are all.
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
    let min_mod_revision = crate::engine::etcd::layout::revision(after) + 1;
    Range { limit: PAGE, min_mod_revision, ..all(shared.keys().log()) }
}

/// All batches after a position at a revision, of which the first page is known.
async fn rest(
    shared: &Shared,
    mut found: RangeResult,
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
