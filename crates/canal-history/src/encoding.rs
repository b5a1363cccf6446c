//! The form of a record in a file.
//!
//! The fields that a search compares come first, so that it can skip other records without reading
//! more: time, user, failure, keys. Numbers of variable length have seven bits in each byte, the
//! lowest first.

use super::record::{Ending, Fields, Item, Reason, Record, RingStep};
use canal_core::{Mode, SlotRange};

/// The version of this form, the first byte of each record.
const VERSION: u8 = 2;

const FAILED: u8 = 1;
const GRANTED: u8 = 2;
const NOTED: u8 = 4;
const HAS_HOST: u8 = 8;
const AT_LEAST: u8 = 16;

/// Appends the form of a record.
pub(crate) fn encode(record: &Fields<'_>, out: &mut Vec<u8>) {
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    out.push(VERSION);
    out.extend(record.ended_ms.to_le_bytes());
    out.extend(record.uid.to_le_bytes());
    out.push(
        flag(record.ending.is_failure(), FAILED)
            | flag(record.held_ms.is_some(), GRANTED)
            | flag(record.note.is_some(), NOTED)
            | flag(record.host.is_some(), HAS_HOST)
            | flag(record.at_least, AT_LEAST),
    );
    number(record.items.len() as u64, out);
    for item in &record.items {
        text(&item.key, out);
        out.push(match item.mode {
            Mode::Counted => 0,
            Mode::Read => 1,
            Mode::Write => 2,
        });
        number(item.count, out);
        number(item.size, out);
        slots(&item.slots, out);
    }
    number(record.waited_ms, out);
    if let Some(held_ms) = record.held_ms {
        number(held_ms, out);
    }
    for each in [record.token, record.session, record.pid.into()] {
        number(each, out);
    }
    text(&record.command, out);
    for each in [&record.note, &record.host].into_iter().flatten() {
        text(each, out);
    }
    ending(&record.ending, out);
}

/// Ranges: their number, and for each the distance of its first slot from the end of the range
/// before, and the number of further slots.
fn slots(slots: &[SlotRange], out: &mut Vec<u8>) {
    number(slots.len() as u64, out);
    let mut before = 0;
    for SlotRange(first, last) in slots {
        number(first.wrapping_sub(before), out);
        number(last.wrapping_sub(*first), out);
        before = *last;
    }
}

fn ending(ending: &Ending, out: &mut Vec<u8>) {
    match ending {
        Ending::Released => out.push(0),
        Ending::Ended => out.push(1),
        Ending::Exited(status) => out.extend([2, *status]),
        Ending::Killed(signal) => out.extend([3, *signal]),
        Ending::Expired => out.push(4),
        Ending::Forced { by: None } => out.push(5),
        Ending::Forced { by: Some((uid, pid)) } => {
            out.push(6);
            number((*uid).into(), out);
            number((*pid).into(), out);
        }
        Ending::Lost => out.push(7),
        Ending::Withdrawn => out.push(8),
        Ending::Timeout => out.push(9),
        Ending::Refused { reason, ring } => {
            out.extend([10, *reason as u8]);
            number(ring.len() as u64, out);
            for step in ring {
                number(step.session, out);
                number(step.uid.into(), out);
                number(step.pid.into(), out);
                text(&step.key, out);
            }
        }
        Ending::Reboot => out.push(11),
        Ending::Abandoned => out.push(12),
    }
}

fn number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn text(text: &str, out: &mut Vec<u8>) {
    number(text.len() as u64, out);
    out.extend(text.as_bytes());
}

/// The fields that a search compares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) ended_ms: u64,
    pub(crate) uid: u32,
    flags: u8,
    /// The number of items, and their form.
    items: (u64, Reader<'a>),
}

