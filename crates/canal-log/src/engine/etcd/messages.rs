//! The messages of etcd's interface that canal uses, with the fields that it uses.
//!
//! Written by hand from `rpc.proto` and `kv.proto` of etcd 3.4, so that a build needs no protoc;
//! the decoder skips omitted fields. The numbers are etcd's and never change.

use prost::Message;

/// The relation of a [`Compare`] that is not equality, which is 0, and its targets.
const GREATER: i32 = 1;
const VERSION: i32 = 0;
const MOD_REVISION: i32 = 2;
const VALUE: i32 = 3;

/// A filter of a [`WatchCreate`]: no deletions.
pub(crate) const NO_DELETE: i32 = 1;

/// Messages with their fields: name, type, number and kind on the wire.
macro_rules! messages {
    ($($(#[$of:meta])* $name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $tag:tt ($($kind:tt)+);)*
    })*) => {
        $($(#[$of])* #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $($(#[$doc])* #[prost($($kind)+, tag = $tag)] pub $field: $type,)*
        })*
    };
}

messages! {
    Header {
        cluster_id: u64 = 1 (uint64);
        revision: i64 = 3 (int64);
        raft_term: u64 = 4 (uint64);
    }

    KeyValue {
        key: Vec<u8> = 1 (bytes = "vec");
        mod_revision: i64 = 3 (int64);
        value: Vec<u8> = 5 (bytes = "vec");
        lease: i64 = 6 (int64);
    }

    /// Also `DeleteRangeRequest`, without its limits.
    Range {
        key: Vec<u8> = 1 (bytes = "vec");
        range_end: Vec<u8> = 2 (bytes = "vec");
        limit: i64 = 3 (int64);
        revision: i64 = 4 (int64);
        keys_only: bool = 8 (bool);
        min_mod_revision: i64 = 10 (int64);
        max_mod_revision: i64 = 11 (int64);
    }

    Ranged {
        kvs: Vec<KeyValue> = 2 (message, repeated);
        more: bool = 3 (bool);
        /// The number of keys, regardless of the limit.
        count: i64 = 4 (int64);
    }

    Put {
        key: Vec<u8> = 1 (bytes = "vec");
        value: Vec<u8> = 2 (bytes = "vec");
        lease: i64 = 3 (int64);
    }

    /// One of these is set. On the wire, that is a `oneof`.
    Operation {
        range: Option<Range> = 1 (message, optional);
        put: Option<Put> = 2 (message, optional);
        delete_range: Option<Range> = 3 (message, optional);
    }

    /// The result of an [`Operation`]. Only that of a range has content.
    Outcome {
        range: Option<Ranged> = 1 (message, optional);
    }

    /// Only the operand of its target is set. On the wire, that is a `oneof`.
    Compare {
        relation: i32 = 1 (int32);
        target: i32 = 2 (int32);
        key: Vec<u8> = 3 (bytes = "vec");
        version: Option<i64> = 4 (int64, optional);
        mod_revision: Option<i64> = 6 (int64, optional);
        value: Option<Vec<u8>> = 7 (bytes = "vec", optional);
    }

    Txn {
        compare: Vec<Compare> = 1 (message, repeated);
        success: Vec<Operation> = 2 (message, repeated);
        failure: Vec<Operation> = 3 (message, repeated);
    }

    TxnDone {
        /// With the revision at which it was carried out.
        header: Header = 1 (message, required);
        succeeded: bool = 2 (bool);
        responses: Vec<Outcome> = 3 (message, repeated);
    }

    LeaseGrant {
        ttl_s: i64 = 1 (int64);
    }

    /// Also `LeaseRevokeRequest`.
    Lease {
        id: i64 = 1 (int64);
    }

    /// `LeaseGrantResponse`, and `LeaseKeepAliveResponse`.
    LeaseLives {
        header: Header = 1 (message, required);
        id: i64 = 2 (int64);
        /// 0 or less: there is no such lease.
        ttl_s: i64 = 3 (int64);
    }

    WatchRequest {
        create: Option<WatchCreate> = 1 (message, optional);
    }

    WatchCreate {
        key: Vec<u8> = 1 (bytes = "vec");
        range_end: Vec<u8> = 2 (bytes = "vec");
        start_revision: i64 = 3 (int64);
        progress_notify: bool = 4 (bool);
        filters: Vec<i32> = 5 (int32, repeated);
        fragment: bool = 8 (bool);
    }

    Watched {
        canceled: bool = 4 (bool);
        compact_revision: i64 = 5 (int64);
        cancel_reason: String = 6 (string);
        events: Vec<Event> = 11 (message, repeated);
    }

    Event {
        /// 0: put, 1: deleted.
        kind: i32 = 1 (int32);
        kv: Option<KeyValue> = 2 (message, optional);
    }

    Authenticate {
        name: String = 1 (string);
        password: String = 2 (string);
    }

    Authenticated {
        token: String = 2 (string);
    }

    Status {
        /// Filled in before the indexes are read.
        header: Header = 1 (message, required);
        version: String = 2 (string);
        /// The size of its files, in bytes.
        db_size: i64 = 3 (int64);
        /// 0: it knows of none.
        leader: u64 = 4 (uint64);
        /// The last entry of raft's log that is known to be committed.
        raft_index: u64 = 5 (uint64);
        /// The last entry that this member has applied.
        raft_applied_index: u64 = 7 (uint64);
        /// Alarms, as text.
        errors: Vec<String> = 8 (string, repeated);
        is_learner: bool = 10 (bool);
    }
}

impl LeaseLives {
    pub(crate) fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl_s).unwrap_or_default() * 1000
    }
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

impl TxnDone {
    /// The results of its ranges, in order. `more` is set if a limit cut one off.
    pub(crate) fn found<const N: usize>(self) -> [Ranged; N] {
        let mut ranged = self.responses.into_iter().filter_map(|outcome| outcome.range);
        std::array::from_fn(|_| ranged.next().unwrap_or_default())
    }
}

impl Ranged {
    /// Where the next page begins, if a limit cut this one off.
    pub(crate) fn next_key(&self) -> Option<Vec<u8>> {
        let last = self.kvs.last().filter(|_| self.more)?;
        Some([&*last.key, &[0]].concat())
    }
}
