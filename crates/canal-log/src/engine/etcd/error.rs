//! The errors of etcd, and their meaning for the caller.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::engine::Outage;
use crate::engine::calls::innermost;

/// The result of a call to etcd.
pub(super) type Result<T, E = EtcdError> = std::result::Result<T, E>;

/// Why a call was not carried out, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EtcdError {
    /// Connect again, perhaps to another member.
    #[error(transparent)]
    Outage(#[from] Outage),
    /// The requested revision has been compacted, or does not exist yet.
    #[error("etcd compacts too early")]
    OtherRevision,
    /// The token has expired, or the users were changed: log in again.
    #[error("etcd refuses the token that it issued")]
    Token,
    /// The lease has ended.
    #[error("a lease in etcd ended early")]
    NoLease,
    /// etcd is at its quota and accepts no writes until space is freed.
    #[error("{FULL}")]
    Full,
}

impl EtcdError {
    /// An error that may pass.
    pub(super) fn away(why: impl Into<String>) -> Self {
        Self::Outage(Outage::unreachable(why))
    }

    /// An error that a person has to fix, and how.
    pub(super) fn refused(why: impl Into<String>, hint: &str) -> Self {
        Self::Outage(Outage::refused(why, Some(hint)))
    }

    pub(super) fn forbidden() -> Self {
        Self::refused(
            "the user may not read and write below the prefix in etcd",
            "etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/",
        )
    }
}

impl From<EtcdError> for Outage {
    fn from(error: EtcdError) -> Self {
        let why = error.to_string();
        match error {
            EtcdError::Outage(outage) => outage,
            // The call can wait: an operator makes room, or etcd itself does.
            EtcdError::Full => Self { hint: Some(ROOM.to_owned()), ..Self::unreachable(why) },
            _ => Self::unreachable(why),
        }
    }
}

/// The message for an etcd at its quota.
pub(crate) const FULL: &str = "etcd is out of space and refuses writes";

/// How to make room.
pub(crate) const ROOM: &str = "make room with `etcdctl compact` and `etcdctl defrag`, then \
                               `etcdctl alarm disarm`; see etcd's --auto-compaction-retention and \
                               --quota-backend-bytes";

/// The texts come from `api/v3rpc/rpctypes/error.go` of etcd.
impl From<Status> for EtcdError {
    fn from(status: Status) -> Self {
        let said = status.message().trim_start_matches("etcdserver: ").to_owned();
        let has = |words: &str| said.contains(words);
        match status.code() {
            Code::OutOfRange if has("required revision") => Self::OtherRevision,
            Code::Unauthenticated => Self::Token,
            Code::InvalidArgument if has("revision of auth store is old") => Self::Token,
            Code::ResourceExhausted if has("database space exceeded") => Self::Full,
            Code::InvalidArgument if has("user name is empty") => Self::refused(
                "etcd requires a user and a password",
                "put them into the address: etcd://user:password@host",
            ),
            Code::InvalidArgument if has("authentication failed") => Self::refused(
                "etcd refuses the user or the password",
                "write special characters in the address as %xx",
            ),
            Code::PermissionDenied => Self::forbidden(),
            Code::NotFound if has("lease not found") => Self::NoLease,
            Code::Unimplemented => Self::refused(
                format!("this is not etcd, or older than 3.4: {said}"),
                "canal needs etcd 3.4 or later",
            ),
            Code::InvalidArgument if has("request is too large") => Self::refused(
                "etcd refuses a request because of its size",
                "set etcd's --max-request-bytes to 1572864, its default, or more",
            ),
            _ => match status.source() {
                Some(_) => lost(&status),
                None => Self::away(in_plain_words(&said)),
            },
        }
    }
}

/// The report of etcd, or of its gRPC library, in plain words.
fn in_plain_words(said: &str) -> String {
    let has = |words: &str| said.contains(words);
    let plain = match said {
        _ if has("no leader") => "etcd has no leader",
        _ if has("leader changed") => "etcd is electing a leader",
        _ if has("timed out") || has("Timeout expired") || has("deadline") => SILENT,
        _ if has("too many requests") => "etcd is overloaded",
        _ if has("server stopped") || has("stopping") => "etcd is shutting down",
        "" => LOST,
        // From the library, not from etcd.
        _ if has("h2 ") || has("http2") || has("grpc") || has("HTTP") || has("transport") => LOST,
        _ => return format!("etcd reports: {said}"),
    };
    tracing::debug!("{plain}: {said}");
    plain.to_owned()
}

/// The message for an etcd that takes too long.
pub(crate) const SILENT: &str = "etcd does not answer";

/// The beginning of the message for a broken connection.
pub(crate) const LOST: &str = "the connection to etcd is lost";

fn lost(status: &Status) -> EtcdError {
    let why = innermost(status);
    // With TLS 1.3, a client learns only after the handshake that its certificate is refused.
    certificate(&why).unwrap_or_else(|| {
        tracing::debug!("{LOST}: {why}");
        let silent = why.contains("keep-alive") || why.contains("timed out");
        EtcdError::away(if silent { SILENT } else { LOST })
    })
}

/// The error for an invalid certificate, which a person must replace.
pub(crate) fn certificate(why: &str) -> Option<EtcdError> {
    let concerns = why.contains("ertificate") || why.contains("UnknownCA");
    concerns.then(|| {
        EtcdError::refused(
            format!("etcd and canal do not trust each other: {why}"),
            "name the files in the address: etcds://host/prefix?cacert=FILE with etcd's CA \
             certificate, and &cert=FILE&key=FILE if etcd requires a certificate",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_messages_of_etcd_are_distinguished() {
        let error = |code, said: &str| EtcdError::from(Status::new(code, said));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(error(Code::OutOfRange, compacted), EtcdError::OtherRevision);
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(error(Code::ResourceExhausted, full), EtcdError::Full);
        let busy = "etcdserver: too many requests";
        assert_eq!(error(Code::ResourceExhausted, busy), EtcdError::away("etcd is overloaded"));
        let token = "etcdserver: invalid auth token";
        assert_eq!(error(Code::Unauthenticated, token), EtcdError::Token);
        let leader = error(Code::Unavailable, "etcdserver: no leader");
        assert_eq!(leader, EtcdError::away("etcd has no leader"));
        for (code, said, plain) in [
            (Code::Unknown, "h2 protocol error: http2 error", LOST),
            (Code::Unavailable, "", LOST),
            (Code::Internal, "grpc-status header missing, mapped from HTTP status code 502", LOST),
            (Code::Unavailable, "etcdserver: request timed out", SILENT),
            (Code::Cancelled, "Timeout expired", SILENT),
        ] {
            assert_eq!(error(code, said), EtcdError::away(plain), "{said}");
        }
    }
}
