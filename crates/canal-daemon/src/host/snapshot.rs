//! The stored form of a shared table's snapshot.

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::encoding::{Unreadable, read, table_hash, write};
use canal_core::Snapshot;
use canal_log::engine::Hash;

/// A table, and the state that a reader needs to continue from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::host) struct Kept {
    pub(in crate::host) chain: Chain,
    /// The hash of `table`.
    pub(in crate::host) hash: Hash,
    pub(in crate::host) table: Snapshot,
}

pub(in crate::host) fn write_kept(kept: &Kept) -> Vec<u8> {
    write("snapshot", kept)
}

pub(in crate::host) fn read_kept(body: &[u8]) -> Result<Kept, Unreadable> {
    let kept: Kept = read("snapshot", body)?;
    if table_hash(&kept.table) != kept.hash {
        return Err(Unreadable::Damaged("its table does not match its hash".to_owned()));
    }
    if kept.table.revision != kept.chain.revision() {
        return Err(Unreadable::Damaged("its table has another revision".to_owned()));
    }
    Ok(kept)
}
