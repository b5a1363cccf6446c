//! The room that a request needs in the journal, from its acceptance to its end, and the check that
//! the file has this room.
//!
//! An upper bound, so that a record that ends something never has to request room. Keys, commands,
//! notes and slots are counted.

use serde::Serialize;

use super::{Journal, NoRoom};
use canal_core::Request;

/// Room reserved for the few records that belong to no request, such as those of a restart.
pub(super) const MARGIN: u64 = 4096;

impl Journal {
    /// Makes sure that `bytes` for records now and `reserve` for records later (the ends of
    /// everything held or waiting) fit, allocating more of the file if needed. Called before a new
    /// request is accepted; records that end something need no check.
    ///
    /// `reserve` is the sum of [`room_for`] over all requests that wait or hold. Entries that
    /// belong to no request (a `Resize`) need this check too.
    ///
    /// # Errors
    /// The disk is full. A compaction may make room if records were appended since the last one.
    pub fn admit(&mut self, bytes: u64, reserve: u64) -> Result<(), NoRoom> {
        let Some(live) = &mut self.live else { return Ok(()) };
        let need = [bytes, reserve, MARGIN].into_iter().fold(live.end, u64::saturating_add);
        live.file.grow(need).map_err(|error| NoRoom { dir: self.dir.clone(), error })
    }
}

/// The number of times that the bound allows a request to stop (or detach) and run again, and its
/// grant to be withdrawn. More are possible: when the room is used up, the journal is compacted,
/// which takes only the counted room for the snapshot and frees the rest.
const SUSPENSIONS: u64 = 1;
/// The most ranges in which the bound counts an item's slots.
const RANGES_MAX: u64 = 16_384;
/// The most bytes of a range: two numbers of 20 digits, and the punctuation around them.
const RANGE: u64 = 44;
/// How many times a key is written: in the request, in its release by key (twice), at the end of
/// its owner, in its release by token, and three times in the snapshot.
const KEYS: u64 = 8;
/// How many times the command and the note are written: in the request and in the snapshot.
const COMMANDS: u64 = 2;
/// The bytes of all records about a request without items and command. A test measures this number
/// and the next two on records with the largest possible numbers.
const REQUEST: u64 = 3506;
/// The bytes that each item adds, without its key and slots.
const ITEM: u64 = 1142;
/// The bytes that a request over nodes adds: its confirmation (whose note is not counted), and the
/// list of the request because of which it may be refused.
const OVER_NODES: u64 = 2567;
/// The bytes of a note's field name and the punctuation around it.
const NOTE_NAME: u64 = r#","note":"#.len() as u64;

/// The bytes of the field name for the leases that enclose a request beyond its table.
const ABOVE_NAME: u64 = r#","above":"#.len() as u64;
/// The bytes of the field name for the group of a request.
const SUPERSEDE_NAME: u64 = r#","supersede":"#.len() as u64;

/// An upper bound of the bytes written about a request once it is accepted: the request itself, its
/// grants, its stops and continuations (a few times), its confirmation, the release of each item,
/// every kind of end, and its part of a snapshot.
///
/// Slots in more than 16,384 ranges exceed it.
pub fn room_for(request: &Request) -> u64 {
    let note = request.note.as_deref().map_or(0, |note| NOTE_NAME + json_bytes(note));
    let command = COMMANDS.saturating_mul(json_bytes(&request.command.0) + note);
    let items = request.items.iter().map(|item| {
        let keys = KEYS * (json_bytes(item.key.as_str()) + 1);
        // The size that the request passes is no limit: a larger one may be stored.
        let (count, _) = item.ask.counted().unwrap_or_default();
        // In each grant, and in the snapshot.
        let ranges = count.min(RANGES_MAX).saturating_mul(RANGE).saturating_mul(SUSPENSIONS + 2);
        keys + ITEM + ranges
    });
    let nodes = request.over_nodes.as_deref().map_or(0, |over| OVER_NODES + 2 * size(over));
    let supersede = request.supersede.as_deref().map_or(0, |it| 2 * (SUPERSEDE_NAME + size(it)));
    let above = request.above.as_deref().map_or(0, |above| 2 * (ABOVE_NAME + size(above)));
    let rest = command + nodes + above + supersede;
    items.fold(REQUEST.saturating_add(rest), u64::saturating_add)
}

