//! Over what the worlds of this test binary keep their table: here, the journal of one machine.
//! `tests/whole_postgres` and `tests/whole_etcd` have an engine in its place.

use crate::world::spread::Log;

/// Whether the table is an engine's, and the clients of a world are spread over two hosts.
pub(crate) const IS_ENGINE: bool = false;

/// A log of a world's own.
pub(crate) fn log() -> Option<Log> {
    None
}
