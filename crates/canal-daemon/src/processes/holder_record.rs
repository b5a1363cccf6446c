//! The processes that received a grant, and a file on this host that records them.
//!
//! The table in the engine contains them too, but this host cannot read it while the engine is
//! unreachable, and the table drops the holds of a host that was declared gone. Yet the next daemon
//! must find these processes, because they must be dead before it joins.
//!
//! Invariant: the file contains a process from before it receives its grant until the process no
//! longer has to be ended. That is only true of a process that was seen dead, that holds nothing
//! according to the log, or that may outlive its lock because its client chose so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::membership::{Known, Mark};
use crate::processes::find_descendants::Trace;
use crate::processes::identify_owner::find;
use crate::processes::other_namespaces::{Standing, UNSEEN_HINT, Visible};
use crate::wording::StartError;
use canal_core::{HoldState, OnLost, Owner, ProcessId, Request, Table, Tag, Token};
use canal_log::disk;
use canal_sys::kernel::random;
use canal_sys::private_dir::{if_there, remove_if_there};
use canal_sys::process::{Found, Origin};

/// A process that received a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub process: ProcessId,
    #[serde(default)]
    pub on_lost: OnLost,
    /// How far the log was read when the process received the grant, which is in that part of the
    /// history.
    pub mark: Option<Mark>,
    /// The tag of the request, which identifies the processes that were started under the hold.
    pub tag: Option<Tag>,
    /// Whether only the table names it, because an earlier daemon of this host took it over, or
    /// ended before it sent the grant. If the hold is lost, the process is ended like any other,
    /// although it may not have received the grant.
    #[serde(default)]
    pub taken_over: bool,
}

impl Holder {
    /// The process that owns a hold. `None` if a lease owns it.
    pub(crate) fn of(hold: &HoldState, mark: Option<Mark>) -> Option<Self> {
        let Owner::Process(process) = hold.asked.owner else { return None };
        let Request { on_lost, tag, .. } = *hold.asked;
        Some(Self { process, on_lost, mark, tag: Some(tag), taken_over: false })
    }
}

/// Identifies the duty to watch the processes of a record. Each membership has a new id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchId(pub u64);

/// Whether a client chose that its command is not killed (`--on-lost`), and the chosen step was
/// taken.
pub(crate) fn may_outlive_lock(on_lost: OnLost, was_asked_to_end: bool) -> bool {
    match on_lost {
        OnLost::Warn => true,
        OnLost::Term => was_asked_to_end,
        OnLost::Kill => false,
    }
}

/// The state of a recorded process according to the log that this host now follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It still has its hold.
    Holds,
    /// It released the hold, or an operator took the hold away.
    Over,
    /// The log does not contain it because its history was rewritten, or its state cannot be
    /// determined.
    Unknown,
}

impl Claim {
    /// `known` states whether the history of the grant is part of the history of `table`.
    pub(crate) fn of(table: &Table, known: Known, token: Token, told: &Holder) -> Self {
        match table.hold(token) {
            Some(hold) if hold.asked.owner == Owner::Process(told.process) => Self::Holds,
            // Each history assigns tokens in order, but two histories can assign the same token to
            // different grants.
            None if known == Known::Same => Self::Over,
            _ => Self::Unknown,
        }
    }
}

/// The file's name.
const NAME: &str = "owners";

/// How many outdated lines the file may contain before it is rewritten.
const STALE_LINES_MAX: usize = 4096;

const HOLDERS_HINT: &str = "let them end under a daemon with that engine, or end them";

/// A line of the file, after the first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Told(Token, Holder),
    Ended(Token),
}

