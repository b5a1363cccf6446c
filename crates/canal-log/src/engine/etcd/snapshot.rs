//! Stores a snapshot: first its pieces, next to those of the old one; then one transaction moves
//! the pointer; then the covered batches are deleted.
//!
//! Invariant: at every revision the pointer names a snapshot whose pieces all exist.

use super::connection::error::EtcdError;
use super::connection::messages::{KeyValue, Operation, Range, Txn};
use super::connection::transaction::{
    all, delete, delete_all, is_put_after, one, put, reads, revision_is,
};
use super::layout::{Pointer, decode, encode, position, revision};
use super::register::random;
use super::shared::Shared;
use crate::engine::{Answer, Hash, Position, Stored};

/// The size of a piece, in bytes.
const PIECE: usize = 1 << 20;

/// The number of keys deleted in one transaction; etcd's own limit is 128 (`--max-txn-ops`).
const DELETES: usize = 100;

/// The number of keys listed at once.
const PAGE: i64 = 1000;

/// How many times another host's snapshot may come first.
const TRIES: usize = 10;

pub(crate) async fn store(shared: Shared, stored: Stored) -> Result<(), EtcdError> {
    let position = loop {
        match store_once(&shared, &stored).await {
            Err(EtcdError::Full) => shared.wait_for_room().await,
            done => break done?,
        }
    };
    shared.say(Answer::Stored { position });
    Ok(())
}

async fn store_once(shared: &Shared, stored: &Stored) -> Result<Position, EtcdError> {
    let mut existing = existing(shared).await?;
    if existing.keeps(stored) {
        return Ok(existing.position);
    }
    let made = put_pieces(shared, stored).await?;
    for _ in 0..TRIES {
        if move_pointer(shared, &made, existing.revision).await? {
            tidy(shared, &made).await?;
            return Ok(made.position);
        }
        existing = self::existing(shared).await?;
        if existing.keeps(stored) {
            let pieces = delete_all(shared.keys().pieces(&made.name));
            change(shared, vec![pieces]).await?;
            return Ok(existing.position);
        }
    }
    Err(EtcdError::Away("too many daemons are storing snapshots at the same time".into()))
}

/// The present snapshot, if any, and the end of the log.
struct StoredSnapshot {
    position: Position,
    /// The revision of the pointer's key.
    revision: i64,
    /// The end of the log.
    head: Position,
}

impl StoredSnapshot {
    /// Whether the present snapshot stays: the new one is no newer, or belongs to a history that
    /// this etcd has lost.
    fn keeps(&self, new: &Stored) -> bool {
        self.position >= new.position || self.head < new.position
    }
}

async fn existing(shared: &Shared) -> Result<StoredSnapshot, EtcdError> {
    let keys = shared.keys();
    let ranges = [one(keys.pointer()), one(keys.head())];
    let [pointer, head] = shared.client.txn(reads(ranges)).await?.found();
    let head = position(head.first().map_or(0, |kv| kv.mod_revision));
    let Some(kv) = pointer.first() else {
        return Ok(StoredSnapshot { position: Position(0), revision: 0, head });
    };
    let pointer: Pointer = decode(kv)?;
    Ok(StoredSnapshot { position: pointer.position, revision: kv.mod_revision, head })
}

/// Stores the pieces under a new name: two hosts may store snapshots of one position with different
/// bytes.
async fn put_pieces(shared: &Shared, stored: &Stored) -> Result<Pointer, EtcdError> {
    let name = format!("{}-{:08x}", stored.position.0, random()? >> 96);
    let mut pieces = 0;
    for piece in stored.body.chunks(PIECE) {
        let key = shared.keys().piece(&name, pieces);
        change(shared, vec![put(key, piece.to_vec())]).await?;
        pieces += 1;
    }
    let body = Hash::of(&stored.body).to_string();
    Ok(Pointer { position: stored.position, name, pieces, body })
}

async fn move_pointer(shared: &Shared, to: &Pointer, seen: i64) -> Result<bool, EtcdError> {
    let key = shared.keys().pointer();
    let before = revision(to.position).saturating_sub(1);
    let compare = vec![revision_is(key.clone(), seen), is_put_after(shared.keys().head(), before)];
    let success = vec![put(key, encode(to)?)];
    Ok(shared.client.txn(Txn { compare, success, failure: Vec::new() }).await?.succeeded)
}

/// Deletes the batches before the snapshot's last one, and the pieces of older snapshots, complete
/// or not. The last batch stays for readers that have read exactly up to it.
async fn tidy(shared: &Shared, now: &Pointer) -> Result<(), EtcdError> {
    let keys = shared.keys();
    let covered = Range { max_mod_revision: revision(now.position) - 1, ..all(keys.log()) };
    delete_found(shared, covered, |kv| position(kv.mod_revision) < now.position).await?;
    let prefix = keys.snapshots();
    delete_found(shared, all(prefix.clone()), |kv| {
        piece_of(&prefix, &kv.key).is_some_and(|at| at < now.position)
    })
    .await
}

/// The position of a piece's snapshot; `None` for the pointer.
fn piece_of(prefix: &[u8], key: &[u8]) -> Option<Position> {
    let rest = std::str::from_utf8(key.strip_prefix(prefix)?).ok()?;
    let (name, _) = rest.split_once('/')?;
    let (position, _) = name.split_once('-')?;
    position.parse().ok().map(Position)
}

/// Deletes the wanted keys of a range. No host puts any of them again.
async fn delete_found(
    shared: &Shared,
    range: Range,
    wanted: impl Fn(&KeyValue) -> bool,
) -> Result<(), EtcdError> {
    let mut range = Range { keys_only: true, limit: PAGE, ..range };
    loop {
        let [found] = shared.client.txn(reads([range.clone()])).await?.found();
        let keys: Vec<_> =
            found.kvs.iter().filter(|kv| wanted(kv)).map(|kv| delete(kv.key.clone())).collect();
        for some in keys.chunks(DELETES) {
            change(shared, some.to_vec()).await?;
        }
        let Some(last) = found.kvs.last().filter(|_| found.more) else {
            return Ok(());
        };
        range.key.clone_from(&last.key);
        range.key.push(0);
    }
}

async fn change(shared: &Shared, success: Vec<Operation>) -> Result<(), EtcdError> {
    shared.client.txn(Txn { success, ..Txn::default() }).await.map(drop)
}