impl<'a> Head<'a> {
    /// The head of a record; `None` if this is no record, or one of a later version.
    pub(crate) fn read(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        if reader.byte()? != VERSION {
            return None;
        }
        let ended_ms = u64::from_le_bytes(*reader.array()?);
        let uid = u32::from_le_bytes(*reader.array()?);
        let flags = reader.byte()?;
        Some(Self { ended_ms, uid, flags, items: (reader.number()?, reader) })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn failed(&self) -> bool {
        self.has(FAILED)
    }

    /// Whether the time until its end is a lower bound.
    pub(crate) fn at_least(&self) -> bool {
        self.has(AT_LEAST)
    }

    /// Whether one of the keys is this one or a key below it.
    pub(crate) fn is_below(&self, key: &str) -> bool {
        let (count, mut reader) = self.items;
        for left in (0..count).rev() {
            let Some(each) = reader.bytes() else { return false };
            if is_below(each, key) {
                return true;
            }
            // Most records have one key, so nothing more is read.
            if left == 0 || demand(&mut reader).is_none() {
                return false;
            }
        }
        false
    }

    /// The items of the request.
    pub(crate) fn items(&self) -> impl Iterator<Item = ItemForm<'a>> + use<'a> {
        let (count, mut reader) = self.items;
        (0..count).map_while(move |_| item(&mut reader))
    }
}

/// The part of a request for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemForm<'a> {
    pub(crate) key: &'a str,
    pub(crate) mode: Mode,
    pub(crate) count: u64,
    pub(crate) size: u64,
    /// The number of ranges of slots, and their form.
    slots: (u64, Reader<'a>),
}

impl ItemForm<'_> {
    /// Whether its key is this one or a key below it.
    pub(crate) fn is_below(&self, key: &str) -> bool {
        is_below(self.key.as_bytes(), key)
    }
}

/// Whether a key, in its form in a file, is this one or a key below it.
fn is_below(stands: &[u8], key: &str) -> bool {
    let rest = stands.strip_prefix(key.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The counted values of a record, and what stands among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths<'a> {
    pub(crate) head: Head<'a>,
    pub(crate) waited_ms: u64,
    /// `None` if it was never granted.
    pub(crate) held_ms: Option<u64>,
    token: u64,
    session: u64,
    pid: u32,
    pub(crate) command: &'a str,
    rest: Reader<'a>,
}

impl<'a> Lengths<'a> {
    /// Reads the counted values of a record; `None` if this is no record, or one of a later
    /// version.
    pub(crate) fn read(payload: &'a [u8]) -> Option<Self> {
        let head = Head::read(payload)?;
        let (count, mut rest) = head.items;
        for _ in 0..count {
            item(&mut rest)?;
        }
        let waited_ms = rest.number()?;
        let held_ms = if head.has(GRANTED) { Some(rest.number()?) } else { None };
        let (token, session, pid) = (rest.number()?, rest.number()?, rest.small()?);
        let command = rest.text()?;
        Some(Self { head, waited_ms, held_ms, token, session, pid, command, rest })
    }
}

/// Reads a record; `None` if this is no record, or one of a later version.
pub(crate) fn decode(payload: &[u8]) -> Option<Record> {
    let Lengths { head, waited_ms, held_ms, token, session, pid, command, mut rest } =
        Lengths::read(payload)?;
    let item = |ItemForm { key, mode, count, size, slots }: ItemForm<'_>| {
        let (key, slots) = (key.to_owned().into(), read_slots(slots)?.into());
        Some(Item { key, mode, count, size, slots })
    };
    let mut text =
        |flag| Some(if head.has(flag) { Some(rest.text()?.to_owned().into()) } else { None });
    Some(Record {
        ended_ms: head.ended_ms,
        waited_ms,
        held_ms,
        token,
        items: head.items().map(item).collect::<Option<_>>()?,
        session,
        uid: head.uid,
        pid,
        command: command.to_owned().into(),
        note: text(NOTED)?,
        host: text(HAS_HOST)?,
        at_least: head.at_least(),
        ending: read_ending(&mut rest)?,
    })
}

fn item<'a>(reader: &mut Reader<'a>) -> Option<ItemForm<'a>> {
    let key = reader.text()?;
    let (mode, count, size, slots) = demand(reader)?;
    Some(ItemForm { key, mode, count, size, slots })
}

