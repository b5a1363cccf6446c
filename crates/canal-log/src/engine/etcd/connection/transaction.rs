//! The parts of transactions.

use super::messages::{
    Compare, DeleteRange, KeyValue, Operand, Operation, Put, Range, Ranged, Relation, Request,
    Response, Target, Txn, TxnDone,
};

/// The least key that is greater than all keys with this prefix.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // All prefixes here end with `/`.
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// All keys with a prefix.
pub(crate) fn all(prefix: Vec<u8>) -> Range {
    Range { range_end: end_of(&prefix), key: prefix, ..Range::default() }
}

/// One key.
pub(crate) fn one(key: Vec<u8>) -> Range {
    Range { key, ..Range::default() }
}

pub(crate) fn get(range: Range) -> Operation {
    Operation { request: Some(Request::Range(range)) }
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>) -> Operation {
    Operation { request: Some(Request::Put(Put { key, value, lease: 0 })) }
}

pub(crate) fn put_leased(key: Vec<u8>, lease: i64) -> Operation {
    Operation { request: Some(Request::Put(Put { key, value: Vec::new(), lease })) }
}

pub(crate) fn delete(key: Vec<u8>) -> Operation {
    Operation { request: Some(Request::DeleteRange(DeleteRange { key, range_end: Vec::new() })) }
}

pub(crate) fn delete_all(prefix: Vec<u8>) -> Operation {
    let range_end = end_of(&prefix);
    Operation { request: Some(Request::DeleteRange(DeleteRange { key: prefix, range_end })) }
}

fn compare(key: Vec<u8>, relation: Relation, target: Target, operand: Operand) -> Compare {
    let (relation, target) = (relation as i32, target as i32);
    Compare { relation, target, key, operand: Some(operand) }
}

/// The key has been put this many times since its creation; 0: it does not exist.
pub(crate) fn version_is(key: Vec<u8>, version: i64) -> Compare {
    compare(key, Relation::Equal, Target::Version, Operand::Version(version))
}

pub(crate) fn is_there(key: Vec<u8>) -> Compare {
    compare(key, Relation::Greater, Target::Version, Operand::Version(0))
}

/// The key was last put at this revision; 0: it does not exist.
pub(crate) fn revision_is(key: Vec<u8>, revision: i64) -> Compare {
    compare(key, Relation::Equal, Target::ModRevision, Operand::ModRevision(revision))
}

/// The key was last put after this revision.
pub(crate) fn is_put_after(key: Vec<u8>, revision: i64) -> Compare {
    compare(key, Relation::Greater, Target::ModRevision, Operand::ModRevision(revision))
}

pub(crate) fn value_is(key: Vec<u8>, value: Vec<u8>) -> Compare {
    compare(key, Relation::Equal, Target::Value, Operand::Value(value))
}

/// A read-only transaction: everything at one revision, which includes everything that was answered
/// before this call.
pub(crate) fn reads(ranges: impl IntoIterator<Item = Range>) -> Txn {
    Txn { success: ranges.into_iter().map(get).collect(), ..Txn::default() }
}

impl TxnDone {
    /// The revision at which it was carried out.
    pub(crate) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    pub(crate) fn raft_term(&self) -> u64 {
        self.header.as_ref().map_or(0, |header| header.raft_term)
    }

    /// The results of its ranges, in order. `more` is set if a limit cut one off.
    pub(crate) fn found<const N: usize>(self) -> [Ranged; N] {
        let mut ranged = self.responses.into_iter().filter_map(|outcome| match outcome.response {
            Some(Response::Range(ranged)) => Some(ranged),
            Some(Response::Put(_) | Response::DeleteRange(_)) | None => None,
        });
        std::array::from_fn(|_| ranged.next().unwrap_or_default())
    }
}

impl Ranged {
    pub(crate) fn first(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }
}
