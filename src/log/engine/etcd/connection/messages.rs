//! The messages of etcd's interface that canal uses, with the fields that it uses.
//!
//! Written by hand from `rpc.proto` and `kv.proto` of etcd 3.4, so that a build needs no protoc;
//! the decoder skips omitted fields. The numbers are etcd's and never change.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
    #[prost(int64, tag = "10")]
    pub(crate) min_mod_revision: i64,
    #[prost(int64, tag = "11")]
    pub(crate) max_mod_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ranged {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    /// The number of keys, regardless of the limit.
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRange {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Operation {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub(crate) request: Option<Request>,
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
    pub(crate) response: Option<Response>,
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
pub(crate) enum Relation {
    Equal = 0,
    Greater = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum Target {
    Version = 0,
    ModRevision = 2,
    Value = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "Relation", tag = "1")]
    pub(crate) relation: i32,
    #[prost(enumeration = "Target", tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "Operand", tags = "4, 6, 7")]
    pub(crate) operand: Option<Operand>,
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
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<Operation>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnDone {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<Outcome>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub(crate) ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGranted {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl_s: i64,
}

/// Also `LeaseRevokeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lease {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseKept {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    /// 0 or less: there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchAsk", tags = "1")]
    pub(crate) ask: Option<WatchAsk>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum WatchAsk {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum Filter {
    NoPut = 0,
    NoDelete = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(enumeration = "Filter", repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watched {
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// 0: put, 1: deleted.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Authenticated {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    /// Filled in before the indexes are read.
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    /// The size of its files, in bytes.
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    /// 0: it knows of none.
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    /// The last entry of raft's log that is known to be committed.
    #[prost(uint64, tag = "5")]
    pub(crate) raft_index: u64,
    /// The last entry that this member has applied.
    #[prost(uint64, tag = "7")]
    pub(crate) raft_applied_index: u64,
    /// Alarms, as text.
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
}
