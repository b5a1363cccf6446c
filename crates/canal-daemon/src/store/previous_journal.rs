//! The journal that an earlier daemon left.
//!
//! Invariant: a journal that cannot be read is never treated as an empty journal.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::history::followed_requests::Unseen;
use crate::processes::identify_owner::find;
use crate::processes::other_namespaces::{Standing, UNSEEN_HINT, Visible};
use crate::wording::StartError;
use canal_core::{
    Change, Globals, Outcome, Owner, ProcessId, RULES_VERSION, Request, Snapshot, Table, Token,
};
use canal_log::Record;
use canal_log::journal::{Journal, OpenError, Opened, last_origin, salvage};
use canal_protocol::paths::Place;
use canal_sys::process::{Found, Origin};

const DISCARD_HINT: &str = "run `canal daemon --discard-journal` to set it aside and to log the \
                            processes that lose their locks";

/// The content of the journal that an earlier daemon left.
pub(crate) struct PreviousJournal {
    pub journal: Journal,
    /// The table with which the daemon continues; `None` if all that it contains has ended.
    pub table: Option<Table>,
    /// Greater than every token in the journal.
    pub next_token: Token,
    /// Whether the journal must be rewritten before records are appended.
    pub begins_anew: bool,
    /// Notes for operators.
    pub notes: Vec<String>,
    /// The requests that ended with the journal. If the daemon continues the journal, all requests
    /// that may have ended.
    pub unseen: Unseen,
}

impl PreviousJournal {
    /// Reads the journal of the daemon in `dir`.
    ///
    /// # Errors
    /// Processes of another namespace may hold something through it and cannot be identified here,
    /// or its outcomes differ from the decisions of its rules.
    pub(crate) fn read(opened: Opened, dir: &Path, origin: &Origin) -> Result<Self> {
        let Opened { journal, origin: written_by, rules, snapshot, records, .. } = opened;
        let mut found = Self {
            journal,
            table: None,
            next_token: Globals::default().next_token,
            begins_anew: true,
            notes: Vec::new(),
            unseen: Unseen::default(),
        };
        let (Some(written_by), Some(snapshot)) = (written_by, snapshot) else { return Ok(found) };
        let known_ms = records.iter().map(|record| record.entry.at.0).max().unwrap_or(0);
        if !written_by.may_share_boot(origin) {
            tracing::info!("the machine has rebooted: earlier holds have ended");
            // Requests ended with the machine, as far as the remaining journal contains them.
            if let Some(table) = as_far_as_readable(&snapshot, &records) {
                found.unseen = Unseen::rebooted(&table, known_ms);
            }
            found.next_token = last_token(&snapshot, &records);
            return Ok(found);
        }
        let same_rules = rules == RULES_VERSION;
        let table = replay(&snapshot, &records, same_rules)?;
        // This happens before the translation, so the processes have their original pids.
        found.unseen = Unseen::of_table(&table, known_ms);
        let table = match written_by.shares_numbers(origin) {
            true => table,
            false => adopted(&table, dir, &Visible::look(&written_by, origin), &mut found.notes)?,
        };
        if !same_rules {
            let what = "an earlier version with other rules wrote the journal";
            tracing::info!(rules, now = RULES_VERSION, "{what}");
        }
        found.next_token = table.globals().next_token;
        found.begins_anew = !same_rules || written_by != *origin;
        Ok(Self { table: Some(table), ..found })
    }
}

/// The table of another pid or time namespace, with its processes translated to this one.
fn adopted(table: &Table, dir: &Path, visible: &Visible, notes: &mut Vec<String>) -> Result<Table> {
    let nameless = holders(table, |process| process.inode == 0);
    if !nameless.is_empty() {
        let what = format!(
            "the journal in {} names processes in another pid or time namespace, which canal \
             cannot identify before Linux 6.9: {}",
            dir.display(),
            nameless.join(", ")
        );
        return Err(StartError { what, hint: UNSEEN_HINT.into() }.into());
    }
    let unverified = holders(table, |process| visible.standing(process) == Standing::Unknown);
    let owner = |owner: &mut Owner| {
        if let Owner::Process(process) = owner {
            *process = visible.translate(*process);
        }
    };
    let request = |request: &mut Arc<Request>| {
        let request = Arc::make_mut(request);
        owner(&mut request.owner);
        request.asker = request.asker.map(|asker| visible.translate(asker));
    };
    let mut snapshot = table.snapshot();
    snapshot.frames.iter_mut().for_each(|frame| owner(&mut frame.owner));
    snapshot.holds.iter_mut().for_each(|hold| request(&mut hold.asked));
    snapshot.waiters.iter_mut().for_each(|waiter| request(&mut waiter.request));
    let table = Table::restore(&snapshot)?;
    tracing::info!(
        unverified = unverified.len(),
        "the journal comes from another pid or time namespace; identified its processes here"
    );
    if !unverified.is_empty() {
        notes.push(format!("{UNVERIFIED}: {}", unverified.join(", ")));
    }
    Ok(table)
}

/// The keys and the command of each holder whose process is one of these.
fn holders(table: &Table, is: impl Fn(ProcessId) -> bool) -> Vec<String> {
    let held = table.holds().filter(|hold| !hold.orphaned);
    let named = held.filter_map(|hold| match hold.asked.owner {
        Owner::Process(process) if is(process) => {
            let keys: BTreeSet<&str> = hold.items.iter().map(|item| item.key.as_str()).collect();
            let keys = keys.into_iter().collect::<Vec<_>>().join(" ");
            Some(format!("{keys} ({})", hold.asked.command.0))
        }
        _ => None,
    });
    named.collect()
}

