//! The keys of a status, each with its holders and waiters.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Serialize, Serializer};

use crate::history::queue_for_estimate;
use crate::processes::identify_owner::PROCESSES_LOOKED_AT_MAX;
use crate::view::holder::Looks;
use crate::view::visible_table::Shown;
use crate::wording::{self, ABOUT_TO_BE_GRANTED, pid_of, time};
use canal_core::{FrameId, Key, Request, RequestId, Table, WaiterState, Why};
use canal_protocol::{EstimateInfo, KeyInfo, LeaseInfo, WaiterInfo};
use canal_sys::clock;

/// The approximate maximum size of a report on the table, in bytes. Rows that do not fit are
/// omitted and counted.
const REPORT_BYTES_MAX: usize = 24 * 1024 * 1024;

impl<'a> Shown<'a> {
    /// The selected keys, and the number of keys omitted because there are too many. Process states
    /// are looked up for a limited number of holders, while the reply is written.
    pub(crate) fn keys(self, selection: &Selection) -> (impl Serialize + use<'a>, u64) {
        let selection = selection.clone();
        let mut rows_left = REPORT_BYTES_MAX;
        // Half of the room is reserved for holders and waiters, if there are enough of them.
        let mut keys_left = REPORT_BYTES_MAX / 2;
        let keys = self.selected(&selection).map(|key| KEY_BYTES + key.as_str().len());
        let (shown, left_out) = fitting(keys, &mut keys_left);
        rows_left -= REPORT_BYTES_MAX / 2 - keys_left;
        let keys = self.selected(&selection).take(shown);
        let looks = if selection.full { Looks::Fully } else { Looks::Closely };
        let mut report = KeysReport {
            shown: self,
            selection,
            looks,
            looks_left: PROCESSES_LOOKED_AT_MAX,
            rows_left,
            may_look_at: queue_for_estimate::LOOKED_AT_MAX,
            whys: Rc::default(),
        };
        (each(keys.map(move |key| report.key(key))), left_out)
    }

    /// The keys of a selection.
    fn selected(self, selection: &Selection) -> impl Iterator<Item = &'a Key> + use<'a> {
        let selection = selection.clone();
        let keys = self.table.keys(selection.key.as_ref());
        keys.filter(move |key| self.is_selected(key, &selection))
    }

    fn is_selected(self, key: &Key, selection: &Selection) -> bool {
        let table = self.table;
        if selection.uid.is_none() && selection.session.is_none() {
            return !selection.waiting || table.waiting_for(key) > 0;
        }
        let holds = || table.holders(key).filter_map(|token| table.hold(token));
        let waits = || table.served(key).into_iter().filter_map(|id| table.waiter(id));
        waits().any(|waiter| self.is_in(selection, &waiter.request, waiter.frame))
            || !selection.waiting
                && holds().any(|hold| self.is_in(selection, &hold.asked, hold.frame))
    }

    /// Whether a hold or waiting request belongs to the user and the session of a selection.
    fn is_in(self, selection: &Selection, request: &Request, frame: FrameId) -> bool {
        selection.uid.is_none_or(|uid| request.uid == uid)
            && selection.session.is_none_or(|session| self.table.session(frame) == session)
    }

    /// The names of at most `max` keys that begin with `prefix`.
    pub(crate) fn names(&self, prefix: &str, max: usize) -> Vec<KeyInfo> {
        let keys = self.table.keys(None).filter(|key| key.as_str().starts_with(prefix));
        let name_only = |key: &Key| KeyInfo { key: key.to_string(), ..KeyInfo::default() };
        keys.take(max).map(name_only).collect()
    }

    fn waiter(
        &self,
        waiter: &WaiterState,
        key: &Key,
        position: u64,
        whys: &Whys,
        estimate: Option<EstimateInfo>,
    ) -> Option<WaiterInfo> {
        let request = &waiter.request;
        let item = request.items.iter().find(|item| item.key == *key)?;
        let reason = match whys.of(self.table, waiter) {
            Some(why) if why.key == *key => self.clause(&why, request),
            Some(why) => format!("{} (`{}`)", self.clause(&why, request), why.key),
            None => ABOUT_TO_BE_GRANTED.to_owned(),
        };
        Some(WaiterInfo {
            pid: pid_of(&request.owner),
            uid: request.uid,
            command: self.command(request.uid, &request.command.0),
            since: time(waiter.since),
            position,
            priority: request.priority,
            count: wording::count(item),
            mode: item.ask.mode(),
            view: item.ask.stated().map(|view| view.to_string()),
            session: self.session(waiter.frame),
            job: None,
            host: self.label_of(waiter.frame),
            reason,
            lease: request.ttl_ms.map(|ttl_ms| LeaseInfo { ttl_ms, ..LeaseInfo::default() }),
            note: request.note.as_deref().map(str::to_owned),
            over_nodes: self.over_nodes(request, waiter.frame, true),
            estimate,
        })
    }
}

/// A report about keys, in order.
struct KeysReport<'a> {
    shown: Shown<'a>,
    selection: Selection,
    looks: Looks,
    /// How many more processes may be looked up.
    looks_left: usize,
    /// How many more bytes holders and waiters may take.
    rows_left: usize,
    may_look_at: usize,
    whys: Rc<Whys>,
}

