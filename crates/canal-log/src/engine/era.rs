//! Eras: the lives of an engine, each of which the log names.
//!
//! Invariant: an engine carries out no call over a connection before the log names the era of the
//! server behind it. So no host appends as if nothing had been lost.

use serde::{Deserialize, Serialize};

use super::{Batch, Link};
use canal_core::{Change, ENTRY_VERSION, Entry, HostId, Token, UnixMillis};

/// A life of the engine. Another one begins whenever the engine may have lost data that it had
/// acknowledged: after a restart, the promotion of a standby, or the restore of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Era {
    /// The number among the eras that the log names; the first is 1.
    pub number: u64,
    /// The engine's evidence that it is in this era, which only its own driver reads.
    pub sign: String,
}

/// An era that the log does not name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EraChange {
    /// The last era that the log names.
    pub before: Option<Era>,
    /// The era that begins, with the next number.
    pub era: Era,
    /// Whether acknowledged batches may be missing. A database that recovers from a crash has them
    /// all; a promoted standby or a restored backup may not.
    pub may_lack: bool,
}

/// The author of the batches that note eras.
pub const NO_HOST: HostId = HostId(0);

/// The end of an era's sign if data from before it may be missing.
pub(super) const LACKS: &str = "/lacks";

impl EraChange {
    /// The era after `before`, with this sign.
    pub(crate) fn after(before: Option<Era>, sign: &str, may_lack: bool) -> Self {
        let number = before.as_ref().map_or(0, |era| era.number).saturating_add(1);
        let lacks = if may_lack { LACKS } else { "" };
        Self { before, era: Era { number, sign: format!("{sign}{lacks}") }, may_lack }
    }

    /// The body of the batch that notes the era, which has the number of the era. Its author need
    /// not have read anything.
    pub(crate) fn batch(&self, at: UnixMillis) -> Vec<u8> {
        let number = self.era.number;
        let floor = Token::by_clock(at);
        let change = Change::Era { number, may_lack: self.may_lack, floor };
        let entries = vec![Entry { version: ENTRY_VERSION, at, change }];
        Batch { host: NO_HOST, sequence: number, seen: Link::default(), entries }.encode()
    }
}
