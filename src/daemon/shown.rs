//! The table as clients see it.
//!
//! Invariant: the command of a process is shown to its user and to root only.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use super::conflict::{conflict, kin, obstacles};
use super::leases::Leases;
use super::ledger::Ledger;
use super::limits::PROCESSES_LOOKED_AT_MAX;
use super::owners::Owners;
use super::text::Text;
use super::words;
use crate::core::{
    FrameId, Granted, GrantedItem, HeldItem, HoldState, HostId, Item, Key, Mode, Owner, Reason,
    RequestId, Slots, Table, UnixMillis, View, Why,
};
use crate::protocol::{
    Grant, GrantedKey, HOLDERS_SHOWN_MAX, HolderShown, KeyShown, LeaseShown, OwnerShown, Progress,
    SlotShown, WaiterShown,
};
use crate::sys::clock;
use crate::sys::process::{RunState, run_state};

/// The table, as one client may see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) table: &'a Table,
    /// When leases end.
    pub(super) leases: &'a Leases,
    /// Frames of which it is not known whether their process still lives.
    pub(super) unverified: &'a BTreeSet<FrameId>,
    /// The user who looks.
    pub(super) viewer: u32,
    /// The host whose processes can be looked at.
    pub(super) here: HostId,
}

impl<'a> Shown<'a> {
    /// The table, as a user may see it.
    pub(super) fn to(
        viewer: u32,
        ledger: &'a Ledger,
        leases: &'a Leases,
        owners: &'a Owners,
    ) -> Self {
        let (table, here) = (&ledger.table, ledger.host);
        Self { table, leases, unverified: &owners.unverified, viewer, here }
    }

