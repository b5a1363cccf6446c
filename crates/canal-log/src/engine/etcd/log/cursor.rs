//! The position of a reader in the log, and whether the log is still the one that it read.

use crate::engine::etcd::connection::messages::KeyValue;
use crate::engine::etcd::layout::{Pointer, position};
use crate::engine::{Hash, Placed, Position, Read};

/// The position up to which a reader has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The position of the last batch, or of the snapshot; 0 before the first.
    pub position: Position,
    /// The batch read there; `None` after a snapshot and before the first batch.
    pub read: Option<Read>,
}

impl Cursor {
    pub(crate) fn after(read: Option<Read>) -> Self {
        Self { position: read.map_or(Position(0), |read| read.position), read }
    }

    /// The cursor after a batch.
    pub(crate) fn behind(batch: &Placed) -> Self {
        Self { position: batch.position, read: Some(batch.read()) }
    }
}

/// Whether a reader can continue from a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorState {
    Good,
    Rewritten,
    Compacted,
}

/// `batch` is the value at the key of the batch that was read.
///
/// The batch at the pointer's own position is deleted only after there is a newer pointer, so a
/// reader that has read exactly up to it can be checked too.
pub(crate) fn standing(
    cursor: &Cursor,
    pointer: Option<&Pointer>,
    batch: Option<&KeyValue>,
) -> CursorState {
    let covered = pointer.map_or(Position(0), |pointer| pointer.position);
    let (same, other) = match (&cursor.read, batch) {
        (Some(read), Some(kv)) => {
            let at = position(kv.mod_revision);
            let same = at == read.position && Hash::of(&kv.value) == read.body;
            (same, !same)
        }
        (Some(_), None) => (false, false),
        (None, _) => (covered == cursor.position, false),
    };
    if other {
        CursorState::Rewritten
    } else if covered > cursor.position {
        CursorState::Compacted
    } else if same {
        CursorState::Good
    } else {
        CursorState::Rewritten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::HostId;

    fn batch(at: i64, body: &[u8]) -> KeyValue {
        KeyValue { mod_revision: at, value: body.into(), ..KeyValue::default() }
    }

    fn read(at: u64, body: &[u8]) -> Cursor {
        let position = Position(at);
        let read = Read { position, host: HostId(1), sequence: 1, body: Hash::of(body) };
        Cursor::after(Some(read))
    }

    fn pointer(at: u64) -> Option<Pointer> {
        let name = String::new();
        Some(Pointer { position: Position(at), name, pieces: 1, body: String::new() })
    }

    fn stands(cursor: &Cursor, pointer: Option<Pointer>, batch: Option<KeyValue>) -> CursorState {
        standing(cursor, pointer.as_ref(), batch.as_ref())
    }

    #[test]
    fn a_reader_that_finds_its_batch_goes_on_unless_a_snapshot_covers_the_next() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, None, Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, pointer(4), Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, pointer(5), Some(batch(5, b"a"))), CursorState::Good);
        assert_eq!(stands(&cursor, pointer(6), Some(batch(5, b"a"))), CursorState::Compacted);
    }

    #[test]
    fn another_batch_at_the_place_is_another_history() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, None, Some(batch(5, b"b"))), CursorState::Rewritten);
        assert_eq!(stands(&cursor, None, Some(batch(6, b"a"))), CursorState::Rewritten);
        assert_eq!(stands(&cursor, pointer(9), Some(batch(5, b"b"))), CursorState::Rewritten);
    }

    #[test]
    fn a_batch_that_is_missing_was_covered_or_never_was() {
        let cursor = read(5, b"a");
        assert_eq!(stands(&cursor, pointer(6), None), CursorState::Compacted);
        assert_eq!(stands(&cursor, pointer(5), None), CursorState::Rewritten);
        assert_eq!(stands(&cursor, pointer(4), None), CursorState::Rewritten);
        assert_eq!(stands(&cursor, None, None), CursorState::Rewritten);
    }

    #[test]
    fn behind_a_snapshot_and_before_the_first_batch_the_pointer_decides() {
        let start = Cursor::after(None);
        assert_eq!(stands(&start, None, None), CursorState::Good);
        assert_eq!(stands(&start, pointer(3), None), CursorState::Compacted);
        let behind = Cursor { position: Position(3), read: None };
        assert_eq!(stands(&behind, pointer(3), None), CursorState::Good);
        assert_eq!(stands(&behind, pointer(4), None), CursorState::Compacted);
        assert_eq!(stands(&behind, None, None), CursorState::Rewritten);
    }
}