/// The content of a file. All but the processes is in its first line.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// The boot and the namespaces in which the pids are valid.
    by: Option<Origin>,
    /// The watcher that is responsible for the processes if the daemon is killed, if any.
    watcher: Option<WatchId>,
    /// The TTL of the membership that the processes depend on, in milliseconds. The next daemon may
    /// have another one.
    pub ttl_ms: Option<u64>,
    /// The largest token that was ever sent here, whether or not its hold has ended.
    pub largest: Token,
    /// The number of the directory, which is random.
    pub dir_number: Option<u64>,
    #[serde(skip)]
    each: BTreeMap<Token, Holder>,
}

impl Recorded {
    /// The processes that a watcher is responsible for, according to the file in `dir`. `None` if a
    /// later daemon has taken them over.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn for_watcher(
        dir: &Path,
        origin: &Origin,
        watcher: WatchId,
    ) -> io::Result<Option<BTreeMap<Token, Holder>>> {
        let recorded = read(&std::fs::read(dir.join(NAME))?);
        let is_its = recorded.by.as_ref().is_some_and(|by| by.shares_numbers(origin))
            && recorded.watcher == Some(watcher);
        Ok(is_its.then_some(recorded.each))
    }
}

/// The processes that received a grant, and the file that records them.
#[derive(Debug)]
pub(crate) struct HolderRecord {
    path: PathBuf,
    /// `None` if there is nothing to record, or if the file could not be created.
    file: Option<File>,
    recorded: Recorded,
    /// The number of outdated lines in the file.
    stale: usize,
    /// Whether the last line may be incomplete. A line appended to it would be unreadable.
    torn: bool,
}

impl HolderRecord {
    /// Opens the file in `dir`. Processes of another boot no longer exist. `discard` omits
    /// processes of another namespace, whose state the daemon cannot determine.
    ///
    /// # Errors
    /// The file cannot be read or written, or it names such processes and `discard` is not set.
    pub(crate) fn open(dir: &Path, origin: Origin, discard: bool) -> anyhow::Result<Self> {
        let path = dir.join(NAME);
        let recorded = recorded(&path, &origin, discard)?;
        let dir_number = Some(recorded.dir_number.map_or_else(random::u64, Ok)?);
        let recorded = Recorded { by: Some(origin), dir_number, ..recorded };
        let mut holder_record = Self { path, file: None, recorded, stale: 0, torn: false };
        holder_record.write_anew()?;
        Ok(holder_record)
    }

