//! The messages of etcd's interface that canal uses, with the fields that it uses.
//!
//! Written by hand from `rpc.proto` and `kv.proto` of etcd 3.4, so that a build needs no protoc;
//! the decoder skips omitted fields. The numbers are etcd's and never change.

use prost::{Enumeration, Message, Oneof};

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
    #[prost(int64, tag = "4")]
    pub version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

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
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    #[prost(int64, tag = "10")]
    pub min_mod_revision: i64,
    #[prost(int64, tag = "11")]
    pub max_mod_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ranged {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
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

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRange {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Operation {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Request {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRange),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Outcome {
    #[prost(oneof = "Response", tags = "1, 2, 3")]
    pub response: Option<Response>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Response {
    #[prost(message, tag = "1")]
    Range(Ranged),
    #[prost(message, tag = "2")]
    Put(Nothing),
    #[prost(message, tag = "3")]
    DeleteRange(Nothing),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Relation {
    Equal = 0,
    Greater = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Target {
    Version = 0,
    ModRevision = 2,
    Value = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "Relation", tag = "1")]
    pub relation: i32,
    #[prost(enumeration = "Target", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "Operand", tags = "4, 6, 7")]
    pub operand: Option<Operand>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Operand {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
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
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
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

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGranted {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

/// Also `LeaseRevokeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lease {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseKept {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// 0 or less: there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchAsk", tags = "1")]
    pub ask: Option<WatchAsk>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum WatchAsk {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Filter {
    NoPut = 0,
    NoDelete = 1,
}

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
    #[prost(enumeration = "Filter", repeated, tag = "5")]
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
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
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
