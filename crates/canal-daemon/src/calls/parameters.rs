//! Translates the parameters of calls into the table's terms.

use std::sync::Arc;

use crate::wording::{bad, count};
use canal_core::{
    Ask, Command, FrameId, GROUP_BYTES_MAX, ITEMS_MAX, Item, Key, NUMBER_MAX, SLOTS_MAX, Setting,
    Supersede, Superseded, View, WITHOUT_MAX,
};
use canal_protocol::{Failure, Mode, NOTE_BYTES_MAX, Resize, WireItem};
use canal_text::safe_text::{is_unsafe, one_line, sanitize};

/// The most bytes of a command that are kept for display.
const COMMAND_BYTES_MAX: usize = 1024;

/// The items of a request.
///
/// # Errors
/// The items are invalid, regardless of what other clients hold or wait for.
pub(crate) fn items(wire: &[WireItem]) -> Result<Vec<Item>, Failure> {
    if wire.is_empty() {
        return Err(bad("a request must name at least one key"));
    }
    if wire.len() > ITEMS_MAX {
        let asked = wire.len();
        return Err(bad(format!("a request can name at most {ITEMS_MAX} keys, not {asked}")));
    }
    // Most requests have one item and may live for hours, so the vector gets no spare capacity.
    let mut items = Vec::with_capacity(wire.len());
    for wire in wire {
        items.push(item(wire)?);
    }
    let mut each = items.iter().enumerate();
    if let Some((_, item)) = each.find(|(at, it)| items[..*at].iter().any(|o| o.key == it.key)) {
        return Err(bad(format!("the request names key `{}` twice", item.key)));
    }
    let slots = items.iter().map(count).fold(0, u64::saturating_add);
    if slots > SLOTS_MAX {
        return Err(bad(format!("a request can take at most {SLOTS_MAX} slots, not {slots}")));
    }
    Ok(items)
}

fn item(wire: &WireItem) -> Result<Item, Failure> {
    let key = key(wire.key.clone())?;
    let ask = match wire.mode.unwrap_or(Mode::Counted) {
        mode @ (Mode::Read | Mode::Write) => {
            if [wire.count, wire.per, wire.buckets, wire.slots].iter().any(Option::is_some) {
                return Err(bad(format!(
                    "`{key}` is read or written: leave out `count`, `per`, `buckets` and `slots`"
                )));
            }
            if mode == Mode::Read { Ask::Read } else { Ask::Write }
        }
        Mode::Counted => {
            let view = view(&key, [wire.per, wire.buckets, wire.slots])?;
            let count = wire.count.unwrap_or(1);
            check_numbers(&key, count, view)?;
            if wire.spread && count > 1 {
                return Err(bad(format!("`spread` chooses one slot of `{key}`, not {count}")));
            }
            let ask = Ask::slots(count, view);
            if wire.spread { ask.spread() } else { ask }
        }
    };
    Ok(Item { key, ask })
}

/// A key.
///
/// # Errors
/// The rule that the text violates.
pub(crate) fn key(text: impl Into<Arc<str>>) -> Result<Key, Failure> {
    Key::shared(text.into()).map_err(|error| bad(error.to_string()))
}

/// Reads the name of a session: `s42`.
///
/// # Errors
/// The text has another form.
pub(crate) fn session(text: &str) -> Result<FrameId, Failure> {
    let number = text.strip_prefix('s').and_then(|digits| digits.parse().ok()).map(FrameId);
    number.ok_or_else(|| bad(format!("`{text}` is not a session; one looks like `s42`")))
}