    /// Records a process before it receives a grant.
    ///
    /// # Errors
    /// The process is not recorded, so it must not receive the grant. `AlreadyExists` if another
    /// process received this token in a history that is lost. That process must be ended first.
    pub(crate) fn tell(&mut self, token: Token, told: Holder) -> io::Result<()> {
        match self.recorded.each.get(&token) {
            Some(other) if *other == told => return Ok(()),
            Some(other) if other.process != told.process => {
                let text = format!("pid {} got the same token", other.process.pid);
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            _ => {}
        }
        self.append(&Line::Told(token, told))?;
        self.recorded.largest = self.recorded.largest.max(token);
        self.recorded.each.insert(token, told);
        Ok(())
    }

    /// Records that the process of this token no longer has to be ended.
    pub(crate) fn end(&mut self, token: Token) {
        if self.recorded.each.remove(&token).is_none() {
            return;
        }
        self.stale += 2;
        let ended = if self.stale > STALE_LINES_MAX.max(2 * self.recorded.each.len()) {
            self.write_anew()
        } else {
            self.append(&Line::Ended(token))
        };
        if let Err(error) = ended {
            tracing::warn!(%error, path = %self.path.display(), "the record of owners is out of date");
        }
    }

    /// Records the TTL of a membership, before a process receives a grant under it.
    ///
    /// # Errors
    /// It is not recorded yet.
    pub(crate) fn set_ttl(&mut self, ttl_ms: u64) -> io::Result<()> {
        if self.recorded.ttl_ms.replace(ttl_ms) == Some(ttl_ms) {
            return Ok(());
        }
        self.write_anew()
    }

    /// Records the watcher that is responsible for these processes from now on if the daemon is
    /// killed.
    ///
    /// # Errors
    /// It is not recorded. Then the watcher of the previous daemon stays responsible.
    pub(crate) fn hand_over_to(&mut self, watcher: WatchId) -> io::Result<()> {
        self.recorded.watcher = Some(watcher);
        self.write_anew()
    }

    /// The marks that identify the processes of a hold, apart from its owner.
    pub(crate) fn trace_of(&self, told: &Holder) -> Option<Trace> {
        Some(Trace::of(told.tag?, self.path.parent()?))
    }

    /// The content of the file.
    pub(crate) fn content(&self) -> &Recorded {
        &self.recorded
    }

    /// The recorded processes, which must still be remembered, by their tokens.
    pub(crate) fn each(&self) -> &BTreeMap<Token, Holder> {
        &self.recorded.each
    }

    /// Creates the file again if it was removed.
    pub(crate) fn restore(&mut self) -> io::Result<()> {
        if self.file.is_some() && !self.path.exists() { self.write_anew() } else { Ok(()) }
    }

    fn append(&mut self, line: &Line) -> io::Result<()> {
        if self.torn {
            self.write_anew()?;
        }
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        // Without a sync: if the daemon is killed, the kernel still has the line. If the machine
        // goes down, the processes end with it.
        let written = disk::append(file, &bytes);
        self.torn = written.is_err();
        written
    }

    fn write_anew(&mut self) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&self.recorded)?;
        for (token, told) in self.each() {
            bytes.push(b'\n');
            serde_json::to_writer(&mut bytes, &Line::Told(*token, *told))?;
        }
        bytes.push(b'\n');
        let beside = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        remove_if_there(&beside)?;
        let mut file = options.open(&beside)?;
        disk::append(&mut file, &bytes)?;
        disk::rename(&beside, &self.path)?;
        self.file = Some(file);
        (self.stale, self.torn) = (0, false);
        Ok(())
    }
}

/// Refuses to start while a process that holds something through an engine lives, or may live. The
/// journal does not contain such holds, so the daemon would grant the same lock again. `discard`
/// omits processes of another namespace, whose state the daemon cannot determine.
///
/// # Errors
/// Such processes exist, or the file cannot be read.
pub(crate) fn refuse_holders(dir: &Path, origin: &Origin, discard: bool) -> anyhow::Result<()> {
    let told = recorded(&dir.join(NAME), origin, discard)?.each.into_values();
    let living = told.map(|it| it.process).filter(|it| !matches!(find(*it), Found::Gone));
    let pids: BTreeSet<u32> = living.map(|process| process.pid).collect();
    if pids.is_empty() {
        return Ok(());
    }
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let (dir, pids) = (dir.display(), pids.join(", "));
    let what = format!(
        "processes hold an engine's locks, which are not in the journal in {dir}: pid {pids}"
    );
    Err(StartError { what, hint: HOLDERS_HINT.into() }.into())
}

/// The content of a file, if its processes belong to this boot, with their pids in this namespace.
/// Without processes if they no longer exist.
fn recorded(path: &Path, origin: &Origin, discard: bool) -> anyhow::Result<Recorded> {
    let bytes = if_there(std::fs::read(path)).with_context(|| path.display().to_string())?;
    let Some(bytes) = bytes else { return Ok(Recorded::default()) };
    let mut recorded = read(&bytes);
    let by = recorded.by.take();
    if by.as_ref().is_some_and(|by| by.shares_numbers(origin)) {
        return Ok(recorded);
    }
    let theirs = std::mem::take(&mut recorded.each);
    recorded.watcher = None;
    let Some(by) = by.filter(|by| by.may_share_boot(origin)) else { return Ok(recorded) };
    let (visible, mut unseen) = (Visible::look(&by, origin), 0);
    for (token, told) in theirs {
        match visible.standing(told.process) {
            Standing::Lives(pid) => {
                let process = ProcessId { pid, ..told.process };
                recorded.each.insert(token, Holder { process, ..told });
            }
            Standing::Ended => {}
            Standing::Unknown => unseen += 1,
        }
    }
    if unseen > 0 {
        let unseen = canal_text::plural(unseen, "process", "processes");
        let path = path.display();
        let place = "in another pid or time namespace, which cannot be seen from here";
        let what = format!("{path} names {unseen} {place}");
        // With an engine, the daemon cannot keep a process that it does not see, because it must be
        // able to end the process in time.
        if !discard {
            return Err(StartError { what, hint: UNSEEN_HINT.into() }.into());
        }
        tracing::warn!("left out: {what}");
    }
    Ok(recorded)
}

