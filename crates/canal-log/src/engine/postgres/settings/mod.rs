//! The server's address and the login: the URL, TLS and the password file.
//!
//! Invariant: no error or debug text shows a password.

pub(super) mod passfile;
pub(super) mod tls;
pub(super) mod url;
