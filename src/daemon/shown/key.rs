//! The keys of a status, each with who holds it and who waits for it.

use serde::{Serialize, Serializer};

use super::super::limits::PROCESSES_LOOKED_AT_MAX;
use super::super::words;
use super::holder::Looks;
use super::{Shown, pid_of, time};
use crate::core::{Key, Mode, RequestId, View};
use crate::protocol::{KeyShown, LeaseShown, WaiterShown};

impl<'a> Shown<'a> {
    /// The keys that `within` covers, or all. Processes are looked at until there are too many.
    /// They are looked up when they are written.
    pub(in super::super) fn keys(self, within: Option<&Key>) -> impl Serialize + use<'a> {
        let within = within.cloned();
        Each(move || {
            let mut looks_left = PROCESSES_LOOKED_AT_MAX;
            self.table.keys(within.as_ref()).map(move |key| self.key(key, &mut looks_left))
        })
    }

    /// The keys that begin with `prefix`, at most `max`, with nothing but their names.
    pub(in super::super) fn names(&self, prefix: &str, max: usize) -> Vec<KeyShown> {
        let keys = self.table.keys(None).filter(|key| key.as_str().starts_with(prefix));
        keys.take(max).map(name_only).collect()
    }

    fn key(self, key: &'a Key, looks_left: &mut usize) -> KeyShown<impl Serialize + use<'a>> {
        let report = self.table.report(key);
        let holds: Vec<_> = report.holders.iter().filter_map(|t| self.table.hold(*t)).collect();
        let holders = holds.iter().map(|hold| {
            let looks = if *looks_left > 0 { Looks::Closely } else { Looks::Briefly };
            *looks_left = looks_left.saturating_sub(1);
            self.holder(hold, Some(key), looks)
        });
        KeyShown {
            key: key.to_string(),
            kind: report.kind,
            held: report.held,
            capacity: report.view.map(View::capacity),
            view: report.view.map(|view| view.to_string()),
            stored: report.stored.is_some(),
            waiting: report.waiters.len() as u64,
            holders: holders.collect(),
            waiters: Each(move || {
                let waiters = (1..).zip(report.waiters.clone());
                waiters.filter_map(move |(position, id)| self.waiter(id, key, position))
            }),
        }
    }

    fn waiter(&self, id: RequestId, key: &Key, position: u64) -> Option<WaiterShown> {
        let waiter = self.table.waiter(id)?;
        let request = &waiter.request;
        let item = request.items.iter().find(|item| item.key == *key)?;
        let reason = match self.table.why(id) {
            Some(why) if why.key == *key => self.clause(&why, item.ask.mode()),
            Some(why) => {
                let mode = request.items.get(why.item).map_or(Mode::Counted, |it| it.ask.mode());
                format!("{} (`{}`)", self.clause(&why, mode), why.key)
            }
            None => "about to be granted".to_owned(),
        };
        Some(WaiterShown {
            pid: pid_of(&request.owner),
            uid: request.uid,
            command: self.command(request.uid, &request.command.0),
            since: time(waiter.since),
            position,
            priority: request.priority,
            count: words::count(item),
            mode: item.ask.mode(),
            view: words::stated_view(item).map(|view| view.to_string()),
            session: self.session(waiter.frame),
            host: self.label_of(waiter.frame),
            reason,
            lease: request.ttl_ms.map(not_yet),
        })
    }
}

/// What is made one by one while it is written: a report of ten thousand waiters is never in memory
/// as a whole, of which an allocator may keep the room.
struct Each<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A lease that still waits.
fn not_yet(ttl_ms: u64) -> LeaseShown {
    LeaseShown { ttl_ms, left_ms: None, expires: None, renewals: 0 }
}

fn name_only(key: &Key) -> KeyShown {
    KeyShown {
        key: key.to_string(),
        kind: None,
        held: 0,
        capacity: None,
        view: None,
        stored: false,
        waiting: 0,
        holders: Vec::new(),
        waiters: Vec::new(),
    }
}