/// One item: the mode, the number of slots, the size, and the form of the granted slots.
fn demand<'a>(reader: &mut Reader<'a>) -> Option<(Mode, u64, u64, (u64, Reader<'a>))> {
    let mode = match reader.byte()? {
        0 => Mode::Counted,
        1 => Mode::Read,
        2 => Mode::Write,
        _ => return None,
    };
    let (count, size) = (reader.number()?, reader.number()?);
    let slots = (reader.number()?, *reader);
    for _ in 0..slots.0 {
        let _first_and_more = (reader.number()?, reader.number()?);
    }
    Some((mode, count, size, slots))
}

fn read_slots((count, mut reader): (u64, Reader<'_>)) -> Option<Vec<SlotRange>> {
    let mut ranges = Vec::new();
    let mut before = 0_u64;
    for _ in 0..count {
        let first = before.checked_add(reader.number()?)?;
        let last = first.checked_add(reader.number()?)?;
        ranges.push(SlotRange(first, last));
        before = last;
    }
    Some(ranges)
}

fn read_ending(reader: &mut Reader<'_>) -> Option<Ending> {
    Some(match reader.byte()? {
        0 => Ending::Released,
        1 => Ending::Ended,
        2 => Ending::Exited(reader.byte()?),
        3 => Ending::Killed(reader.byte()?),
        4 => Ending::Expired,
        5 => Ending::Forced { by: None },
        6 => Ending::Forced { by: Some((reader.small()?, reader.small()?)) },
        7 => Ending::Lost,
        8 => Ending::Withdrawn,
        9 => Ending::Timeout,
        10 => {
            let (reason, _) = *Reason::ALL.get(usize::from(reader.byte()?))?;
            let mut ring = Vec::new();
            for _ in 0..reader.number()? {
                let (session, uid, pid) = (reader.number()?, reader.small()?, reader.small()?);
                ring.push(RingStep { session, uid, pid, key: reader.text()?.to_owned() });
            }
            Ending::Refused { reason, ring }
        }
        11 => Ending::Reboot,
        12 => Ending::Abandoned,
        _ => return None,
    })
}

/// The unread rest of a record. Files are untrusted: each step may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::tests::record;

    pub(crate) fn written(record: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        encode(record, &mut out);
        out
    }

    fn endings() -> Vec<Ending> {
        let step = |session| RingStep { session, uid: 1000, pid: 7, key: "a/b".to_owned() };
        let ring = vec![step(1), step(u64::MAX)];
        vec![
            Ending::Released,
            Ending::Ended,
            Ending::Exited(255),
            Ending::Killed(9),
            Ending::Expired,
            Ending::Forced { by: None },
            Ending::Forced { by: Some((u32::MAX, 1)) },
            Ending::Lost,
            Ending::Reboot,
            Ending::Withdrawn,
            Ending::Abandoned,
            Ending::Timeout,
            Ending::Refused { reason: Reason::Mismatch, ring: Vec::new() },
            Ending::Refused { reason: Reason::Deadlock, ring },
        ]
    }

    /// A record with every field, with each ending.
    fn records() -> impl Iterator<Item = Record> {
        endings().into_iter().map(|ending| {
            let item = |key: &str, mode, count| {
                let ranges = [(0, 0), (3, 900), (u64::MAX - 1, u64::MAX)];
                let ranges = ranges.into_iter().take(if count == 0 { 0 } else { 3 });
                let slots = ranges.map(|(first, last)| SlotRange(first, last)).collect();
                Item { key: key.to_owned().into(), mode, count, size: count, slots }
            };
            Record {
                items: vec![
                    item("ä", Mode::Read, 0),
                    item("b", Mode::Write, 0),
                    item("c", Mode::Counted, u64::MAX),
                ],
                note: Some("run 7".into()),
                host: Some("alpha".into()),
                at_least: ending == Ending::Reboot,
                ending,
                ..record(u64::MAX, "x", u32::MAX)
            }
        })
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        for record in records() {
            assert_eq!(decode(&written(&record)), Some(record));
        }
        let never = Record { held_ms: None, token: 0, ..record(1, "x", 0) };
        assert_eq!(decode(&written(&never)), Some(never));
    }

    #[test]
    fn what_is_counted_of_a_record_has_its_items() {
        for record in records() {
            let form = written(&record);
            let lengths = Lengths::read(&form).unwrap();
            let items: Vec<_> = lengths.head.items().map(|it| (it.key, it.mode, it.size)).collect();
            let known = record.items.iter().map(|it| (&*it.key, it.mode, it.size));
            assert_eq!(items, known.collect::<Vec<_>>());
            assert_eq!(
                (lengths.head.ended_ms, lengths.command),
                (record.ended_ms, &*record.command)
            );
        }
    }

    #[test]
    fn a_part_of_a_record_is_none_and_ends_nothing() {
        for record in records() {
            let whole = written(&record);
            for end in 0..whole.len() {
                assert_eq!(decode(&whole[..end]), None, "{end}");
                let _ = Head::read(&whole[..end]).is_some_and(|head| head.is_below("x"));
            }
        }
    }

    #[test]
    fn any_changed_byte_is_survived() {
        for record in records() {
            let whole = written(&record);
            for at in 0..whole.len() {
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] = byte;
                    let _ = decode(&changed);
                    let _ = Head::read(&changed).is_some_and(|head| head.is_below("x"));
                }
            }
        }
    }

    #[test]
    fn a_key_covers_those_below_it_and_not_those_that_begin_alike() {
        let below = |found: &str, key: &str| {
            Head::read(&written(&record(1, found, 0))).unwrap().is_below(key)
        };
        assert!(below("db", "db") && below("db/x", "db") && below("db/x/y", "db/x"));
        assert!(!below("dbs", "db") && !below("d", "db") && !below("x/db", "db"));
    }
}
