//! Where the worlds of this test program keep their table: here, in the journal of one machine.
//! `tests/whole_postgres` and `tests/whole_etcd` have modules of this name for their engines.

use crate::world::hosts::Log;

/// Whether an engine keeps the table, and the clients of a world are spread over two hosts.
pub(crate) const IS_ENGINE: bool = false;

/// A log for one world; `None` without an engine.
pub(crate) fn log() -> Option<Log> {
    None
}
