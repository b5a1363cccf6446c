//! The requests that the history follows: open ones, and those that have ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::waiters::Open;
use crate::wording::pid_of;
use canal_core::{FrameId, Owner, RequestId, Table, View};
use canal_history::{Batch, Ending, Item, Record};
use canal_sys::pidfd::Pidfd;
use canal_sys::process::zombie_status;

impl Open {
    /// The ended request, if it ended at this time.
    pub(crate) fn ended_at(self, ended_ms: u64, ending: Ending) -> EndedRequest {
        EndedRequest { open: self, ended_ms, ending, host: None, at_least: false, exit: None }
    }
}

/// A request that has ended, before it becomes a record. It shares the request with the log, so
/// creating it is cheap.
#[derive(Clone, Debug)]
pub(crate) struct EndedRequest {
    /// Its state when it ended.
    pub open: Open,
    pub ended_ms: u64,
    pub ending: Ending,
    pub host: Option<Arc<str>>,
    /// Whether no daemon saw the end, so that the times are lower bounds.
    pub at_least: bool,
    /// The process whose end ended the request. The kernel may have its exit status.
    pub exit: Option<Arc<Exit>>,
}

impl EndedRequest {
    pub(crate) fn waited_ms(&self) -> u64 {
        let until_ms = self.open.hold.as_ref().map_or(self.ended_ms, |hold| hold.since.0);
        until_ms.saturating_sub(self.open.asked_at.0)
    }

    pub(crate) fn held_ms(&self) -> Option<u64> {
        self.open.hold.as_ref().map(|hold| self.ended_ms.saturating_sub(hold.since.0))
    }

    /// Its record.
    pub(crate) fn record(&self) -> Record<'_> {
        let Open { asked, session, hold, .. } = &self.open;
        let held = hold.as_ref().map_or(&[][..], |hold| &hold.items);
        let items = asked.items.iter().map(|item| {
            let held = held.iter().find(|held| held.key == item.key);
            let (count, stated) = item.ask.counted().unzip();
            let size = held.and_then(|held| held.view).or(stated.flatten());
            Item {
                key: item.key.as_str().into(),
                mode: item.ask.mode(),
                count: count.unwrap_or(0),
                size: stated.map_or(0, |_| size.unwrap_or(View::ONE).capacity()),
                // Slots of another hold are not its own.
                slots: held.filter(|held| !held.shared).map_or(&[][..], |it| &it.slots.0).into(),
            }
        });
        Record {
            ended_ms: self.ended_ms,
            waited_ms: self.waited_ms(),
            held_ms: self.held_ms(),
            token: hold.as_ref().map_or(0, |hold| hold.token.0),
            items: items.collect(),
            session: session.0,
            uid: asked.uid,
            pid: pid_of(&asked.owner),
            command: asked.command.0.as_str().into(),
            note: asked.note.as_deref().map(Into::into),
            host: self.host.as_deref().map(Into::into),
            at_least: self.at_least,
            ending: self.ending.clone(),
        }
    }
}

/// The requests that ended while no daemon ran.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    ended: Vec<(RequestId, Open, Ending)>,
    /// The last time at which the previous daemon is known to have run; 0 if that is unknown.
    pub known_ms: u64,
}

impl Unseen {
    /// Everything in this table except leases, which outlive processes and machines.
    pub(crate) fn rebooted(table: &Table, known_ms: u64) -> Self {
        let mut unseen = Self::of_table(table, known_ms);
        unseen.ended.retain(|(_, open, _)| {
            open.hold.is_none() || matches!(open.asked.owner, Owner::Process(_))
        });
        unseen.ended.iter_mut().for_each(|(.., how)| *how = Ending::Reboot);
        unseen
    }

    /// Everything in this table, all of which may have ended.
    pub(crate) fn of_table(table: &Table, known_ms: u64) -> Self {
        let holds = table.holds().map(|hold| {
            let open = Open::of_hold(table, hold);
            match hold.is_collecting() {
                // Its client never received the grant.
                true => (hold.request, Open { hold: None, ..open }, Ending::Withdrawn),
                false => (hold.request, open, Ending::Ended),
            }
        });
        let waiters = table.waiters();
        let waiters = waiters.map(|it| (it.id, Open::of_waiter(table, it), Ending::Ended));
        Self { ended: holds.chain(waiters).collect(), known_ms }
    }

    /// Removes the requests that are still in this table.
    pub(crate) fn leave_out(&mut self, table: &Table) {
        let is_open = |id| table.hold_of(id).is_some() || table.waiter(id).is_some();
        self.ended.retain(|(request, ..)| !is_open(*request));
    }

    /// The records of the requests that ended. They are known to have been open until this time.
    pub(super) fn records(&self, known_ms: u64, host: Option<&Arc<str>>) -> Batch {
        let mut records = Batch::default();
        for (_, open, how) in &self.ended {
            // It was open when the client made the request, and when it was granted.
            let ended_ms = open.begun_at().0.max(known_ms);
            let ended = open.clone().ended_at(ended_ms, how.clone());
            records.push(&EndedRequest { host: host.cloned(), at_least: true, ..ended }.record());
        }
        records
    }
}