/// The bytes of a text as JSON.
fn json_bytes(text: &str) -> u64 {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    });
    bytes.sum::<u64>() + 2
}

/// The bytes of a value as JSON and of the comma after it. (Every value measured here can be
/// encoded.)
fn size(value: &impl Serialize) -> u64 {
    serde_json::to_vec(value).map_or(u64::from(u32::MAX), |bytes| bytes.len() as u64 + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Record;
    use crate::journal::format;
    use crate::journal::tests::longest::{
        FRAME, ID, NOW, TOKEN, barrier, frame, gone, granted, granted_item, held_item, hold, item,
        key, queued, refused, request, requeued, waiter,
    };
    use canal_core::{
        Above, Ask, Change, Command, Entry, GrantedItem, HeldItem, HoldState, Item, KEY_BYTES_MAX,
        Key, NODES_MAX, NodeId, Outcome, OverNodes, Refusal, Release, Require, Revision, RunId,
        SlotRange, Slots, Supersede, Superseded, View, WaiterState,
    };

    /// The bytes of the id of a node, with its quotes and a comma.
    const NODE_ID: u64 = 32 + 3;
    /// The bytes of the field names that only a request over nodes has.
    const NAMES_OF_NODES: u64 =
        r#","over_nodes":,"over_nodes":"other-nodes":{"theirs":[]}"#.len() as u64;

    /// The bytes of a record with these outcomes, and one to spare.
    fn bytes(change: Change, outcomes: Vec<Outcome>) -> u64 {
        written(change, outcomes) + 1
    }

    #[test]
    fn the_fixed_sizes_are_those_of_the_longest_records() {
        let grants = SUSPENSIONS + 1;
        let moves = bytes(Change::Suspend { request: ID }, vec![requeued(), barrier()])
            + bytes(Change::Resume { request: ID }, vec![]);
        let asked = request(Vec::new());
        let once = [
            bytes(Change::Request(Arc::new(asked)), vec![queued(), barrier(), refused()]),
            bytes(Change::Confirm { request: ID }, vec![]),
            bytes(Change::End { frame: FRAME }, gone()),
            // A withdrawal is shorter.
            bytes(Change::Release(Release::Hold { token: TOKEN, forced: false }), gone()),
        ];
        let request = once.iter().sum::<u64>()
            + SUSPENSIONS * moves
            + grants * size(&granted(Vec::new()))
            + size(&frame())
            + size(&hold()).max(size(&waiter()));
        let by_key = Release::Latest { frame: FRAME, key: key() };
        let item = bytes(Change::Release(by_key), gone())
            + grants * size(&granted_item())
            // In the request, and in the snapshot.
            + 2 * size(&item())
            + size(&held_item());
        let confirmed = Outcome::ConfirmedAt { request: ID, was: TOKEN, token: TOKEN };
        let confirm = Change::ConfirmAt { request: ID, token: TOKEN, note: None };
        let over_nodes =
            bytes(confirm, vec![confirmed]) + NODES_MAX as u64 * NODE_ID + NAMES_OF_NODES;
        assert_eq!([REQUEST, ITEM, OVER_NODES], [request, item, over_nodes]);
    }

    fn encoded(value: &impl Serialize) -> u64 {
        let mut bytes = Vec::new();
        format::encode(&mut bytes, value).unwrap();
        bytes.len() as u64
    }

    fn written(change: Change, outcomes: Vec<Outcome>) -> u64 {
        let entry = Entry { version: u16::MAX, at: NOW, change };
        encoded(&Record { revision: Revision(u64::MAX), entry, outcomes })
    }

    /// Slots in as many ranges as `count` slots can form, with the longest numbers.
    fn scattered(count: u64, capacity: u64) -> Slots {
        let last = capacity - 1;
        let mut ranges: Vec<_> =
            (1..count).map(|n| last - 2 * n).map(|n| SlotRange(n, n)).collect();
        ranges.reverse();
        ranges.push(SlotRange(last, last));
        Slots(ranges)
    }

    /// Every record about a request, each with the longest possible numbers.
    fn life(request: &Request, slots: impl Fn(&Item) -> Slots) -> u64 {
        let keys: Vec<Key> = request.items.iter().map(|item| item.key.clone()).collect();
        let given = |item| GrantedItem { slots: slots(item), ..granted_item() };
        let grant = || granted(request.items.iter().map(given).collect());
        let released = |keys: &[Key], whole| {
            let (token, frame, request, keys) = (TOKEN, FRAME, ID, keys.to_vec());
            Outcome::Released { token, frame, request, keys, whole }
        };
        let gone = || Outcome::FrameGone { frame: FRAME };
        let asked = Change::Request(Arc::new(request.clone()));
        let mut bytes = written(asked, vec![queued(), barrier(), grant()]);
        for _ in 0..SUSPENSIONS {
            bytes += written(Change::Suspend { request: ID }, vec![requeued()]);
            bytes += written(Change::Resume { request: ID }, vec![barrier(), grant()]);
        }
        bytes += written(Change::Confirm { request: ID }, vec![]);
        if request.over_nodes.is_some() {
            let confirm = Change::ConfirmAt { request: ID, token: TOKEN, note: None };
            let confirmed = Outcome::ConfirmedAt { request: ID, was: TOKEN, token: TOKEN };
            bytes += written(confirm, vec![confirmed]);
        }
        for key in &keys {
            let release = Release::Latest { frame: FRAME, key: key.clone() };
            let outcomes = vec![released(std::slice::from_ref(key), false), gone()];
            bytes += written(Change::Release(release), outcomes);
        }
        let hold = Release::Hold { token: TOKEN, forced: false };
        bytes += written(Change::Release(hold), vec![released(&keys, true), gone()]);
        bytes += written(Change::End { frame: FRAME }, vec![released(&keys, true), gone()]);
        bytes + in_snapshot(request, slots)
    }

    fn in_snapshot(request: &Request, slots: impl Fn(&Item) -> Slots) -> u64 {
        let held =
            |item: &Item| HeldItem { key: item.key.clone(), slots: slots(item), ..held_item() };
        let items = request.items.iter().map(held).collect();
        let holds = vec![HoldState { asked: Arc::new(request.clone()), items, ..hold() }];
        let waiters = vec![WaiterState { request: Arc::new(request.clone()), ..waiter() }];
        encoded(&vec![frame()]) + encoded(&holds).max(encoded(&waiters))
    }

    #[test]
    fn a_withdrawal_is_no_longer_than_a_release() {
        let hold = Release::Hold { token: TOKEN, forced: false };
        let withdraw = Change::Withdraw { request: ID };
        let release = written(Change::Release(hold), gone());
        assert!(written(withdraw, gone()) <= release);
        // A lease ends in one of two ways, and each frame has room for two ends.
        let expire = Change::Expire { frame: FRAME, renewal: u64::MAX };
        let end = written(Change::End { frame: FRAME }, gone());
        assert!(written(expire, gone()) <= release + end);
    }

    fn with(command: &str, items: Vec<(String, u64, Option<View>)>) -> Request {
        let items = items.into_iter().map(|(key, count, view)| Item {
            key: Key::new(&key).unwrap(),
            ask: Ask::slots(count, view),
        });
        Request { command: Command(command.into()), ..request(items.collect()) }
    }

    fn bounds(request: &Request, slots: impl Fn(&Item) -> Slots) {
        let (room, life) = (room_for(request), life(request, slots));
        assert!(life <= room, "{life} bytes are written, and there is room for {room}");
        // The bound is close enough that it does not fill a disk needlessly.
        assert!(room <= life + life / 4 + 1000, "{room} bytes for {life}");
    }

    #[test]
    fn room_is_enough_for_a_small_request_and_not_much_more() {
        let view = Some(View::Buckets { per: 3, buckets: 2 });
        let request = with("make", vec![("db".into(), 1, view)]);
        bounds(&request, |_| scattered(1, 6));
        assert!(room_for(&request) < 4850, "{}", room_for(&request));
    }

    #[test]
    fn room_is_enough_for_the_longest_keys_and_numbers() {
        let long = |n: usize| format!("{n:02}{}", "\"\\".repeat(KEY_BYTES_MAX / 2 - 1));
        let view = Some(View::Buckets { per: u64::MAX, buckets: u64::MAX });
        let items: Vec<_> = (0..50).map(|n| (long(n), 40, view)).collect();
        bounds(&with("", items), |_| scattered(40, u64::MAX));
    }

    #[test]
    fn room_is_enough_for_commands_of_control_characters() {
        let command: String = (0..0x20_u8).map(char::from).cycle().take(4096).collect();
        let request =
            with(&(command + "\u{7f}\u{80}\u{2028}\"\\/ä€🦀"), vec![("k".into(), 1, None)]);
        bounds(&request, |_| scattered(1, u64::MAX));
    }

    #[test]
    fn room_is_enough_for_notes() {
        for note in ["", "https://ci.example/7", "\"\\\u{7f}\u{2028}ä€🦀"] {
            let note = Some(note.repeat(20).into());
            bounds(&Request { note, ..with("make", vec![("k".into(), 1, None)]) }, |_| {
                scattered(1, u64::MAX)
            });
        }
    }

    #[test]
    fn room_is_enough_for_the_name_of_a_group() {
        let which = Some(Superseded::Running);
        for group in ["", "pr-7", "\"\\ä€🦀"] {
            let group = Some(group.repeat(20).into());
            let supersede = Some(Box::new(Supersede { group, which }));
            bounds(&Request { supersede, ..with("make", vec![("k".into(), 1, None)]) }, |_| {
                scattered(1, u64::MAX)
            });
        }
    }

    #[test]
    fn room_is_enough_for_the_longest_list_of_nodes() {
        let nodes = (0..NODES_MAX as u128).map(|node| NodeId(u128::MAX - 99 + node)).collect();
        let run = RunId(u128::MAX);
        let over = OverNodes { run, nodes, require: Require::Majority, spare: true };
        let over_nodes = Some(Box::new(over));
        let above = Some(Box::new(Above::Frame(NodeId(u128::MAX), FRAME)));
        let request = Request { over_nodes, above, ..with("make", vec![("k".into(), 1, None)]) };
        let (room, life) = (room_for(&request), life(&request, |_| scattered(1, u64::MAX)));
        assert!(life <= room, "{life} bytes are written, and there is room for {room}");
        // Instead of being granted, it may be refused because of a list of the same length.
        let theirs = request.over_nodes.as_ref().unwrap().nodes.clone();
        let why = Refusal::OtherNodes { item: usize::MAX, theirs };
        let asked = Change::Request(Arc::new(request.clone()));
        assert!(written(asked, vec![Outcome::Refused { request: ID, why }]) <= room);
    }

    #[test]
    fn room_is_enough_for_slots_scattered_over_any_view() {
        // Whatever size it passes: another can be stored at any time.
        for view in [Some(View::Buckets { per: 10, buckets: 10 }), None] {
            bounds(&with("x", vec![("k".into(), 70, view)]), |_| scattered(70, u64::MAX));
            bounds(&with("x", vec![("k".into(), 9000, view)]), |_| scattered(9000, u64::MAX));
        }
    }

    #[test]
    fn a_request_that_is_out_of_all_bounds_has_a_number_too() {
        let view = Some(View::Buckets { per: u64::MAX, buckets: u64::MAX });
        let request = with("x", vec![("k".into(), u64::MAX, view), ("l".into(), u64::MAX, None)]);
        assert!(room_for(&request) > RANGES_MAX);
    }

    #[test]
    fn json_bytes_are_those_of_serde() {
        for text in ["", "plain", "\"\\/\u{8}\u{c}\n\r\t", "\u{0}\u{1f}\u{7f}\u{80}\u{2028}ä€🦀"]
        {
            assert_eq!(json_bytes(text), serde_json::to_string(text).unwrap().len() as u64);
        }
    }
}