const UNVERIFIED: &str = "the daemon cannot see from this pid namespace whether these holders are \
                          still running, so they keep their locks until `canal release --force`";

/// Rebuilds the table from a snapshot and the records that follow it.
fn replay(snapshot: &Snapshot, records: &[Record], same_rules: bool) -> Result<Table> {
    let mut table = Table::restore(snapshot)?;
    let mut outcomes = Vec::new();
    for record in records {
        if !same_rules {
            table.replay(record.revision, &record.entry, &record.outcomes)?;
            continue;
        }
        outcomes.clear();
        table.apply(record.revision, &record.entry, &mut outcomes);
        if outcomes != record.outcomes {
            let revision = record.revision;
            let what = format!("the journal contradicts its own rules at revision {revision}");
            return Err(StartError { what, hint: DISCARD_HINT.into() }.into());
        }
    }
    Ok(table)
}

/// The table of a journal of which a part may be missing or damaged.
fn as_far_as_readable(snapshot: &Snapshot, records: &[Record]) -> Option<Table> {
    let mut table = Table::restore(snapshot).ok()?;
    let mut replay = |it: &Record| table.replay(it.revision, &it.entry, &it.outcomes);
    let _ = records.iter().try_for_each(&mut replay);
    Some(table)
}

/// The token after the last one that was assigned.
fn last_token(snapshot: &Snapshot, records: &[Record]) -> Token {
    let outcomes = records.iter().flat_map(|record| &record.outcomes);
    let granted = outcomes.filter_map(|outcome| match outcome {
        Outcome::Granted(granted) => Some(Token(granted.token.0 + 1)),
        Outcome::ConfirmedAt { token, .. } => Some(Token(token.0 + 1)),
        _ => None,
    });
    let floors = records.iter().filter_map(|record| match record.entry.change {
        Change::Floor { token } => Some(token),
        _ => None,
    });
    granted.chain(floors).chain([snapshot.globals.next_token]).max().unwrap_or_default()
}

/// Opens the journal. Discards it if it is void anyway, or if `discard` is set.
///
/// # Errors
/// The journal cannot be used, and `discard` is not set.
pub(crate) fn open(place: &Place, origin: &Origin, discard: bool) -> Result<Opened> {
    if discard {
        name_the_losers(place, origin);
        return discarded(place);
    }
    match Journal::open(&place.dir) {
        // Records from before the last boot are void anyway. They were not synced, so a power cut
        // may have left any part of them.
        Err(error @ OpenError::Damaged { .. })
            if last_origin(&place.dir).is_some_and(|by| !by.may_share_boot(origin)) =>
        {
            tracing::warn!(%error, "set the journal aside: it is from before the last boot");
            discarded(place)
        }
        Err(error @ (OpenError::Damaged { .. } | OpenError::Newer { .. })) => {
            Err(StartError { what: error.to_string(), hint: DISCARD_HINT.into() }.into())
        }
        opened => Ok(opened?),
    }
}

fn discarded(place: &Place) -> Result<Opened> {
    for path in Journal::discard(&place.dir)? {
        tracing::warn!("moved the journal to {}", path.display());
    }
    Ok(Journal::open(&place.dir)?)
}

/// The table of a journal, as far as it is readable, and a test whether one of its processes has
/// certainly ended. `None` if there is no journal of this boot.
fn salvaged(place: &Place, origin: &Origin) -> Option<(Table, impl Fn(ProcessId) -> bool)> {
    let (by, snapshot, records) = salvage(&place.dir)?;
    if !by.may_share_boot(origin) {
        return None;
    }
    let visible = (!by.shares_numbers(origin)).then(|| Visible::look(&by, origin));
    let has_ended = move |process| match &visible {
        Some(visible) => visible.standing(process) == Standing::Ended,
        None => matches!(find(process), Found::Gone),
    };
    let table = as_far_as_readable(&snapshot, &records)?;
    Some((table, has_ended))
}

/// The number of frames that hold something through a journal, except for frames whose process has
/// certainly ended. Frames of leases count, and so do ended frames whose descendants keep a hold.
/// Changes nothing.
pub(crate) fn living(place: &Place, origin: &Origin) -> usize {
    let Some((table, has_ended)) = salvaged(place, origin) else { return 0 };
    let holding = table.frames().filter(|frame| table.holds_in(frame.id).next().is_some());
    let lives = |owner: &Owner| match owner {
        Owner::Process(process) => !has_ended(*process),
        Owner::Lease(_) => true,
        // The hold of its build counts.
        Owner::Jobserver(_) => false,
    };
    holding.filter(|frame| frame.ended || lives(&frame.owner)).count()
}

/// Logs the processes that lose their locks and may still run when the journal is discarded.
fn name_the_losers(place: &Place, origin: &Origin) {
    let Some((table, has_ended)) = salvaged(place, origin) else { return };
    for hold in table.holds() {
        let Owner::Process(process) = &hold.asked.owner else { continue };
        if has_ended(*process) {
            continue;
        }
        let keys: Vec<_> = hold.items.iter().map(|item| item.key.as_str()).collect();
        let (pid, command, token) = (process.pid, hold.asked.command.0.as_str(), hold.token.0);
        let (keys, what) = (keys.join(" "), "this process is still running and loses its lock");
        tracing::warn!(pid, command, keys, token, "{what}");
    }
}
