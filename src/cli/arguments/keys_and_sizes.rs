//! Options that name locks: `--key`, `--key-literal` with those that describe a single key,
//! `--read` and `--write`; and numbers of slots.

use std::collections::BTreeMap;

use clap::Args;

use super::parse_value::{number, positive};
use crate::cli::{Failed, Result};
use crate::core::Key;
use crate::protocol::{Mode, WireItem};
use crate::sys::kernel;

/// The options that choose the locks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which lock")]
pub(crate) struct LockArgs {
    /// Lock KEY of size VIEW (N or PxB), and take COUNT slots of it
    ///
    /// PxB is P slots in each of B buckets. VIEW is the size that this request assumes. If the
    /// argument contains a /, all of it is the KEY: it cannot have a VIEW or COUNT. To take several
    /// locks at once, repeat the option or combine it with --read and --write.
    #[arg(short = 'k', long = "key", value_name = "KEY[=VIEW][:COUNT]", value_parser = sized_key)]
    pub(crate) keys: Vec<WireItem>,
    /// Lock KEY as written, even with = or : in it
    ///
    /// Use this for a key that comes from a variable. The option may be repeated.
    #[arg(long = "key-literal", value_name = "KEY", value_parser = literal)]
    pub(crate) literals: Vec<WireItem>,
    /// Share KEY and all keys below it with other readers
    ///
    /// Writers wait until all readers have ended. The option may be repeated.
    #[arg(long = "read", value_name = "KEY", value_parser = plain_key)]
    pub(crate) reads: Vec<Key>,
    /// Hold KEY and all keys below it exclusively
    ///
    /// canal waits until no other session holds any of these keys; until then, later requests wait
    /// too. The option may be repeated.
    #[arg(long = "write", value_name = "KEY", value_parser = plain_key)]
    pub(crate) writes: Vec<Key>,
    /// Run at most P at once in each bucket
    #[arg(long, value_name = "P", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) per: Option<u64>,
    /// Number of buckets, such as backends or machines [default: 1]
    #[arg(long, value_name = "B", value_parser = number, allow_negative_numbers = true)]
    pub(crate) buckets: Option<u64>,
    /// Run at most N at once [default: the lock's size, else 1]
    ///
    /// N may be cpus, cpus/4, or memory:8G for slots of 8 GiB. The lock's size is the stored size
    /// or, if none is stored, the size that the latest holder gave. The lock is re-entrant for its
    /// owner.
    #[arg(short = 'j', long, value_name = "N", value_parser = slots, allow_negative_numbers = true)]
    pub(crate) slots: Option<u64>,
    /// Take the slot from the bucket with the fewest held slots
    ///
    /// Without this option, canal takes the lowest free slot, so the first bucket fills first.
    #[arg(long, hide_short_help = true)]
    pub(crate) spread: bool,
    /// Take N slots [default: 1]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) count: Option<u64>,
}

/// Reads one `--key-literal`: a key exactly as written.
pub(super) fn literal(text: &str) -> Result<WireItem, String> {
    Ok(WireItem { key: plain_key(text)?.text().clone(), ..WireItem::default() })
}

/// Reads a key exactly as written: `=` and `:` belong to it.
pub(crate) fn plain_key(text: &str) -> Result<Key, String> {
    Key::new(text).map_err(|error| error.to_string())
}

/// Reads a key that covers itself and the keys below it. A trailing `/` is dropped.
pub(crate) fn prefix(text: &str) -> Result<Key, String> {
    plain_key(text.strip_suffix('/').unwrap_or(text))
}

