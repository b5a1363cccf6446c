//! The messages of etcd's interface that canal uses, with the fields that it uses.
//!
//! Written by hand from `rpc.proto` and `kv.proto` of etcd 3.4, so that a build needs no protoc;
//! the decoder skips omitted fields. The numbers are etcd's and never change.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Also `DeleteRangeRequest`, without its limits.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    #[prost(int64, tag = "10")]
    pub min_mod_revision: i64,
    #[prost(int64, tag = "11")]
    pub max_mod_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ranged {
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// The number of keys, regardless of the limit.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// One of these is set. On the wire, that is a `oneof`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Operation {
    #[prost(message, optional, tag = "1")]
    pub range: Option<Range>,
    #[prost(message, optional, tag = "2")]
    pub put: Option<Put>,
    #[prost(message, optional, tag = "3")]
    pub delete_range: Option<Range>,
}

/// The result of an [`Operation`]. Only that of a range has content.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Outcome {
    #[prost(message, optional, tag = "1")]
    pub range: Option<Ranged>,
}

/// The relation of a [`Compare`] that is not equality, which is 0, and its targets.
const GREATER: i32 = 1;
const VERSION: i32 = 0;
const MOD_REVISION: i32 = 2;
const VALUE: i32 = 3;

/// Only the operand of its target is set. On the wire, that is a `oneof`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(int32, tag = "1")]
    pub relation: i32,
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(int64, optional, tag = "4")]
    pub version: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub value: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<Operation>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnDone {
    /// With the revision at which it was carried out.
    #[prost(message, required, tag = "1")]
    pub header: Header,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<Outcome>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub ttl_s: i64,
}

/// Also `LeaseRevokeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lease {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// `LeaseGrantResponse`, and `LeaseKeepAliveResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseLives {
    #[prost(message, required, tag = "1")]
    pub header: Header,
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// 0 or less: there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

impl LeaseLives {
    pub(crate) fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl_s).unwrap_or_default() * 1000
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreate>,
}

/// A filter of a [`WatchCreate`]: no deletions.
pub(crate) const NO_DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    #[prost(int32, repeated, tag = "5")]
    pub filters: Vec<i32>,
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watched {
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// 0: put, 1: deleted.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Authenticate {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Authenticated {
    #[prost(string, tag = "2")]
    pub token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    /// Filled in before the indexes are read.
    #[prost(message, required, tag = "1")]
    pub header: Header,
    #[prost(string, tag = "2")]
    pub version: String,
    /// The size of its files, in bytes.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// 0: it knows of none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// The last entry of raft's log that is known to be committed.
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    /// The last entry that this member has applied.
    #[prost(uint64, tag = "7")]
    pub raft_applied_index: u64,
    /// Alarms, as text.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
}

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
    Operation { range: Some(range), ..Operation::default() }
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>) -> Operation {
    Operation { put: Some(Put { key, value, lease: 0 }), ..Operation::default() }
}

pub(crate) fn put_leased(key: Vec<u8>, lease: i64) -> Operation {
    Operation { put: Some(Put { key, value: Vec::new(), lease }), ..Operation::default() }
}

pub(crate) fn delete(key: Vec<u8>) -> Operation {
    Operation { delete_range: Some(one(key)), ..Operation::default() }
}

pub(crate) fn delete_all(prefix: Vec<u8>) -> Operation {
    Operation { delete_range: Some(all(prefix)), ..Operation::default() }
}

/// The key has been put this many times since its creation; 0: it does not exist.
pub(crate) fn version_is(key: Vec<u8>, version: i64) -> Compare {
    Compare { target: VERSION, key, version: Some(version), ..Compare::default() }
}

pub(crate) fn is_there(key: Vec<u8>) -> Compare {
    Compare { relation: GREATER, ..version_is(key, 0) }
}

/// The key was last put at this revision; 0: it does not exist.
pub(crate) fn revision_is(key: Vec<u8>, revision: i64) -> Compare {
    Compare { target: MOD_REVISION, key, mod_revision: Some(revision), ..Compare::default() }
}

/// The key was last put after this revision.
pub(crate) fn is_put_after(key: Vec<u8>, revision: i64) -> Compare {
    Compare { relation: GREATER, ..revision_is(key, revision) }
}

pub(crate) fn value_is(key: Vec<u8>, value: Vec<u8>) -> Compare {
    Compare { target: VALUE, key, value: Some(value), ..Compare::default() }
}

/// A read-only transaction: everything at one revision, which includes everything that was answered
/// before this call.
pub(crate) fn reads(ranges: impl IntoIterator<Item = Range>) -> Txn {
    Txn { success: ranges.into_iter().map(get).collect(), ..Txn::default() }
}

impl TxnDone {
    /// The results of its ranges, in order. `more` is set if a limit cut one off.
    pub(crate) fn found<const N: usize>(self) -> [Ranged; N] {
        let mut ranged = self.responses.into_iter().filter_map(|outcome| outcome.range);
        std::array::from_fn(|_| ranged.next().unwrap_or_default())
    }
}

impl Ranged {
    pub(crate) fn first(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }

    /// Where the next page begins, if a limit cut this one off.
    pub(crate) fn next_key(&self) -> Option<Vec<u8>> {
        let last = self.kvs.last().filter(|_| self.more)?;
        Some([&*last.key, &[0]].concat())
    }
}
