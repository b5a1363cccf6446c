//! The input for the program of a hook on standard input: one JSON object on one line.

use serde::{Deserialize, Serialize};

use crate::config::hooks_section::On;
use canal_protocol::{HistoryClient, HistoryItem, HistoryStep};

/// The facts about an event. A field that does not apply is null or empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub event: On,
    /// When it happened, RFC 3339 UTC.
    pub at: String,
    /// When the client made the request, RFC 3339 UTC.
    pub asked: String,
    /// How long it waited, in milliseconds.
    pub waited_ms: u64,
    /// How long it has held, or had held, its keys, in milliseconds; null if it was not granted.
    pub held_ms: Option<u64>,
    /// The keys that it asked for.
    pub items: Vec<HistoryItem>,
    /// The fencing token; null if it was not granted.
    pub token: Option<u64>,
    pub session: Option<String>,
    pub uid: u32,
    /// The process; 0 for a lease.
    pub pid: u32,
    /// The command; null if the hook's user may not see it.
    pub command: Option<String>,
    /// The note of the client.
    pub note: Option<String>,
    /// For a long wait: why it waits, in one clause.
    pub reason: Option<String>,
    /// For a long wait: the first holders of the locks that it waits for.
    pub holders: Vec<HolderFacts>,
    /// For a forced release: the client that forced it, if it called the daemon of this host.
    pub by: Option<HistoryClient>,
    /// For a deadlock of several sessions: the ring, beginning with the refused request.
    pub cycle: Vec<HistoryStep>,
    /// For a lost lease: `expired`, or `lost` if this host lost its membership.
    pub how: Option<String>,
    /// The name of this host, if several hosts share the table.
    pub host: Option<String>,
    /// The socket of the daemon.
    pub socket: String,
    /// The number of events dropped since the previous one.
    pub dropped: u64,
}

/// A holder of a lock that a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HolderFacts {
    pub uid: u32,
    /// The process; 0 for a lease.
    pub pid: u32,
    /// The command; null if the hook's user may not see it.
    pub command: Option<String>,
    /// When the hold began, RFC 3339 UTC.
    pub since: String,
    /// The fencing token.
    pub token: u64,
}

impl Facts {
    /// Removes the data that a user may not see: the commands of others, unless the user is root.
    /// `canal status` has the same rule.
    pub(crate) fn for_viewer(mut self, viewer: u32) -> Self {
        let sees = |uid: u32| viewer == 0 || viewer == uid;
        self.command = self.command.filter(|_| sees(self.uid));
        for holder in &mut self.holders {
            holder.command.take_if(|_| !sees(holder.uid));
        }
        self
    }

    /// One line of JSON.
    pub(crate) fn line(&self) -> Vec<u8> {
        // Serialization fails only for maps with keys that are not strings, and there are none.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::Mode;

    fn facts() -> Facts {
        let holder = |uid: u32| HolderFacts {
            uid,
            pid: 5,
            command: Some("theirs".to_owned()),
            since: "2026-01-01T00:00:00Z".to_owned(),
            token: 3,
        };
        Facts {
            event: On::LongWait,
            at: "2026-01-01T00:10:00Z".to_owned(),
            asked: "2026-01-01T00:00:00Z".to_owned(),
            waited_ms: 600_000,
            held_ms: None,
            items: vec![HistoryItem {
                key: "a".to_owned(),
                mode: Mode::Counted,
                count: 1,
                slots: None,
            }],
            token: None,
            session: Some("s7".to_owned()),
            uid: 7,
            pid: 4,
            command: Some("mine\n\u{1b}[1m".to_owned()),
            note: None,
            reason: Some("full".to_owned()),
            holders: vec![holder(7), holder(8)],
            by: None,
            cycle: Vec::new(),
            how: None,
            host: None,
            socket: "/s".to_owned(),
            dropped: 0,
        }
    }

    #[test]
    fn a_hook_sees_the_commands_that_its_user_sees() {
        let seen = |viewer| {
            let facts = facts().for_viewer(viewer);
            let holders = facts.holders.iter().map(|it| it.command.is_some());
            std::iter::once(facts.command.is_some()).chain(holders).collect::<Vec<_>>()
        };
        assert_eq!(seen(0), [true, true, true]);
        assert_eq!(seen(7), [true, true, false]);
        assert_eq!(seen(8), [false, false, true]);
    }

    #[test]
    fn facts_are_one_line_and_every_field_is_there() {
        let line = String::from_utf8(facts().line()).unwrap();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(line.ends_with("}\n") && !line.contains('\u{1b}'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["event"], "long-wait");
        assert!(read["held_ms"].is_null() && read.get("by").is_some());
        assert_eq!(read["items"][0]["mode"], "counted");
        assert_eq!(serde_json::from_str::<Facts>(&line).unwrap(), facts());
    }
}