/// Reads one `--key`: a key that may have a size and a count.
pub(crate) fn sized_key(text: &str) -> Result<WireItem, String> {
    let (key, rest) = text.split_at(text.find(['=', ':']).unwrap_or(text.len()));
    let size = size_of(rest);
    let has_two_readings = !rest.is_empty() && size.is_ok();
    let note = has_two_readings.then(|| text.into());
    // The text may contain user input, such as `deploy/$BRANCH`: `deploy/fix=2` must not become the
    // key of another branch.
    // An error instead would break jobs on the day that someone chooses an odd name.
    if text.contains('/') {
        return Ok(WireItem { text: note, ..literal(text)? });
    }
    let key = plain_key(key)?.text().clone();
    Ok(WireItem { key, text: note, ..size? })
}

/// Reads what follows the key in `--key`: `=VIEW`, `:COUNT`, both or nothing.
fn size_of(rest: &str) -> Result<WireItem, String> {
    let (view, count) = rest.split_once(':').map_or((rest, None), |(it, count)| (it, Some(count)));
    let view = view.strip_prefix('=').map(view_of).transpose()?;
    let (per, buckets, slots) = view.unwrap_or_default();
    let count = count.map(|text| {
        positive(text).map_err(|why| {
            format!("`:{text}`: {why}; the number after `:` is the number of slots to take")
        })
    });
    Ok(WireItem { per, buckets, slots, count: count.transpose()?, ..WireItem::default() })
}

/// A size as the protocol has it: `per` and `buckets`, or `slots`, or nothing.
pub(crate) type Size = (Option<u64>, Option<u64>, Option<u64>);

/// Reads `4` or `3x2`.
pub(crate) fn view_of(text: &str) -> Result<Size, String> {
    let wrong =
        |why: String| format!("`={text}`: {why}; a size is `=4` (slots) or `=3x2` (per x buckets)");
    let Some((per, buckets)) = text.split_once('x') else {
        return Ok((None, None, Some(positive(text).map_err(wrong)?)));
    };
    let per = positive(per).map_err(|why| wrong(format!("per: {why}")))?;
    let buckets = number(buckets).map_err(|why| wrong(format!("buckets: {why}")))?;
    Ok((Some(per), Some(buckets), None))
}

impl LockArgs {
    /// The items of the request: first the counted ones, then those to read, then those to write.
    ///
    /// # Errors
    /// Options contradict each other, no key is given, a key is given twice, or the count exceeds
    /// the given size.
    pub(crate) fn items(&self) -> Result<Vec<WireItem>> {
        let mut items = self.counted()?;
        for (keys, mode) in [(&self.reads, Mode::Read), (&self.writes, Mode::Write)] {
            let of_mode = WireItem { mode: Some(mode), ..WireItem::default() };
            let item = |key: &Key| WireItem { key: key.text().clone(), ..of_mode.clone() };
            items.extend(keys.iter().map(item));
        }
        if items.is_empty() {
            return Err(Failed::new("no lock given; give --key KEY").hint(
                "--read KEY shares KEY and all keys below it with other readers; --write KEY \
                 holds them exclusively",
            ));
        }
        twice(&items).map_or(Ok(items), Err)
    }

    /// Adds the key operand, which may replace a key option but not accompany one: in `--read a b`,
    /// it is unclear whether `b` would be read too.
    ///
    /// # Errors
    /// An option also names a key.
    pub(crate) fn with_operand(&self, operand: Option<&WireItem>) -> Result<Self> {
        let mut lock = self.clone();
        let Some(operand) = operand else { return Ok(lock) };
        if !self.names_none() {
            let key = &operand.key;
            return Err(Failed::new(format!("`{key}` cannot follow options that name keys"))
                .hint("add it with --key KEY, --read KEY or --write KEY"));
        }
        lock.keys.push(operand.clone());
        Ok(lock)
    }

    /// Whether no option names a key.
    pub(crate) fn names_none(&self) -> bool {
        let Self { keys, literals, reads, writes, .. } = self;
        keys.is_empty() && literals.is_empty() && reads.is_empty() && writes.is_empty()
    }