/// Checks a count and a size as far as this is possible without the stored sizes. Only the table
/// knows whether the count fits: a stored size, or slots that can be shared, may make it fit.
fn check_numbers(key: &Key, count: u64, view: Option<View>) -> Result<(), Failure> {
    if count == 0 {
        return Err(bad(format!("cannot take 0 slots of `{key}`; ask for at least 1")));
    }
    match view {
        Some(View::Buckets { per: 0, .. }) => {
            Err(bad(format!("`per` of `{key}` must be at least 1, not 0")))
        }
        Some(View::Slots { slots: 0 }) => {
            let message =
                format!("a lock with 0 slots (`{key}`) can never be granted; give it at least 1");
            let hint = format!("to stop all grants of it, run `canal resize {key} --pause`");
            Err(bad(message).hint(hint))
        }
        _ => Ok(()),
    }
}

/// The size that a message gives for a key, if any, by its `per`, `buckets` and `slots`.
fn view(key: &Key, numbers: [Option<u64>; 3]) -> Result<Option<View>, Failure> {
    let view = match numbers {
        [None, None, None] => return Ok(None),
        [Some(per), Some(buckets), None] => View::Buckets { per, buckets },
        [None, None, Some(slots)] => View::Slots { slots },
        [_, _, Some(_)] => {
            let message = format!("`{key}` has either `slots`, or `per` and `buckets`, not both");
            return Err(bad(message));
        }
        _ => return Err(bad(format!("`per` and `buckets` of `{key}` must be given together"))),
    };
    let largest = numbers.into_iter().flatten().fold(view.capacity(), u64::max);
    if largest > NUMBER_MAX {
        return Err(bad(format!("the size of `{key}` ({view}) is more than {NUMBER_MAX}")));
    }
    Ok(Some(view))
}

/// The change that a resize asks for. Without a view, it forgets the stored size.
///
/// # Errors
/// The resize is invalid.
pub(crate) fn setting(resize: &Resize) -> Result<(Key, Setting), Failure> {
    let key = key(&*resize.key)?;
    let view = view(&key, [resize.per, resize.buckets, resize.slots])?;
    if resize.without.is_some() && resize.with.is_some() {
        return Err(bad("`without` and `with` cannot be combined; make two calls"));
    }
    if let Some(numbers) = resize.without.as_ref().or(resize.with.as_ref()) {
        if view.is_some() || resize.forget || resize.pause.is_some() {
            return Err(bad(
                "`without` and `with` cannot be combined with a size or a pause; make two calls",
            ));
        }
        let is_many = !(1..=WITHOUT_MAX).contains(&numbers.len());
        if is_many || numbers.iter().any(|number| *number > NUMBER_MAX) {
            return Err(bad(format!(
                "`without` and `with` take 1 to {WITHOUT_MAX} numbers, each at most {NUMBER_MAX}"
            )));
        }
        let (numbers, out) = (numbers.clone(), resize.with.is_none());
        return Ok((key, Setting::Service { numbers, out }));
    }
    let setting = match (view, resize.forget, resize.pause) {
        (Some(View::Buckets { per: 0, .. }), ..) => {
            return Err(bad(format!("`per` of `{key}` must be at least 1, not 0")));
        }
        (Some(View::Slots { slots: 0 }), false, None) => Setting::Paused(true),
        (Some(_), false, None) | (None, true, None) => Setting::View(view),
        (None, false, Some(paused)) => Setting::Paused(paused),
        (None, false, None) => {
            return Err(bad(format!("no size is given for `{key}`"))
                .hint("give `per` and `buckets`, or `slots`, or `forget`, or `pause`"));
        }
        (_, true, _) => return Err(bad("one call cannot store and forget a size")),
        (_, false, Some(_)) => {
            return Err(bad("one call cannot store a size and pause; make two calls"));
        }
    };
    Ok((key, setting))
}

/// A command in the form that canal shows: shortened, and without characters that could control a
/// terminal.
pub(crate) fn command(mut text: String) -> Command {
    let is_visible = |byte: u8| matches!(byte, b' '..=b'~');
    // Nearly all commands are visible ASCII, and checking bytes is faster than checking characters.
    let is_clean = text.bytes().all(is_visible) || !text.chars().any(is_unsafe);
    if text.len() > COMMAND_BYTES_MAX || !is_clean {
        let kept = canal_text::beginning(&text, COMMAND_BYTES_MAX);
        text = sanitize(kept) + if kept.len() < text.len() { "…" } else { "" };
    }
    text.shrink_to_fit();
    Command(text)
}