fn read(bytes: &[u8]) -> Recorded {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let first = lines.next().and_then(|first| serde_json::from_slice(first).ok());
    let mut recorded: Recorded = first.unwrap_or_default();
    for line in lines {
        match serde_json::from_slice(line) {
            Ok(Line::Told(token, told)) => {
                recorded.largest = recorded.largest.max(token);
                recorded.each.insert(token, told);
            }
            Ok(Line::Ended(token)) => drop(recorded.each.remove(&token)),
            // The last line may be incomplete. Its process did not receive its grant.
            Err(_) => {}
        }
    }
    recorded
}

/// The number of a directory, if a daemon of this directory has been a member.
pub(crate) fn dir_number(dir: &Path) -> Option<u64> {
    read(&std::fs::read(dir.join(NAME)).ok()?).dir_number
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use canal_core::{Change, ENTRY_VERSION, Entry, OnLost, ProcessId, Revision, UnixMillis};

    /// A table in which nothing is held and the next token is `next`.
    fn table(next: Token) -> Table {
        let mut table = Table::default();
        let change = Change::Floor { token: next };
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(1), change };
        table.apply(Revision(1), &entry, &mut Vec::new());
        assert_eq!(table.globals().next_token, next);
        table
    }

    #[test]
    fn a_token_below_the_next_one_is_no_proof_of_a_release() {
        let table = table(Token(100));
        let claim = |known| Claim::of(&table, known, Token(99), &told(11));
        assert_eq!(claim(Known::Same), Claim::Over);
        assert_eq!(claim(Known::Other), Claim::Unknown, "others were granted it since");
        assert_eq!(claim(Known::TooOld), Claim::Unknown, "nobody can tell");
    }

    #[test]
    fn only_on_lost_warn_or_a_sent_term_lets_a_process_outlive_its_lock() {
        assert!(!may_outlive_lock(OnLost::Kill, true));
        assert!(!may_outlive_lock(OnLost::Term, false));
        assert!(may_outlive_lock(OnLost::Term, true));
        assert!(may_outlive_lock(OnLost::Warn, false));
    }

    fn told(pid: u32) -> Holder {
        let process = ProcessId { pid, started: 7, inode: u64::MAX };
        Holder { process, on_lost: OnLost::Kill, mark: None, tag: None, taken_over: false }
    }

    fn origin(boot: &str) -> Origin {
        Origin { boot_id: boot.to_owned(), pid_namespace: 1, time_namespace: 0 }
    }

    /// The tokens that a daemon of this boot finds in the file.
    fn tokens(dir: &tempfile::TempDir, origin: Origin) -> Vec<Token> {
        let record = HolderRecord::open(dir.path(), origin, false).unwrap();
        record.each().keys().copied().collect()
    }

    #[test]
    fn the_successor_of_a_killed_watcher_finds_all_holders() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder_record = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        holder_record.tell(Token(1), told(11)).unwrap();
        holder_record.tell(Token(2), told(12)).unwrap();
        holder_record.end(Token(1));
        drop(holder_record);
        let mut torn = OpenOptions::new().append(true).open(dir.path().join(NAME)).unwrap();
        torn.write_all(b"{\"told\":[3,{\"proc").unwrap();
        let mut again = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        assert_eq!(*again.each(), BTreeMap::from([(Token(2), told(12))]));
        again.tell(Token(4), told(14)).unwrap();
        assert_eq!(tokens(&dir, origin("a")), [Token(2), Token(4)]);
        assert_eq!(tokens(&dir, origin("b")), [], "another boot");
    }

    #[test]
    fn a_directory_keeps_its_number_and_no_other_one_has_it() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let open = |dir: &Path| HolderRecord::open(dir, origin("a"), false).unwrap();
        assert_eq!(dir_number(one.path()), None);
        let mut first = open(one.path());
        let number = first.content().dir_number.unwrap();
        std::fs::remove_file(one.path().join(NAME)).unwrap();
        first.restore().unwrap();
        assert_eq!(dir_number(one.path()), Some(number), "it is written again");
        assert_eq!(open(one.path()).content().dir_number, Some(number));
        assert_ne!(open(other.path()).content().dir_number, Some(number));
    }

    #[test]
    fn a_process_of_another_namespace_is_kept_unless_the_operator_discards_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder_record = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        holder_record.tell(Token(1), told(11)).unwrap();
        let here = Origin { pid_namespace: 2, ..origin("a") };
        let error = HolderRecord::open(dir.path(), here.clone(), false).unwrap_err();
        assert!(error.to_string().contains("names 1 process in another"), "{error}");
        refuse_holders(dir.path(), &here, false).unwrap_err();
        refuse_holders(dir.path(), &here, true).unwrap();
        assert_eq!(HolderRecord::open(dir.path(), here, true).unwrap().each().len(), 0);
    }

    #[test]
    fn lines_after_a_failed_write_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder_record = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        // The disk has become full in the middle of a line.
        holder_record.file.as_mut().unwrap().write_all(b"{\"told\":[1,{").unwrap();
        holder_record.torn = true;
        holder_record.tell(Token(2), told(12)).unwrap();
        assert_eq!(tokens(&dir, origin("a")), [Token(2)]);
    }

    #[test]
    fn the_latest_watcher_answers_for_the_recorded_processes() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder_record = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        let its = |watcher, boot| {
            let recorded = Recorded::for_watcher(dir.path(), &origin(boot), WatchId(watcher));
            recorded.unwrap().map(|each| each.into_keys().collect::<Vec<_>>())
        };
        holder_record.tell(Token(1), told(11)).unwrap();
        assert_eq!(its(1, "a"), None);
        holder_record.hand_over_to(WatchId(1)).unwrap();
        holder_record.tell(Token(2), told(12)).unwrap();
        assert_eq!(its(1, "a"), Some(vec![Token(1), Token(2)]));
        assert_eq!(its(1, "b"), None, "another boot");
        // A restarted daemon that is not a member yet takes nothing over.
        let mut holder_record = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        holder_record.end(Token(1));
        assert_eq!(its(1, "a"), Some(vec![Token(2)]));
        holder_record.hand_over_to(WatchId(2)).unwrap();
        assert_eq!((its(1, "a"), its(2, "a")), (None, Some(vec![Token(2)])));
    }

    #[test]
    fn the_record_is_compacted_and_made_anew_when_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut holder_record = HolderRecord::open(dir.path(), origin("a"), false).unwrap();
        holder_record.tell(Token(0), told(1)).unwrap();
        for token in 1..20_000 {
            holder_record.tell(Token(token), told(2)).unwrap();
            holder_record.end(Token(token));
        }
        let path = dir.path().join(NAME);
        assert!(path.metadata().unwrap().len() < 1 << 20);
        std::fs::remove_file(&path).unwrap();
        holder_record.restore().unwrap();
        assert_eq!(tokens(&dir, origin("a")), [Token(0)]);
        let again = HolderRecord::open(dir.path(), origin("b"), true).unwrap();
        assert_eq!(again.each().len(), 0, "another boot");
        assert_eq!(again.content().largest, Token(19_999));
    }
}