// A process that is not the daemon's child leaves its exit status in its pidfd. The kernel stores
// the status there when the parent has reaped the process, shortly after the daemon learns that it
// has ended. So the daemon keeps the pidfd until the record is written. Until the process is
// reaped, which some parents never do, /proc has the status.

/// The daemon keeps a pidfd for at most one in this many descriptors.
const SHARE_OF_DESCRIPTORS: usize = 16;

/// The most pidfds that the daemon keeps.
const KEPT_MAX: usize = 256;

/// The ended processes of frames that have no record yet.
#[derive(Debug, Default)]
pub(super) struct Exits {
    pub(super) of: BTreeMap<FrameId, Arc<Exit>>,
    /// Each pidfd that is kept, here or in a record that is not written yet, has a reference.
    kept: Arc<()>,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Exit {
    pidfd: Pidfd,
    _kept: Arc<()>,
}

impl Exits {
    /// Keeps the pidfd of the owner of a frame, if there is room among `descriptors`.
    pub(super) fn keep(&mut self, frame: FrameId, pidfd: Pidfd, descriptors: usize) {
        let most = KEPT_MAX.min(descriptors / SHARE_OF_DESCRIPTORS);
        if Arc::strong_count(&self.kept) <= most {
            let exit = Exit { pidfd, _kept: Arc::clone(&self.kept) };
            self.of.insert(frame, Arc::new(exit));
        }
    }
}

impl Exit {
    /// The status of wait(2); `None` if the kernel does not report it, or not yet.
    pub(super) fn status(&self) -> Option<i32> {
        self.pidfd.wait_status().or_else(|| zombie_status(&self.pidfd))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use super::*;
    use canal_core::{HeldItem, HoldState, Request, Slots, Token, UnixMillis};

    /// A request of frame 3 at 7 s, to which these items were granted at 8 s with token 5.
    pub(crate) fn open_hold(asked: Arc<Request>, items: Vec<HeldItem>) -> Open {
        let (frame, asked_at) = (FrameId(3), UnixMillis(7_000));
        let hold = HoldState {
            token: Token(5),
            request: RequestId(1),
            asked: Arc::clone(&asked),
            frame,
            since: UnixMillis(8_000),
            asked_at,
            provisional: false,
            orphaned: false,
            passed: 0,
            items,
        };
        Open { asked, frame, session: frame, asked_at, hold: Some(Arc::new(hold)) }
    }

    /// The slots and the size of each item of a request for `a` and `b`, of which it holds these.
    fn recorded(items: Vec<HeldItem>) -> Vec<(Vec<u64>, u64)> {
        let request = serde_json::json!({
            "tag": format!("{:032x}", 1), "owner": { "process": { "pid": 1, "started": 2 } },
            "uid": 7, "command": "x", "wait": "no", "items": [
                { "key": "a", "ask": { "counted": { "count": 1, "view": { "slots": { "slots": 9 } } } } },
                { "key": "b", "ask": { "counted": { "count": 1 } } }
            ]
        });
        let asked = Arc::new(serde_json::from_value(request).unwrap());
        let open = open_hold(asked, items);
        let ended = open.ended_at(2, Ending::Ended);
        let items = ended.record().items.into_iter();
        items.map(|item| (Slots(item.slots.into_owned()).iter().collect(), item.size)).collect()
    }

    fn held(key: &str, ranges: &[(u64, u64)], shared: bool) -> HeldItem {
        let item = serde_json::json!({
            "key": key, "mode": "counted", "slots": ranges, "shared": shared,
            "view": { "slots": { "slots": 4 } }
        });
        serde_json::from_value(item).unwrap()
    }

    #[test]
    fn each_item_keeps_its_own_slots() {
        assert_eq!(recorded(vec![held("a", &[(3, 3)], false)]), [(vec![3], 4), (vec![], 1)]);
        let second = recorded(vec![held("b", &[(0, 1), (4, 4)], false)]);
        assert_eq!(second, [(vec![], 9), (vec![0, 1, 4], 4)]);
        assert_eq!(recorded(Vec::new()), [(vec![], 9), (vec![], 1)]);
    }

    #[test]
    fn slots_of_another_hold_are_not_its_own() {
        let mixed = recorded(vec![held("a", &[(3, 3)], true), held("b", &[(5, 5)], false)]);
        assert_eq!(mixed, [(vec![], 4), (vec![5], 4)]);
    }

    #[test]
    fn only_so_many_descriptors_are_kept_and_they_are_given_back() {
        let mut child = Command::new("true").spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        let mut exits = Exits::default();
        for n in 0..5 {
            exits.keep(FrameId(n), pidfd.try_clone().unwrap(), 3 * SHARE_OF_DESCRIPTORS);
        }
        assert_eq!(exits.of.len(), 3);
        let held = exits.of.get(&FrameId(0)).cloned();
        exits.of.clear();
        assert_eq!(Arc::strong_count(&exits.kept), 2);
        drop(held);
        assert_eq!(Arc::strong_count(&exits.kept), 1);
        assert!(pidfd.wait_end(std::time::Duration::from_secs(60)));
        assert_eq!(zombie_status(&pidfd), Some(0));
        child.wait().unwrap();
        assert_eq!(zombie_status(&pidfd), None);
        // Only some kernels report the status of a process that has been reaped.
        assert!(matches!(pidfd.wait_status(), None | Some(0)));
    }
}