    /// What a request was granted, as it was decided just now.
    pub(super) fn grant(&self, granted: &Granted) -> Option<Grant<Text<'a>>> {
        let hold = self.table.hold(granted.token)?;
        let items = hold.asked.items.iter().zip(&granted.items);
        let keys = items.map(|(item, granted)| granted_key(item, granted)).collect();
        Some(self.grant_of(hold, keys))
    }

    /// What a request holds, for one who asks again. `acquired` is what is held now: what was held
    /// after the grant is known no more.
    pub(super) fn held(&self, hold: &'a HoldState) -> Grant<Text<'a>> {
        let keys = hold.items.iter().map(|item| self.held_key(item)).collect();
        self.grant_of(hold, keys)
    }

    fn grant_of(&self, hold: &'a HoldState, keys: Vec<GrantedKey<Text<'a>>>) -> Grant<Text<'a>> {
        Grant {
            keys,
            token: hold.token.0,
            owner: OwnerShown {
                pid: pid_of(&hold.asked.owner),
                command: Text::Itself(&hold.asked.command.0),
            },
            session: Text::Session(self.table.session(hold.frame)),
            frame: Text::Frame(hold.frame),
            children_fd: None,
            lease: self.lease(hold),
            handle: None,
            page_fd: None,
            line_fd: None,
        }
    }

    fn held_key(&self, item: &'a HeldItem) -> GrantedKey<Text<'a>> {
        GrantedKey {
            key: Text::Itself(item.key.as_str()),
            acquired: self.acquired(item),
            slots: slots_shown(&item.slots, item.view),
            mode: item.mode,
        }
    }

    fn acquired(&self, item: &HeldItem) -> u64 {
        if item.mode == Mode::Counted {
            return self.table.held_of(&item.key);
        }
        let holds = self.table.holders(&item.key).filter_map(|token| self.table.hold(token));
        let same = holds.filter(|hold| {
            hold.items.iter().any(|held| held.key == item.key && held.mode == item.mode)
        });
        same.map(|hold| hold.frame).collect::<BTreeSet<_>>().len() as u64
    }

    /// The name of the session that a frame belongs to.
    pub(super) fn session(&self, frame: FrameId) -> String {
        format!("s{}", self.table.session(frame))
    }

    /// A holder; its slots are those of `key`.
    pub(super) fn holder(&self, hold: &HoldState, key: Option<&Key>, looks: Looks) -> HolderShown {
        let state = match looks {
            Looks::Closely if hold.asked.ttl_ms.is_some() => None,
            Looks::Closely => self.state(hold, pid_of(&hold.asked.owner)).map(str::to_owned),
            Looks::Briefly => None,
        };
        let holder = self.holder_briefly(hold, key).map_texts(|text| text.to_string());
        HolderShown { state, ..holder }
    }

    /// A holder as it is told to the one who gives back, without a look at its process.
    pub(super) fn holder_briefly<'h>(
        &self,
        hold: &'h HoldState,
        key: Option<&Key>,
    ) -> HolderShown<Text<'h>>
    where
        'a: 'h,
    {
        let uid = hold.asked.uid;
        let mut items = hold.items.iter().filter(|item| Some(&item.key) == key).peekable();
        HolderShown {
            pid: pid_of(&hold.asked.owner),
            uid,
            command: self.sees(uid).then_some(Text::Itself(&hold.asked.command.0)),
            since: Text::Time(hold.since),
            token: hold.token.0,
            mode: items.peek().map(|item| item.mode),
            slots: items.flat_map(|item| item.slots.iter()).collect(),
            key: None,
            session: Text::Session(self.table.session(hold.frame)),
            host: self.label(hold.frame).map(Text::Itself),
            state: None,
            lease: self.lease(hold),
        }
    }

    /// How long the lease lives that has a hold, if one has it.
    pub(super) fn lease(&self, hold: &HoldState) -> Option<LeaseShown> {
        let ttl_ms = hold.asked.ttl_ms?;
        let left_ms = self.leases.left_ms(hold.frame);
        let end = |left| time(UnixMillis(clock::unix_ms().saturating_add(left)));
        let state = self.table.frame(hold.frame).and_then(|frame| frame.lease);
        let renewals = state.map_or(0, |lease| lease.renewals);
        Some(LeaseShown { ttl_ms, left_ms, expires: left_ms.map(end), renewals })
    }

    fn state(&self, hold: &HoldState, pid: u32) -> Option<&'static str> {
        if hold.orphaned {
            return Some("children");
        }
        if self.unverified.contains(&hold.frame) {
            return Some("unverified");
        }
        if hold.asked.host != self.here {
            return None;
        }
        match run_state(pid) {
            RunState::Running => Some("running"),
            RunState::Stopped => Some("stopped"),
            RunState::Frozen => Some("frozen"),
            RunState::Exiting | RunState::Gone => None,
        }
    }

    /// The name of the host that a frame is on, where there are several.
    pub(super) fn label_of(&self, frame: FrameId) -> Option<String> {
        self.label(frame).map(str::to_owned)
    }

    fn label(&self, frame: FrameId) -> Option<&'a str> {
        let host = self.table.frame(frame)?.host;
        self.table.host(host).map(|host| host.label.as_str())
    }

    /// As [`Self::label_of`], of hosts other than this one.
    fn elsewhere(&self, hold: &HoldState) -> Option<String> {
        self.label_of(hold.frame).filter(|_| hold.asked.host != self.here)
    }

    pub(super) fn command(&self, uid: u32, command: &str) -> Option<String> {
        self.sees(uid).then(|| command.to_owned())
    }

    /// Whether the commands of a user are the viewer's to see.
    fn sees(&self, uid: u32) -> bool {
        self.viewer == uid || self.viewer == 0
    }

    /// Those whose holds are in the way of an item, the longest first, a few of them. `kin` are the
    /// frames whose holds are not in its way.
    pub(super) fn holders(&self, key: &Key, mode: Mode, kin: &[FrameId]) -> Vec<HolderShown> {
        let mut found: Vec<_> = obstacles(self.table, key, mode, kin, HOLDERS_SHOWN_MAX).collect();
        found.sort_by_key(|obstacle| obstacle.hold.token);
        found.dedup_by_key(|obstacle| obstacle.hold.token);
        found.truncate(HOLDERS_SHOWN_MAX);
        let shown = found.into_iter().map(|obstacle| {
            let held = &obstacle.item.key;
            let holder = self.holder(obstacle.hold, Some(held), Looks::Closely);
            HolderShown { key: (held != key).then(|| held.to_string()), ..holder }
        });
        shown.collect()
    }

    /// What keeps a waiter waiting. `None` if nothing does any more.
    pub(super) fn why(&self, request: RequestId) -> Option<WhyShown> {
        let why = self.table.why(request)?;
        let waiter = self.table.waiter(request)?;
        let mode = waiter.request.items.get(why.item)?.ask.mode();
        let clause = self.clause(&why, mode);
        Some(WhyShown { key: why.key, mode, clause, kin: kin(self.table, waiter.frame) })
    }

    fn clause(&self, why: &Why, mode: Mode) -> String {
        let Reason::Conflict { hold, holds } = why.reason else {
            return words::reason(&why.reason);
        };
        let hold = self.table.hold(hold);
        let held = hold.and_then(|hold| held_item(&hold.items, &why.key, mode));
        match (hold, held) {
            (Some(hold), Some(held)) => {
                let (held, owner) = ((&held.key, held.mode), &hold.asked.owner);
                words::conflict(&why.key, held, owner, self.elsewhere(hold).as_deref(), holds)
            }
            _ => words::reason(&why.reason),
        }
    }

    /// What is in the way of an item other than by its slots, in one clause.
    pub(super) fn conflict(&self, key: &Key, mode: Mode, kin: &[FrameId]) -> Option<String> {
        let mut found = obstacles(self.table, key, mode, kin, usize::MAX)
            .filter(|obstacle| mode == Mode::Write || obstacle.item.mode == Mode::Write);
        let first = found.next()?;
        let holds = found.map(|obstacle| obstacle.hold.token).collect::<BTreeSet<_>>();
        let others = holds.iter().filter(|token| **token != first.hold.token).count() as u64;
        let (held, owner) = ((&first.item.key, first.item.mode), &first.hold.asked.owner);
        let host = self.elsewhere(first.hold);
        Some(words::conflict(key, held, owner, host.as_deref(), others + 1))
    }

    /// A word to a waiter. `position` is its place among the `waiting` of the key that keeps it.
    pub(super) fn progress(
        &self,
        key: &Key,
        reason: String,
        position: usize,
        waiting: usize,
        holders: Vec<HolderShown>,
    ) -> Progress {
        Progress {
            key: key.to_string(),
            position: position as u64,
            waiting: waiting as u64,
            reason,
            holders,
        }
    }

    /// The keys that `within` covers, or all. Processes are looked at until there are too many.
    /// They are looked up when they are written.
    pub(super) fn keys(self, within: Option<&Key>) -> impl Serialize + use<'a> {
        let within = within.cloned();
        Each(move || {
            let mut looks_left = PROCESSES_LOOKED_AT_MAX;
            self.table.keys(within.as_ref()).map(move |key| self.key(key, &mut looks_left))
        })
    }

    /// The keys that begin with `prefix`, at most `max`, with nothing but their names.
    pub(super) fn names(&self, prefix: &str, max: usize) -> Vec<KeyShown> {
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

/// What keeps a waiter waiting, for people.
#[derive(Debug)]
pub(super) struct WhyShown {
    /// The key that does.
    pub(super) key: Key,
    /// In which way it wants the key.
    pub(super) mode: Mode,
    /// Why, in one clause.
    pub(super) clause: String,
    /// The frames that hold something and are not in its way.
    pub(super) kin: Vec<FrameId>,
}

/// Which of a hold's items is in the way of what is asked of a key; that of the key itself first.
pub(super) fn held_item<'a>(items: &'a [HeldItem], key: &Key, mode: Mode) -> Option<&'a HeldItem> {
    let in_the_way = || items.iter().filter(|it| conflict((key, mode), (&it.key, it.mode)));
    in_the_way().find(|item| item.key == *key).or_else(|| in_the_way().next())
}

