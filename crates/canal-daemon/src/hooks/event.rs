//! The event for a hook: the daemon notes it, and the thread of the hook serializes it for the
//! program, as one JSON object on one line.

use serde::{Deserialize, Serialize};

use crate::config::hooks::On;
use crate::history::followed_requests::EndedRequest;
use canal_history::Ending;
use canal_protocol::{HistoryClient, HistoryItem, HistoryStep};

/// The most holders in the event of a long wait.
pub(crate) const HOLDERS_MAX: usize = 8;

/// An event. It shares the request with the log, so creating it is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub on: On,
    /// The request. One that has not ended is here as if it ended at the time of the event.
    pub ended: EndedRequest,
    /// Why the request waits, if it does.
    pub reason: Option<String>,
    /// The holders of the locks that it waits for.
    pub holders: Vec<HolderFacts>,
}

impl On {
    /// The event for a hook at the end of a request; `None` if there is none.
    pub(crate) fn of(ending: &Ending) -> Option<Self> {
        match ending {
            Ending::Expired | Ending::Lost => Some(Self::LostLease),
            Ending::Forced { .. } => Some(Self::ForcedRelease),
            Ending::Deadlock(_) => Some(Self::Deadlock),
            _ => None,
        }
    }
}

impl EndedRequest {
    /// The user against whose limits its event counts. For a forced release, this is the user who
    /// forced it, if known; otherwise, it is the owner of the request.
    pub(crate) fn by_uid(&self) -> u32 {
        match self.ending {
            Ending::Forced { by: Some(by) } => by.uid,
            _ => self.open.asked.uid,
        }
    }
}

impl Event {
    /// An event of a request that does not wait.
    pub(crate) fn of(on: On, ended: EndedRequest) -> Self {
        // The kernel's report stays with the history, which closes its descriptor.
        let ended = EndedRequest { exit: None, ..ended };
        Self { on, ended, reason: None, holders: Vec::new() }
    }

    /// The input for the program of the hook.
    pub(crate) fn facts(&self, about: &About, dropped: u64) -> Facts {
        let is_lost = matches!(self.ended.ending, Ending::Expired | Ending::Lost);
        let told = self.ended.record().shown(0);
        Facts {
            event: self.on,
            at: told.ended,
            asked: told.asked,
            waited_ms: told.waited_ms,
            held_ms: told.held_ms,
            items: told.items.into_iter().map(|it| HistoryItem { slots: None, ..it }).collect(),
            token: told.token,
            session: told.session,
            uid: told.uid,
            pid: told.pid,
            command: told.command,
            note: told.note,
            reason: self.reason.clone(),
            holders: self.holders.clone(),
            by: told.by,
            cycle: told.cycle,
            how: is_lost.then_some(told.how),
            host: about.host.clone(),
            socket: about.socket.clone(),
            dropped,
        }
    }
}

/// The facts about the daemon that a program receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub socket: String,
    /// The name of this host, if other hosts share the table.
    pub host: Option<String>,
}

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
    use std::sync::Arc;

    use super::*;
    use crate::history::followed_requests::tests::open_hold;
    use crate::wording::time;
    use canal_core::{Mode, UnixMillis};

    fn ended(ending: Ending) -> EndedRequest {
        let text = r#"{"tag":"00000000000000000000000000000001","owner":{"process":{"pid":12,"started":2}},"uid":7,"command":"x",
            "note":"n","items":[{"key":"a","ask":{"counted":{"count":2}}},{"key":"b","ask":"write"}],
            "wait":{"yes":{}}}"#;
        let open = open_hold(Arc::new(serde_json::from_str(text).unwrap()), Vec::new());
        open.ended_at(10_000, ending)
    }

    #[test]
    fn hooks_are_told_of_three_ends_only() {
        let told = |ending: &Ending| On::of(ending);
        assert_eq!(told(&Ending::Expired), Some(On::LostLease));
        assert_eq!(told(&Ending::Lost), Some(On::LostLease));
        assert_eq!(told(&Ending::Forced { by: None }), Some(On::ForcedRelease));
        assert_eq!(told(&Ending::Deadlock(Vec::new())), Some(On::Deadlock));
        for ending in [Ending::Released, Ending::Ended, Ending::Timeout, Ending::Full] {
            assert_eq!(told(&ending), None);
        }
    }

    #[test]
    fn facts_say_what_the_history_says() {
        let about = About { socket: "/s".to_owned(), host: Some("alpha".to_owned()) };
        let forced = ended(Ending::Forced { by: Some(HistoryClient { uid: 9, pid: 77 }) });
        let event = Event::of(On::ForcedRelease, forced);
        assert_eq!(event.ended.by_uid(), 9, "who does it again and again has many events");
        let facts = event.facts(&about, 4);
        assert_eq!((facts.uid, facts.pid, facts.token, facts.dropped), (7, 12, Some(5), 4));
        assert_eq!(facts.by, Some(HistoryClient { uid: 9, pid: 77 }));
        assert_eq!(facts.asked, time(UnixMillis(7_000)));
        assert_eq!(facts.at, time(UnixMillis(10_000)));
        let keys: Vec<_> = facts.items.iter().map(|it| (it.key.as_str(), it.count)).collect();
        assert_eq!(keys, [("a", 2), ("b", 0)]);
        assert_eq!(facts.session.as_deref(), Some("s3"));
        assert_eq!((facts.how, facts.host.as_deref()), (None, Some("alpha")));
        let (session, key) = ("s3".to_owned(), "a".to_owned());
        let cycle = vec![HistoryStep { session, uid: 7, pid: 12, key }];
        let event = Event::of(On::Deadlock, ended(Ending::Deadlock(cycle)));
        assert_eq!(event.ended.by_uid(), 7);
        assert_eq!(event.facts(&about, 0).cycle[0].session, "s3");
        let lost = Event::of(On::LostLease, ended(Ending::Lost)).facts(&about, 0);
        assert_eq!(lost.how.as_deref(), Some("lost"));
    }

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
