//! Incarnations of hosts in PostgreSQL.
//!
//! Invariant: two incarnations never have the same number within one history of the server.

pub(super) mod incarnation;