/// The note of a request, on one line and without characters that could control a terminal. A blank
/// note counts as none.
///
/// # Errors
/// The note is too long.
pub(crate) fn note(text: Option<&str>) -> Result<Option<Box<str>>, Failure> {
    Ok(new_note(text)?.filter(|note| !note.is_empty()))
}

/// The new note of a lease; an empty one removes the note. `None` if the lease keeps its note.
///
/// # Errors
/// The note is too long.
pub(crate) fn new_note(text: Option<&str>) -> Result<Option<Box<str>>, Failure> {
    let Some(text) = text else { return Ok(None) };
    if text.len() > NOTE_BYTES_MAX {
        let bytes = text.len();
        let message =
            format!("a note can have at most {NOTE_BYTES_MAX} bytes; this one has {bytes}");
        return Err(bad(message).hint("put the details elsewhere, and a link to them in the note"));
    }
    Ok(Some(one_line(text).into()))
}

/// The group of a request, and which older requests of the group it supersedes.
///
/// # Errors
/// The name of the group is empty, too long, or could control a terminal.
pub(crate) fn supersede(
    which: Option<Superseded>,
    group: Option<&str>,
) -> Result<Option<Box<Supersede>>, Failure> {
    let is_bad =
        |name: &str| name.is_empty() || name.len() > GROUP_BYTES_MAX || name.chars().any(is_unsafe);
    if group.is_some_and(is_bad) {
        return Err(bad(format!(
            "a group name must have 1 to {GROUP_BYTES_MAX} bytes and no control characters"
        )));
    }
    let is_any = which.is_some() || group.is_some();
    Ok(is_any.then(|| Box::new(Supersede { group: group.map(Into::into), which })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::{
        Change, ENTRY_VERSION, Entry, HostId, KEY_BYTES_MAX, LeaseId, OnLost, Owner, ProcessId,
        Request, Tag, UnixMillis, Wait,
    };
    use canal_protocol::ErrorName;

    fn wire(key: &str) -> WireItem {
        WireItem { key: key.into(), ..WireItem::default() }
    }

    fn refused(item: WireItem) -> String {
        items(&[item]).unwrap_err().message
    }

    #[test]
    fn the_largest_request_is_far_smaller_than_a_batch_of_an_engine() {
        // JSON writes each byte of these keys as two bytes. `command` replaces control characters
        // with `?`.
        let key = |n: usize| wire(&format!("{n:02}{}", "\"".repeat(KEY_BYTES_MAX - 2)));
        let large = |n| WireItem { per: Some(NUMBER_MAX), buckets: Some(1), ..key(n) };
        let request = Request {
            tag: Tag(u128::MAX),
            host: HostId(u64::MAX),
            owner: Owner::Lease(LeaseId(u128::MAX)),
            parent: Some(FrameId(u64::MAX)),
            uid: u32::MAX,
            command: command("\u{1}".repeat(2 * COMMAND_BYTES_MAX)),
            note: note(Some(&"\"".repeat(NOTE_BYTES_MAX))).unwrap(),
            items: items(&(0..ITEMS_MAX).map(large).collect::<Vec<_>>()).unwrap(),
            wait: Wait::Yes { until: Some(u64::MAX) },
            priority: i32::MIN,
            max_waiting: Some(u64::MAX),
            supersede: supersede(Some(Superseded::Running), Some(&"\"".repeat(GROUP_BYTES_MAX)))
                .unwrap(),
            max_run_ms: Some(u64::MAX),
            provisional: true,
            children: true,
            ttl_ms: Some(u64::MAX),
            on_lost: OnLost::Kill,
            asker: Some(ProcessId { pid: u32::MAX, started: u64::MAX, inode: u64::MAX }),
            over_nodes: None,
            above: None,
        };
        let change = Change::Request(Arc::new(request));
        let at = UnixMillis(u64::MAX);
        let entry = serde_json::to_vec(&Entry { version: ENTRY_VERSION, at, change }).unwrap();
        assert!((128 * 1024..256 * 1024).contains(&entry.len()), "{} bytes", entry.len());
    }

    #[test]
    fn a_note_is_one_line_that_steers_nothing() {
        let noted = |text: &str| note(Some(text)).unwrap();
        assert_eq!(noted(" a\n\u{2029}b\u{7f}\u{202e} ").as_deref(), Some("a b??"));
        assert_eq!((noted(" \n"), note(None).unwrap()), (None, None));
        assert_eq!(new_note(Some("\n")).unwrap().as_deref(), Some(""), "it removes the old one");
        let failure = note(Some(&"x".repeat(NOTE_BYTES_MAX + 1))).unwrap_err();
        assert_eq!(failure.name, ErrorName::BadRequest);
        assert_eq!(failure.message, "a note can have at most 512 bytes; this one has 513");
        // No replacement is longer than the character that it replaces.
        let odd = "\u{1b}".repeat(NOTE_BYTES_MAX);
        assert_eq!(noted(&odd).map(|note| note.len()), Some(NOTE_BYTES_MAX));
    }

    #[test]
    fn an_item_takes_its_view_or_none() {
        let canal = WireItem { per: Some(3), buckets: Some(2), ..wire("a") };
        let slots = WireItem { slots: Some(4), count: Some(2), ..wire("b") };
        let own = wire("c/d");
        let asks: Vec<Ask> =
            items(&[canal, slots, own]).unwrap().into_iter().map(|item| item.ask).collect();
        let view = Some(View::Buckets { per: 3, buckets: 2 });
        assert_eq!(asks[0], Ask::slots(1, view));
        let view = Some(View::Slots { slots: 4 });
        assert_eq!(asks[1], Ask::slots(2, view));
        assert_eq!(asks[2], Ask::slots(1, None));
    }

    #[test]
    fn read_and_write_items_have_no_slots() {
        let asked = [(Mode::Read, Ask::Read), (Mode::Write, Ask::Write)];
        for (mode, ask) in asked {
            let item = WireItem { mode: Some(mode), ..wire("a/b") };
            assert_eq!(items(std::slice::from_ref(&item)).unwrap()[0].ask, ask);
            for wrong in [
                WireItem { count: Some(1), ..item.clone() },
                WireItem { per: Some(1), ..item.clone() },
                WireItem { buckets: Some(1), ..item.clone() },
                WireItem { slots: Some(1), ..item.clone() },
            ] {
                assert!(refused(wrong).contains("leave out `count`"));
            }
        }
        let both = [WireItem { mode: Some(Mode::Read), ..wire("a") }, wire("a")];
        assert!(items(&both).unwrap_err().message.contains("twice"));
    }

    #[test]
    fn items_that_make_no_sense_say_why() {
        assert!(refused(WireItem { count: Some(0), ..wire("a") }).contains("0 slots"));
        assert!(refused(WireItem { per: Some(1), ..wire("a") }).contains("must be given together"));
        assert!(
            refused(WireItem { buckets: Some(1), ..wire("a") }).contains("must be given together")
        );
        let both = WireItem { per: Some(1), buckets: Some(1), slots: Some(1), ..wire("a") };
        assert!(refused(both).contains("not both"));
        let zero = WireItem { per: Some(0), buckets: Some(1), ..wire("a") };
        assert!(refused(zero).contains("at least 1"));
        assert!(refused(WireItem { slots: Some(0), ..wire("a") }).contains("at least 1"));
        assert!(refused(wire("/a")).contains("use `a`"));
        assert!(items(&[]).unwrap_err().message.contains("at least one key"));
        assert!(items(&[wire("a"), wire("a")]).unwrap_err().message.contains("twice"));
    }

    #[test]
    fn the_largest_number_of_items_is_accepted_and_one_more_is_refused() {
        let many: Vec<WireItem> = (0..=ITEMS_MAX).map(|n| wire(&format!("k{n}"))).collect();
        assert!(items(&many[..ITEMS_MAX]).is_ok());
        assert!(items(&many).unwrap_err().message.contains("at most 64 keys, not 65"));
    }

    #[test]
    fn numbers_that_json_cannot_carry_are_refused() {
        let slots = |count| WireItem { slots: Some(u64::MAX), count: Some(count), ..wire("a") };
        assert!(refused(slots(1)).contains("is more than"));
        let above = WireItem { slots: Some(2), count: Some(3), ..wire("a") };
        assert!(items(&[above]).is_ok(), "whether it fits is the table's to say");
        let canal = |per, count| WireItem {
            per: Some(per),
            buckets: Some(NUMBER_MAX),
            count: Some(count),
            ..wire("a")
        };
        assert!(items(&[canal(1, SLOTS_MAX)]).is_ok());
        assert!(refused(canal(1, SLOTS_MAX + 1)).contains("at most 65536 slots, not 65537"));
        let two = [canal(1, SLOTS_MAX), WireItem { key: "b".into(), ..canal(1, 1) }];
        assert!(items(&two).unwrap_err().message.contains("not 65537"));
        // The product of `per` and `buckets` may be as large as a size can be, and no larger.
        assert!(refused(canal(2, 1)).contains("is more than"));
    }

    #[test]
    fn a_resize_says_exactly_one_thing() {
        let resize = |slots, forget, pause| {
            setting(&Resize { key: "a".to_owned(), slots, forget, pause, ..Resize::default() })
        };
        let stored = |slots, forget, pause| resize(slots, forget, pause).unwrap().1;
        let view = Setting::View(Some(View::Slots { slots: 2 }));
        assert_eq!(stored(Some(2), false, None), view);
        assert_eq!(stored(None, true, None), Setting::View(None));
        assert_eq!(stored(Some(0), false, None), Setting::Paused(true));
        assert_eq!(stored(None, false, Some(true)), Setting::Paused(true));
        assert_eq!(stored(None, false, Some(false)), Setting::Paused(false));
        assert!(resize(None, false, None).is_err());
        assert!(resize(Some(1), true, None).is_err());
        assert!(resize(Some(1), false, Some(false)).is_err());
        assert!(resize(None, true, Some(true)).is_err());
        let service = |without: Option<&[u64]>, with: Option<&[u64]>, pause| {
            let (without, with) = (without.map(Into::into), with.map(Into::into));
            let resize = Resize { key: "a".to_owned(), without, with, pause, ..Resize::default() };
            setting(&resize).map(|(_, setting)| setting)
        };
        assert_eq!(
            service(Some(&[2, 3]), None, None),
            Ok(Setting::Service { numbers: vec![2, 3], out: true })
        );
        assert_eq!(
            service(None, Some(&[2]), None),
            Ok(Setting::Service { numbers: vec![2], out: false })
        );
        assert!(service(Some(&[2]), Some(&[2]), None).is_err());
        assert!(service(Some(&[2]), None, Some(true)).is_err());
        assert!(service(Some(&[]), None, None).is_err());
        assert!(service(Some(&[u64::MAX]), None, None).is_err());
        assert!(service(Some(&vec![1; WITHOUT_MAX + 1]), None, None).is_err());
    }

    #[test]
    fn a_long_command_is_cut_between_characters() {
        let shown = command("ä".repeat(COMMAND_BYTES_MAX)).0;
        assert!(shown.ends_with('…') && shown.len() <= COMMAND_BYTES_MAX + '…'.len_utf8());
        assert_eq!(command("make\ntest".to_owned()).0, "make?test");
    }
}