/// Whether the process of a holder is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// It is, in /proc.
    Closely,
    /// It is not.
    Briefly,
}

fn granted_key<'a>(item: &'a Item, granted: &GrantedItem) -> GrantedKey<Text<'a>> {
    GrantedKey {
        key: Text::Itself(item.key.as_str()),
        acquired: granted.acquired,
        slots: slots_shown(&granted.slots, granted.view),
        mode: item.ask.mode(),
    }
}

fn slots_shown(slots: &Slots, view: Option<View>) -> Vec<SlotShown> {
    let bucket = |slot| view.and_then(|view| view.bucket(slot));
    slots.iter().map(|slot| SlotShown { slot, bucket: bucket(slot) }).collect()
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

/// The number of an owner's process; 0 if it has none here.
pub(super) fn pid_of(owner: &Owner) -> u32 {
    match owner {
        Owner::Process(process) => process.pid,
        Owner::Lease(_) => 0,
    }
}

/// A time as RFC 3339, UTC.
pub(super) fn time(at: UnixMillis) -> String {
    let at = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(at).unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(time(UnixMillis(0)), "1970-01-01T00:00:00Z");
        assert_eq!(time(UnixMillis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
        assert!(time(UnixMillis(u64::MAX)).starts_with("9999-12-30"));
    }
}
