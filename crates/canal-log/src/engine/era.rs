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

/// The author of the batches that note eras.
pub const NO_HOST: HostId = HostId(0);

/// The end of an era's sign if data from before it may be missing.
pub(super) const LACKS: &str = "/lacks";

impl Era {
    /// The era after `before`, with this sign. `may_lack`: whether acknowledged batches may be
    /// missing. A database that recovers from a crash has them all; a promoted standby or a
    /// restored backup may not.
    pub(crate) fn after(before: Option<&Self>, sign: &str, may_lack: bool) -> Self {
        let number = before.map_or(0, |era| era.number).saturating_add(1);
        let lacks = if may_lack { LACKS } else { "" };
        Self { number, sign: format!("{sign}{lacks}") }
    }

    pub(crate) fn may_lack(&self) -> bool {
        self.sign.ends_with(LACKS)
    }

    /// The body of the batch that notes the era, which has the number of the era. Its author need
    /// not have read anything.
    pub(crate) fn batch(&self, at: UnixMillis) -> Vec<u8> {
        let (number, floor) = (self.number, Token::by_clock(at));
        let change = Change::Era { number, may_lack: self.may_lack(), floor };
        let entries = vec![Entry { version: ENTRY_VERSION, at, change }];
        Batch { host: NO_HOST, sequence: number, seen: Link::default(), entries }.encode()
    }
}
