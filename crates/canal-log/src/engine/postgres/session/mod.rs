//! One session with the server: opening and checking it, its tables, and the era of the server.
//!
//! Invariant: an open session writes to a primary, through no pooler, in tables of canal's format.

pub(super) mod connection;
pub(super) mod era;
mod era_change;
mod inspect;
pub(super) mod number;
pub(super) mod schema;