impl<'a> KeysReport<'a> {
    fn key(&mut self, key: &'a Key) -> KeyInfo<impl Serialize + use<'a>> {
        let (shown, table) = (self.shown, self.shown.table);
        let is_shown = |request: &Request, frame| shown.is_in(&self.selection, request, frame);
        let holds = table.holders(key).filter_map(|token| table.hold(token));
        let mut holds: Vec<_> = holds.filter(|hold| is_shown(&hold.asked, hold.frame)).collect();
        let bytes = |request: &Request| {
            let note = request.note.as_ref().map_or(0, |note| note.len());
            ROW_BYTES + key.as_str().len() + request.command.0.len() + note
        };
        let of_holds = holds.iter().map(|hold| {
            let of_key = hold.items.iter().filter(|item| item.key == *key);
            let slots = of_key.map(|item| item.slots.count()).sum::<u64>();
            let slots = usize::try_from(slots).unwrap_or(usize::MAX);
            bytes(&hold.asked) + slots.saturating_mul(SLOT_BYTES)
        });
        let (held, unshown_holders) = fitting(of_holds, &mut self.rows_left);
        holds.truncate(held);
        let queue = table.served(key);
        let waiters = (1..).zip(queue.iter().filter_map(|id| table.waiter(*id)));
        let waiters = waiters.filter(|(_, it)| is_shown(&it.request, it.frame));
        let waiters: Vec<(u64, &WaiterState)> = waiters.collect();
        let of_waiters = waiters.iter().map(|(_, waiter)| bytes(&waiter.request));
        let (waiting, unshown_waiters) = fitting(of_waiters, &mut self.rows_left);
        let estimates = shown.summary.filter(|_| waiting > 0).map(|summary| {
            let now = clock::unix_ms();
            queue_for_estimate::of_key(table, key, summary, now, &mut self.may_look_at)
        });
        let (estimates, whys) = (estimates.unwrap_or_default(), Rc::clone(&self.whys));
        let holders = holds.iter().map(|hold| {
            let looks = if self.looks_left > 0 { self.looks } else { Looks::Briefly };
            self.looks_left = self.looks_left.saturating_sub(1);
            shown.holder(hold, key, looks)
        });
        let settings = table.settings(key);
        KeyInfo {
            key: key.to_string(),
            kind: table.kind(key),
            held: table.held_of(key),
            capacity: table.effective_capacity(key),
            view: table.effective_view(key).map(|view| view.to_string()),
            stored: settings.view.is_some(),
            paused: settings.paused,
            without: settings.without.0.iter().copied().collect(),
            waiting: queue.len() as u64,
            holders: holders.collect(),
            waiters: each(waiters.into_iter().take(waiting).filter_map(
                move |(position, waiter)| {
                    let estimate = estimates.get(&waiter.id).copied();
                    shown.waiter(waiter, key, position, &whys, estimate)
                },
            )),
            left_out: unshown_holders + unshown_waiters,
        }
    }
}

/// Caches why requests for several keys wait. The table examines each key of such a request, so
/// this is done once for all its keys.
#[derive(Default)]
struct Whys(RefCell<BTreeMap<RequestId, Option<Why>>>);

impl Whys {
    fn of(&self, table: &Table, waiter: &WaiterState) -> Option<Why> {
        if waiter.request.items.len() == 1 {
            return table.why(waiter.id);
        }
        let mut known = self.0.borrow_mut();
        known.entry(waiter.id).or_insert_with(|| table.why(waiter.id)).clone()
    }
}

/// The approximate size in bytes of a key without its name, of a holder or waiter without its
/// command and note, and of the number of a slot.
const KEY_BYTES: usize = 200;
const ROW_BYTES: usize = 400;
const SLOT_BYTES: usize = 6;

/// How many of these items, from the first on, fit into the remaining room, and how many do not.
fn fitting(bytes: impl Iterator<Item = usize>, left: &mut usize) -> (usize, u64) {
    let (mut fit, mut unfit) = (0, 0);
    for bytes in bytes {
        if unfit == 0 && bytes <= *left {
            *left -= bytes;
            fit += 1;
        } else {
            unfit += 1;
        }
    }
    (fit, unfit)
}

/// A sequence whose items are created one by one while it is written, once. A report of ten
/// thousand waiters is never in memory as a whole, because an allocator may keep such memory.
struct Each<I>(Cell<Option<I>>);

fn each<I: Iterator<Item: Serialize>>(items: I) -> Each<I> {
    Each(Cell::new(Some(items)))
}

impl<I: Iterator<Item: Serialize>> Serialize for Each<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

/// The keys that a status report shows, and the details of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Only this key and the keys below it.
    pub key: Option<Key>,
    /// Only holds and waiting requests of this user, and keys that have any.
    pub uid: Option<u32>,
    /// Only holds and waiting requests of this session, and keys that have any.
    pub session: Option<FrameId>,
    /// Only keys for which a request waits; with `uid`, a request of that user.
    pub waiting: bool,
    /// Whether to look up working directories, and the processes that keep a hold.
    pub full: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_first_entry_that_does_not_fit_all_later_ones_are_left_out() {
        let mut left = 100;
        assert_eq!(fitting([60, 50, 10].into_iter(), &mut left), (1, 2));
        assert_eq!(left, 40);
        assert_eq!(fitting([40].into_iter(), &mut left), (1, 0));
        assert_eq!(fitting([1; 3].into_iter(), &mut left), (0, 3));
    }
}
