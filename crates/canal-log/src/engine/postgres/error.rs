//! The server's errors as text, and whether each may pass by itself.
//!
//! Invariant: no text contains a password or `Debug` output.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use crate::engine::Outage;
use crate::engine::calls::innermost;

/// The result of a request to the server.
pub(super) type Result<T, E = PostgresError> = std::result::Result<T, E>;

/// Why there is no session, or no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresError {
    /// The server is unusable for now. The request may or may not have been carried out.
    #[error(transparent)]
    Outage(#[from] Outage),
    /// The server rolled the transaction back in favour of another one; ask again immediately.
    #[error("{0}")]
    Undone(String),
}

/// The advice for a connection that passes through a pooler.
pub(super) const DIRECT: &str = "name the PostgreSQL server itself in the URL, not PgBouncer or \
                                 another pooler: canal needs its own connection";

impl PostgresError {
    /// An error that may pass.
    pub(super) fn away(why: impl Into<String>) -> Self {
        Self::Outage(Outage::unreachable(why))
    }

    /// An error that a person has to fix, and how.
    pub(super) fn refused(why: impl Into<String>, hint: &str) -> Self {
        Self::Outage(Outage::refused(why, Some(hint)))
    }

    /// Whether a person has to fix the cause.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Outage(outage) if outage.refused)
    }

    /// The error for any call that takes too long.
    pub(super) fn silent() -> Self {
        Self::away("the server does not answer in time")
    }

    /// The error for a connection that ended for an unknown reason.
    pub(super) fn closed() -> Self {
        Self::away("the server closed the connection")
    }

    /// The error for tables that differ from those at the start of the session: a dump was loaded.
    pub(super) fn replaced() -> Self {
        Self::away("other tables replaced the log's tables")
    }

    /// The error of a login. `passfile` explains why the usual password file was not used.
    pub(super) fn at_login(error: Error, passfile: Option<&str>) -> Self {
        match passfile {
            Some(passfile) if is_password_missing(&error) => {
                Outage::refused(format!("the server asks for a password: {passfile}"), None).into()
            }
            _ => error.into(),
        }
    }

    /// Whether the server itself denied permission.
    pub(super) fn is_denied(error: &Error) -> bool {
        error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
    }
}

impl From<PostgresError> for Outage {
    fn from(error: PostgresError) -> Self {
        match error {
            PostgresError::Outage(outage) => outage,
            PostgresError::Undone(why) => Self::unreachable(why),
        }
    }
}

impl From<Error> for PostgresError {
    fn from(error: Error) -> Self {
        if let Some(said) = error.as_db_error() {
            return of_server(said);
        }
        let (kind, why) = (error.to_string(), innermost(&error));
        match kind.as_str() {
            "error performing TLS handshake" => of_tls(&error, &why),
            "invalid configuration" if is_password_missing(&error) => Self::refused(
                "the server asks for a password, and none is set",
                "put it into a password file (~/.pgpass, or passfile=FILE in the URL)",
            ),
            "invalid configuration" | "authentication error" => {
                Outage::refused(format!("cannot log in: {why}"), None).into()
            }
            "error connecting to server" if why == "database does not allow writes" => {
                Self::away("the server is a standby, or read-only")
            }
            "error connecting to server" => Self::away(format!("cannot connect: {why}")),
            _ => {
                tracing::debug!("the connection is lost: {why}");
                Self::away("the connection to the server is lost")
            }
        }
    }
}

fn is_password_missing(error: &Error) -> bool {
    innermost(error) == "password missing"
}

/// A plain explanation where there is one. The server's own text is in the server's language, and
/// describes statements that the user did not write.
fn of_server(said: &DbError) -> PostgresError {
    let why = said.message().to_owned();
    tracing::debug!("the server reports: {why}");
    let refused = |hint: &str| PostgresError::refused(why.as_str(), hint);
    match *said.code() {
        SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::UNIQUE_VIOLATION => PostgresError::Undone(why),
        SqlState::QUERY_CANCELED => PostgresError::silent(),
        SqlState::INSUFFICIENT_PRIVILEGE => Outage::refused(why, None).into(),
        // PgBouncer refuses parameters that it cannot forward.
        SqlState::PROTOCOL_VIOLATION if why.contains("startup parameter") => {
            PostgresError::refused(format!("this is a pooler ({why})"), DIRECT)
        }
        SqlState::INVALID_PASSWORD => {
            refused("check the user and password in the URL, or in a password file (~/.pgpass)")
        }
        // The text is in the server's language, but the function's name is not.
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            if said.routine() == Some("InitializeSessionUserId") =>
        {
            refused(
                "create the role on the server (CREATE ROLE … LOGIN PASSWORD '…'), or name \
                 another user in the URL",
            )
        }
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION => refused(
            "check pg_hba.conf on the server: it lists the users, the addresses, and whether TLS \
             is required (sslmode=require)",
        ),
        SqlState::INVALID_CATALOG_NAME => {
            refused("create it with `createdb`, or name another one in the URL")
        }
        SqlState::ADMIN_SHUTDOWN => PostgresError::away(
            "the server is shutting down, or an administrator ended the session",
        ),
        SqlState::CRASH_SHUTDOWN => PostgresError::away("the server is restarting after a crash"),
        SqlState::CANNOT_CONNECT_NOW => {
            PostgresError::away("the server is starting up or shutting down")
        }
        SqlState::TOO_MANY_CONNECTIONS => {
            PostgresError::away("the server has reached its connection limit (max_connections)")
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => PostgresError::away("the database is read-only"),
        SqlState::DISK_FULL => PostgresError::away("the server's disk is full"),
        SqlState::OUT_OF_MEMORY => PostgresError::away("the server is out of memory"),
        SqlState::UNDEFINED_TABLE => PostgresError::away("the log's tables are gone"),
        _ => PostgresError::away(format!("the server reports: {why}")),
    }
}

fn of_tls(error: &Error, why: &str) -> PostgresError {
    if why == "server does not support TLS" {
        return PostgresError::refused(
            "the server does not offer TLS, which sslmode requires",
            "set `ssl = on` on the server, or use sslmode=prefer where unencrypted connections are \
             safe",
        );
    }
    let hint = match certificate(error) {
        Some(rustls::CertificateError::UnknownIssuer) => {
            "name the server's certificate authority with sslrootcert=FILE, or use this machine's \
             with sslrootcert=system"
        }
        Some(
            rustls::CertificateError::NotValidForName
            | rustls::CertificateError::NotValidForNameContext { .. },
        ) => "name the server in the URL as its certificate does (subjectAltName)",
        Some(_) => "check the certificate of the server (ssl_cert_file)",
        // A connection that breaks in the middle; the server did not report this itself.
        None => return PostgresError::away(format!("cannot set up TLS with the server: {why}")),
    };
    PostgresError::refused(format!("cannot set up TLS with the server: {why}"), hint)
}

/// The error of the server's certificate, if that is the cause.
fn certificate(error: &Error) -> Option<&rustls::CertificateError> {
    let io = error.source()?.downcast_ref::<io::Error>()?;
    match io.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(what) => Some(what),
        _ => None,
    }
}
