//! The place of the table in this test program: the journal of one machine. `tests/whole_postgres`
//! and `tests/whole_etcd` have their own module of this name.

use crate::world::hosts::Log;

/// Whether an engine keeps the table. If so, the clients of a world are spread over two hosts.
pub(crate) const IS_ENGINE: bool = false;

/// A log for one world; `None` without an engine.
pub(crate) fn log() -> Option<Log> {
    None
}