    fn counted(&self) -> Result<Vec<WireItem>> {
        let described =
            [self.per, self.buckets, self.slots, self.count].iter().any(Option::is_some);
        let keys: Vec<&WireItem> = self.keys.iter().chain(&self.literals).collect();
        match keys.as_slice() {
            [] if described && !self.names_none() => {
                Err(Failed::new("--per, --buckets, --slots and --count need a --key"))
            }
            [] if self.spread => {
                Err(Failed::new("--spread chooses a slot of --key, and none is given"))
            }
            [_, _, ..] if described => Err(Failed::new(
                "--per, --buckets, --slots and --count apply to a single lock, but several locks \
                 are given",
            )
            .hint("write the size with each key: --key db=3x2:1 --key deploy=1")),
            keys => keys.iter().map(|key| self.describe(key)).collect(),
        }
    }

    /// A key with what the options say about it: the size and count only if it is the only key.
    fn describe(&self, one: &WireItem) -> Result<WireItem> {
        let (per, buckets, slots) = stated_size((self.per, self.buckets, self.slots))?;
        if per.or(slots).is_some() && one.per.or(one.slots).is_some() {
            return Err(Failed::new(format!(
                "`{}` already has a size: leave out either it or --per, --buckets and --slots",
                one.key
            )));
        }
        if self.count.is_some() && one.count.is_some() {
            return Err(Failed::new("--count and `:COUNT` both give the count; use one of them"));
        }
        let (per, buckets, slots) = (per.or(one.per), buckets.or(one.buckets), slots.or(one.slots));
        // The daemon decides whether the count fits, because a stored size may apply instead.
        let (count, spread) = (self.count.or(one.count), self.spread);
        if spread && let Some(count @ 2..) = count {
            let key = &one.key;
            return Err(Failed::new(format!("--spread chooses one slot of `{key}`, not {count}")));
        }
        Ok(WireItem { per, buckets, slots, count, spread, ..one.clone() })
    }
}

/// The size that the options give: `--per` with or without `--buckets`, or `--slots`, or none.
pub(crate) fn stated_size((per, buckets, slots): Size) -> Result<Size> {
    match (per, buckets, slots) {
        (None, None, slots) => Ok((None, None, slots)),
        (Some(_), buckets, None) => Ok((per, buckets.or(Some(1)), None)),
        (None, Some(_), None) => Err(Failed::new("--buckets needs --per")
            .hint("--per P --buckets B makes P x B slots; for N in total, give --slots N")),
        (_, _, Some(_)) => Err(Failed::new(
            "--slots cannot be given together with --per or --buckets: slots and buckets are two \
             kinds of lock",
        )
        .hint("--slots N makes N slots; --per P --buckets B makes P x B")),
    }
}

/// The error for a key that is given twice.
fn twice(items: &[WireItem]) -> Option<Failed> {
    let option = |item: &WireItem| match item.mode {
        None | Some(Mode::Counted) => "--key",
        Some(Mode::Read) => "--read",
        Some(Mode::Write) => "--write",
    };
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let (key, one, other) = items.iter().find_map(|item| {
        let before = first.insert(&item.key, option(item))?;
        Some((&item.key, before, option(item)))
    })?;
    if one == other {
        let is_plain = one == "--key" && !key.contains(['/', '=', ':']);
        let hint = is_plain.then(|| format!("to take two slots, write --key {key}:2"));
        return Some(Failed::new(format!("{one} {key} is given twice")).hint_if(hint));
    }
    let hint = match other {
        "--write" => format!("leave out {one}: --write already holds the key exclusively"),
        _ => format!("leave out {other}: --key already keeps writers away, as --read does"),
    };
    Some(Failed::new(format!("`{key}` is given with {one} and with {other}")).hint(hint))
}

/// A number of slots, at least 1. It may depend on this machine: `cpus`, `cpus/4`, or `memory:8G`
/// for slots of 8 GiB.
pub(crate) fn slots(text: &str) -> Result<u64, String> {
    slots_by(text, positive)
}

/// Like [`slots`], but also accepts 0.
pub(crate) fn slots_or_none(text: &str) -> Result<u64, String> {
    slots_by(text, number)
}

/// Reads a number of slots. `plain` reads one that does not depend on this machine.
fn slots_by(text: &str, plain: fn(&str) -> Result<u64, String>) -> Result<u64, String> {
    let (whole, slot) = if let Some(divisor) = text.strip_prefix("cpus/") {
        (kernel::processors(), positive(divisor)?)
    } else if let Some(size) = text.strip_prefix("memory:") {
        // `512M` or `8G`, in powers of 1024.
        let power = size.chars().last().and_then(|unit| "KMGT".find(unit));
        let power =
            power.ok_or("the memory of a slot is a number with K, M, G or T, such as 8G")?;
        let count = positive(&size[..size.len() - 1])?;
        let slot = count.checked_mul(1024 << (10 * power)).ok_or("too large")?;
        (kernel::memory_bytes().ok_or("the memory size is unknown")?, slot)
    } else if text == "cpus" {
        (kernel::processors(), 1)
    } else {
        return plain(text);
    };
    Ok((whole / slot).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(keys: &[&str]) -> LockArgs {
        LockArgs {
            keys: keys.iter().map(|k| sized_key(k).unwrap()).collect(),
            ..LockArgs::default()
        }
    }

    fn wire(key: &str, size: Option<Size>, count: Option<u64>) -> WireItem {
        let (per, buckets, slots) = size.unwrap_or_default();
        let plain = WireItem { key: key.into(), count, per, buckets, slots, ..WireItem::default() };
        let has_size = size.is_some() || count.is_some();
        WireItem { text: has_size.then(|| text_of(&plain).into()), ..plain }
    }

    /// The item in the notation of `--key`.
    fn text_of(item: &WireItem) -> String {
        let view = match (item.per, item.buckets, item.slots) {
            (Some(per), Some(buckets), _) => format!("={per}x{buckets}"),
            (_, _, Some(slots)) => format!("={slots}"),
            _ => String::new(),
        };
        let count = item.count.map(|count| format!(":{count}")).unwrap_or_default();
        format!("{}{view}{count}", item.key)
    }

    const fn canal(per: u64, buckets: u64) -> Option<Size> {
        Some((Some(per), Some(buckets), None))
    }

    const fn of_slots(slots: u64) -> Option<Size> {
        Some((None, None, Some(slots)))
    }

    #[test]
    fn a_size_may_be_that_of_this_machine() {
        let processors = kernel::processors();
        assert_eq!(slots("cpus"), Ok(processors));
        assert_eq!(slots("cpus/1"), Ok(processors));
        assert_eq!(slots_or_none("cpus/1000000"), Ok(1));
        let memory = kernel::memory_bytes().unwrap();
        assert_eq!(slots("memory:1M"), Ok(memory >> 20));
        assert_eq!(slots("memory:1000T"), Ok(1));
        assert_eq!((slots("3"), slots_or_none("0")), (Ok(3), Ok(0)));
        for text in
            ["cpus/0", "cpus/", "cpus4", "memory:", "memory:8", "memory:0G", "memory:xG", "0"]
        {
            assert!(slots(text).is_err(), "{text}");
        }
        assert_eq!(slots("memory:99999999999999T").unwrap_err(), "too large");
    }

    #[test]
    fn keys_are_read_with_view_and_count() {
        for (text, key, view, count) in [
            ("db", "db", None, None),
            ("a/b c", "a/b c", None, None),
            ("db=4", "db", of_slots(4), None),
            ("db=3x2", "db", canal(3, 2), None),
            ("db:2", "db", None, Some(2)),
            ("db=3x2:6", "db", canal(3, 2), Some(6)),
            ("x=1:1", "x", of_slots(1), Some(1)),
        ] {
            assert_eq!(args(&[text]).items().unwrap(), [wire(key, view, count)], "{text}");
        }
    }

    #[test]
    fn an_invalid_key_is_an_error_with_the_reason() {
        for (text, why) in [
            ("", "a key cannot be empty"),
            ("=3", "a key cannot be empty"),
            ("/a/b", "a key cannot begin with `/`; use `a/b`"),
            ("a/", "a key cannot end with `/`; use `a`"),
            ("a\nb", "U+000A"),
            ("db=", "`=`: not a whole number; a size is `=4` (slots) or `=3x2`"),
            ("db=x", "`=x`: per: not a whole number; a size is"),
            ("db=prod", "`=prod`: not a whole number; a size is"),
            ("db=0", "must be at least 1"),
            ("db=-1", "`=-1`: must be at least 1"),
            ("db=0x2", "per: must be at least 1"),
            ("db=3x-1", "`=3x-1`: buckets: must not be negative"),
            ("db:0", "must be at least 1"),
            ("db:x", "the number after `:` is the number of slots to take"),
            ("a:1=2", "`:1=2`: not a whole number; the number after"),
        ] {
            let error = sized_key(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_with_a_slash_and_a_literal_key_are_taken_as_they_stand() {
        for text in ["deploy/fix=2", "db/localhost:5432", "a/b=3x2:1", "x=1/y", "a/b:", "a/b=x"] {
            let items = args(&[text]).items().unwrap();
            let has_two_readings = !matches!(text, "x=1/y" | "a/b:" | "a/b=x");
            let read = has_two_readings.then(|| text.into());
            let asked = WireItem { text: read, ..wire(text, None, None) };
            assert_eq!(items, [asked], "{text}");
        }
        for text in ["fix=2", "fix:2", "a=3x2:1", "host:5432", "a/b=2", "=", ":", "k="] {
            let literals = vec![literal(text).unwrap()];
            let lock = LockArgs { literals, ..LockArgs::default() };
            assert_eq!(lock.items().unwrap(), [wire(text, None, None)]);
            let sized = LockArgs { slots: Some(4), count: Some(2), ..lock };
            let asked = WireItem { text: None, ..wire(text, of_slots(4), Some(2)) };
            assert_eq!(sized.items().unwrap(), [asked]);
        }
        let literals = vec![literal("b=2").unwrap()];
        let items = LockArgs { literals, ..args(&["a=2"]) }.items().unwrap();
        assert_eq!(items, [wire("a", of_slots(2), None), wire("b=2", None, None)]);
    }

    #[test]
    fn options_describe_the_only_key() {
        let with = |per, buckets, slots, count| {
            LockArgs { per, buckets, slots, count, ..args(&["db"]) }.items()
        };
        let wire = |key, view, count| WireItem { text: None, ..wire(key, view, count) };
        assert_eq!(with(Some(3), Some(2), None, None).unwrap(), [wire("db", canal(3, 2), None)]);
        assert_eq!(with(Some(3), None, None, None).unwrap(), [wire("db", canal(3, 1), None)]);
        assert_eq!(with(None, None, Some(4), Some(2)).unwrap(), [wire("db", of_slots(4), Some(2))]);
        let error = |per, buckets, slots, count| with(per, buckets, slots, count).unwrap_err();
        assert_eq!(error(None, Some(2), None, None).message, "--buckets needs --per");
        assert!(error(Some(1), None, Some(1), None).message.starts_with("--slots cannot"));
        assert!(error(None, Some(1), Some(1), None).message.starts_with("--slots cannot"));
        assert_eq!(with(Some(3), Some(0), None, None).unwrap(), [wire("db", canal(3, 0), None)]);
        // The daemon decides whether the count fits.
        assert_eq!(with(None, None, Some(2), Some(3)).unwrap(), [wire("db", of_slots(2), Some(3))]);
    }

    #[test]
    fn contradictory_locks_are_refused() {
        let error = |args: LockArgs| args.items().unwrap_err();
        assert_eq!(error(args(&[])).message, "no lock given; give --key KEY");
        assert!(error(LockArgs { per: Some(1), ..args(&["a", "b"]) }).hint.is_some());
        assert!(error(LockArgs { count: Some(1), ..args(&["a", "b"]) }).hint.is_some());
        assert!(
            error(LockArgs { slots: Some(1), ..args(&["a=2"]) })
                .message
                .contains("already has a size")
        );
        assert!(
            error(LockArgs { count: Some(1), ..args(&["a:2"]) })
                .message
                .contains("use one of them")
        );
    }

    fn with(keys: &[&str], reads: &[&str], writes: &[&str]) -> LockArgs {
        let plain = |keys: &[&str]| keys.iter().map(|key| plain_key(key).unwrap()).collect();
        LockArgs { reads: plain(reads), writes: plain(writes), ..args(keys) }
    }

    #[test]
    fn a_key_is_asked_for_only_once() {
        for (args, message, hint) in [
            (
                args(&["a", "b", "a:2"]),
                "--key a is given twice",
                "to take two slots, write --key a:2",
            ),
            (with(&[], &["a", "b", "a"], &[]), "--read a is given twice", ""),
            (with(&[], &[], &["a", "a"]), "--write a is given twice", ""),
            (with(&["a"], &["a"], &[]), "`a` is given with --key and with --read", "out --read:"),
            (with(&["a"], &[], &["a"]), "`a` is given with --key and with --write", "out --key:"),
            (
                with(&[], &["a"], &["a"]),
                "`a` is given with --read and with --write",
                "leave out --read:",
            ),
        ] {
            let failed = args.items().unwrap_err();
            assert_eq!(failed.message, message);
            assert!(failed.hint.unwrap_or_default().contains(hint), "{message}");
        }
        assert_eq!(with(&["a"], &["a/1"], &["a/1/x"]).items().unwrap().len(), 3);
    }

    #[test]
    fn counted_items_come_first_then_reads_then_writes() {
        let items = LockArgs { slots: Some(2), ..with(&["c"], &["b", "d"], &["a/1"]) }.items();
        let item = |key: &str, mode| WireItem { mode: Some(mode), ..wire(key, None, None) };
        assert_eq!(
            items.unwrap(),
            [
                WireItem { text: None, ..wire("c", of_slots(2), None) },
                item("b", Mode::Read),
                item("d", Mode::Read),
                item("a/1", Mode::Write),
            ]
        );
    }

    #[test]
    fn nothing_about_views_goes_with_reading_and_writing() {
        for args in [
            LockArgs { per: Some(1), ..with(&[], &["a"], &[]) },
            LockArgs { count: Some(2), ..with(&[], &[], &["a"]) },
        ] {
            let message = args.items().unwrap_err().message;
            assert!(message.ends_with("need a --key"), "{message}");
        }
    }

    #[test]
    fn a_key_stands_alone_instead_of_an_option() {
        let operand = sized_key("a=3:2").unwrap();
        let lock = LockArgs::default().with_operand(Some(&operand)).unwrap();
        assert_eq!(lock.items().unwrap(), [wire("a", of_slots(3), Some(2))]);
        assert_eq!(args(&["b"]).with_operand(None).unwrap().items().unwrap().len(), 1);
        for beside in [args(&["b"]), with(&[], &["b"], &[]), with(&[], &[], &["b"])] {
            let failed = beside.with_operand(Some(&operand)).unwrap_err();
            assert_eq!(failed.message, "`a` cannot follow options that name keys");
        }
    }

    #[test]
    fn several_keys_keep_their_order() {
        let items = args(&["b=2", "a=3x2:2"]).items().unwrap();
        assert_eq!(items, [wire("b", of_slots(2), None), wire("a", canal(3, 2), Some(2))]);
    }
}
