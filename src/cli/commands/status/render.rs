//! Lays out the page of a status.

use std::time::Duration;

use itertools::Itertools as _;

use super::hosts;
use super::scope::Scope;
use crate::cli::output::columns::{COLUMNS, KEY, NOTE, PLAIN, Page, WARNING, table};
use crate::cli::wording::holders_and_waiters::{by_mode, clause, left, over_nodes, slots};
use crate::cli::wording::waiting::estimate;
use crate::cli::{Now, command_line, plural, sanitize, stated_ms, user_name};
use crate::core::Kind;
use crate::protocol::{DaemonInfo, HolderInfo, KeyInfo, LeaseInfo, Mode, Status, WaiterInfo};

/// The most waiters that an overview shows for one key.
const WAITERS_IN_OVERVIEW: usize = 10;

/// The titles above the holders and waiters.
const COLUMN_NAMES: [&str; COLUMNS] = ["", "PID", "USER", "FOR", "SINCE", "SLOTS", "COMMAND"];

/// The page of a status. `filtered` means that the user asked for a part of the locks.
pub(super) fn page(
    status: &Status,
    scope: Scope<'_>,
    filtered: bool,
    verbose: bool,
    now: &Now,
) -> Page {
    let mut page = Page::default();
    let cut_off = status.engine.as_ref().filter(|engine| !hosts::is_member(engine));
    if let Some(engine) = cut_off {
        // First, because everything below it may be out of date.
        hosts::engine(&mut page, engine, &status.hosts, now);
    }
    if verbose {
        daemon(&mut page, &status.daemon, now);
    }
    if let Some(engine) = &status.engine {
        if cut_off.is_none() {
            hosts::engine(&mut page, engine, &status.hosts, now);
        }
        hosts::list(&mut page, engine, &status.hosts, scope, verbose, now);
    }
    if status.keys.is_empty() {
        page.line(nothing(scope, filtered, cut_off.is_some()), PLAIN);
        return page;
    }
    if let Some(engine) = cut_off {
        page.line(hosts::last_known(engine, now), WARNING);
    }
    let mut keys: Vec<&KeyInfo> = status.keys.iter().collect();
    // A report about one key leaves out other keys.
    if !matches!(scope, Scope::Key(_)) {
        let (counts, oldest) = crowd(status, now);
        page.title(counts, oldest, PLAIN);
        keys.sort_by_key(|key| key.waiting == 0);
    }
    if status.keys.iter().any(|key| !key.holders.is_empty() || !key.waiters.is_empty()) {
        page.names(COLUMN_NAMES);
    }
    for key in keys {
        page.group();
        Drawer { status, key, scope, verbose, now }.draw(&mut page);
    }
    if status.left_out > 0 {
        page.group();
        let more = plural(status.left_out, "more key is", "more keys are");
        page.line(format!("{more} left out; `canal status KEY` shows one"), NOTE);
    }
    page
}

/// A line for each holder and waiter, with its key, and nothing else.
pub(super) fn one_line_each(status: &Status, now: &Now) -> Page {
    let mut page = Page::with(table::<0, COLUMNS>, 0..0);
    page.names(["KEY", "PLACE", "PID", "USER", "FOR", "SLOTS", "COMMAND"]);
    for key in &status.keys {
        let drawer = Drawer { status, key, scope: Scope::Everything, verbose: false, now };
        let holders = key.holders.iter().map(|holder| drawer.holder_cells(holder));
        let waiters = key.waiters.iter().map(|waiter| drawer.waiter_cells(waiter));
        for [place, pid, user, age, _, slots, command] in holders.chain(waiters) {
            let key = sanitize(&key.key);
            page.cells([key, place, pid, user, age, slots, command], PLAIN);
        }
    }
    page
}

/// The holders and the waiters of a key, a group for each. Each waiter has one line; that of the
/// marked group has its details, too.
pub(crate) fn participants(status: &Status, key: &KeyInfo, mark: Option<usize>, now: &Now) -> Page {
    let mut page = Page::default();
    if key.holders.is_empty() && key.waiters.is_empty() {
        return page;
    }
    page.names(COLUMN_NAMES);
    let drawer = Drawer { status, key, scope: Scope::Key(&key.key), verbose: false, now };
    for holder in &key.holders {
        page.group();
        drawer.holder(&mut page, holder);
    }
    for (at, waiter) in (key.holders.len()..).zip(&key.waiters) {
        page.group();
        if mark == Some(at) {
            drawer.waiter(&mut page, waiter, None);
        } else {
            page.cells(drawer.waiter_cells(waiter), PLAIN);
        }
    }
    page.group();
    drawer.others(&mut page);
    page
}

/// The most important warning, shown above everything else: this host is cut off from the table.
pub(crate) fn cut_off(status: &Status, now: &Now) -> Option<Page> {
    let engine = status.engine.as_ref().filter(|engine| !hosts::is_member(engine))?;
    let mut page = Page::default();
    hosts::engine(&mut page, engine, &status.hosts, now);
    page.line(hosts::last_known(engine, now), WARNING);
    Some(page)
}

/// `12 keys, 9 holders, 3 waiters`, `longest wait 3m12s`.
pub(crate) fn crowd(status: &Status, now: &Now) -> (String, String) {
    let keys = status.keys.len() as u64 + status.left_out;
    // A holder or waiter of several keys counts once.
    let holders = status.keys.iter().flat_map(|key| &key.holders).unique_by(|it| it.token);
    let waiters = || status.keys.iter().flat_map(|key| &key.waiters);
    let each_once = waiters().unique_by(|waiter| (&waiter.session, waiter.pid, &waiter.since));
    let (holders, count) = (holders.count() as u64, each_once.count() as u64);
    let oldest = waiters().max_by_key(|waiter| now.passed(&waiter.since));
    let (keys, holders) = (plural(keys, "key", "keys"), plural(holders, "holder", "holders"));
    let counts = format!("{keys}, {holders}, {}", plural(count, "waiter", "waiters"));
    let oldest = oldest.map(|waiter| format!("longest wait {}", now.age(&waiter.since)));
    (counts, oldest.unwrap_or_default())
}

/// The message for a report without keys.
pub(crate) fn nothing(scope: Scope<'_>, filtered: bool, is_cut_off: bool) -> String {
    match (scope, is_cut_off) {
        (_, false) if filtered => "no lock matches; run `canal status` to see all locks".to_owned(),
        (Scope::Key(key), false) => format!("no one holds or waits for {key}"),
        (_, false) => "no locks are held; no one is waiting".to_owned(),
        (Scope::Key(key), _) => {
            format!("this host does not currently know who holds or waits for {key}")
        }
        _ => "this host does not currently know which locks are held".to_owned(),
    }
}

fn daemon(page: &mut Page, daemon: &DaemonInfo, now: &Now) {
    let DaemonInfo { pid, version, socket, since, uid, notes } = daemon;
    let who = format!("daemon {version}, pid {pid}, {}", user_name::name(*uid));
    let since = format!("since {} (for {})", now.clock(since), now.age(since));
    page.line(format!("{who}, {since}, {}", sanitize(socket)), PLAIN);
    notes.iter().for_each(|note| page.line(noted(note), WARNING));
}

/// Describes what did not fit on the screen, and how to see it.
pub(super) fn left_out(keys: usize, lines: usize) -> String {
    let more_keys = plural(keys as u64, "more key", "more keys");
    let more_lines = plural(lines as u64, "more line", "more lines");
    match (keys, lines) {
        (0, _) => format!("… {more_lines}"),
        (_, 0) => format!("… {more_keys}; `canal status KEY` shows one"),
        _ => format!("… {more_keys}, {more_lines}; `canal status KEY` shows one"),
    }
}

struct Drawer<'a> {
    status: &'a Status,
    key: &'a KeyInfo,
    scope: Scope<'a>,
    verbose: bool,
    now: &'a Now,
}

impl Drawer<'_> {
    fn draw(&self, page: &mut Page) {
        page.title(sanitize(&self.key.key), summary(self.key), KEY);
        self.key.holders.iter().for_each(|holder| self.holder(page, holder));
        let waiters = &self.key.waiters;
        let room = if self.scope == Scope::Overview { WAITERS_IN_OVERVIEW } else { usize::MAX };
        let mut reason = None;
        for waiter in waiters.iter().take(room) {
            self.waiter(page, waiter, reason);
            reason = Some(waiter.reason.as_str()).filter(|_| !self.is_full());
        }
        if let Some(more @ 1..) = waiters.len().checked_sub(room) {
            let more = plural(more as u64, "more is waiting", "more are waiting");
            let all = format!("{more}; `canal status {}` shows all", sanitize(&self.key.key));
            page.note(all, NOTE);
        }
        self.others(page);
    }

    /// Adds how many holders or waiters are not shown.
    fn others(&self, page: &mut Page) {
        let others = self.key.waiting.saturating_sub(self.key.waiters.len() as u64);
        if others > 0 && self.key.left_out == 0 {
            page.note(plural(others, "more is waiting", "more are waiting"), NOTE);
        }
        if self.key.left_out > 0 {
            let more = plural(self.key.left_out, "holder or waiter is", "holders and waiters are");
            page.note(format!("{more} left out because there are too many"), NOTE);
        }
    }

    /// Whether to show every known detail.
    fn is_full(&self) -> bool {
        matches!(self.scope, Scope::Key(_))
    }

    fn holder_cells(&self, holder: &HolderInfo) -> [String; COLUMNS] {
        [
            "holds".to_owned(),
            number(holder.pid, holder.lease.is_some()),
            user_name::name(holder.uid),
            self.now.age(&holder.since),
            self.now.clock(&holder.since),
            match holder.mode {
                None | Some(Mode::Counted) => slots(&holder.slots),
                Some(mode) => taken(mode).to_owned(),
            },
            command(holder.command.as_ref(), holder.job),
        ]
    }

    fn waiter_cells(&self, waiter: &WaiterInfo) -> [String; COLUMNS] {
        [
            format!("#{}", waiter.position),
            number(waiter.pid, waiter.lease.is_some()),
            user_name::name(waiter.uid),
            self.now.age(&waiter.since),
            self.now.clock(&waiter.since),
            taken(waiter.mode).to_owned(),
            command(waiter.command.as_ref(), waiter.job),
        ]
    }

    fn holder(&self, page: &mut Page, holder: &HolderInfo) {
        let HolderInfo { pid, session, token, children, lease, .. } = holder;
        page.cells(self.holder_cells(holder), PLAIN);
        page.note(self.elsewhere(holder.host.as_deref()), NOTE);
        page.note(holder.state.as_deref().and_then(state).map(str::to_owned), WARNING);
        if self.is_full() {
            page.note(place(holder), NOTE);
            page.note(self.max_run(holder), NOTE);
        }
        let keepers = children.iter().flat_map(|it| &it.pids).filter(|it| *it != pid);
        let keepers = keepers.map(|pid| format!("pid {pid}")).join(", ");
        let kept = (!keepers.is_empty()).then(|| format!("kept by {keepers} (--with-children)"));
        page.note(kept, NOTE);
        page.note(lease.as_ref().map(|lease| lease_words(lease, self.verbose)), NOTE);
        page.note(holder.over_nodes.as_deref().map(over_nodes), NOTE);
        page.note(self.origin(session, holder.host.as_deref(), Some(*token)), NOTE);
        page.note(holder.note.as_deref().map(noted), NOTE);
    }

    /// `--max-run 10m00s, 6m48s left`.
    fn max_run(&self, holder: &HolderInfo) -> Option<String> {
        let most = holder.max_run_ms?;
        let left = self.now.left(&holder.since, Duration::from_millis(most))?;
        Some(format!("--max-run {}{left}", stated_ms(most)))
    }

    /// The host of a process whose pid has no meaning on the host that answers.
    fn elsewhere(&self, host: Option<&str>) -> Option<String> {
        let here = &self.status.engine.as_ref()?.host;
        let host = host.filter(|host| host != here && !self.verbose)?;
        Some(format!("on host {}", sanitize(host)))
    }

    /// The session, and the token of a holder, with `-v`.
    fn origin(&self, session: &str, host: Option<&str>, token: Option<u64>) -> Option<String> {
        let token = token.map(|token| format!("token {token}, ")).unwrap_or_default();
        let host = clause(", host ", host);
        self.verbose.then(|| format!("{token}session {}{host}", sanitize(session)))
    }

    /// `before` is the reason of the previous waiter, because an identical reason is not repeated.
    fn waiter(&self, page: &mut Page, waiter: &WaiterInfo, before: Option<&str>) {
        page.cells(self.waiter_cells(waiter), PLAIN);
        page.note(self.elsewhere(waiter.host.as_deref()), NOTE);
        let details = details(waiter);
        if before != Some(waiter.reason.as_str()) || !details.is_empty() {
            page.note(format!("waiting: {}{details}", sanitize(&waiter.reason)), WARNING);
        }
        page.note(self.origin(&waiter.session, waiter.host.as_deref(), None), NOTE);
        page.note(waiter.over_nodes.as_deref().map(over_nodes), NOTE);
        page.note(waiter.note.as_deref().map(noted), NOTE);
    }
}

fn noted(note: &str) -> String {
    format!("note: {}", sanitize(note))
}

/// `buckets 3x2, 2 of 6 held, 1 waiting, stored`; `3 reading, 1 waiting`.
pub(crate) fn summary(key: &KeyInfo) -> String {
    let KeyInfo { kind, held, capacity, view, stored, paused, waiting, .. } = key;
    let holders = |mode| key.holders.iter().filter(|one| one.mode == Some(mode)).count() as u64;
    let (reading, writing) = (holders(Mode::Read), holders(Mode::Write));
    let awaited = key.waiters.iter().any(|one| one.mode != Mode::Counted);
    let uncounted = *held == 0 && (reading > 0 || writing > 0 || awaited);
    let count = |n: u64, word: &str| (n > 0).then(|| format!("{n} {word}"));
    let parts = [
        match (kind, view) {
            (Some(Kind::Buckets), Some(view)) => Some(format!("buckets {view}")),
            (Some(kind), _) => Some(kind.to_string()),
            (None, _) => (!uncounted).then(|| "unused".to_owned()),
        },
        match capacity {
            _ if uncounted => None,
            Some(capacity) => Some(format!("{held} of {capacity} held")),
            None => Some(format!("{held} held")),
        },
        count(reading, "reading"),
        count(writing, "writing"),
        count(*waiting, "waiting"),
        stored.then(|| "stored".to_owned()),
        paused.then(|| "paused".to_owned()),
        out_of_service(key).map(|numbers| format!("out of service: {numbers}")),
    ];
    parts.into_iter().flatten().join(", ")
}

/// `2 5`: the slots or buckets that are out of service.
pub(crate) fn out_of_service(key: &KeyInfo) -> Option<String> {
    (!key.without.is_empty()).then(|| key.without.iter().join(" "))
}

/// The text in the column of the slots if the request takes no slots.
fn taken(mode: Mode) -> &'static str {
    by_mode(mode, ["", "read", "write"])
}

fn details(waiter: &WaiterInfo) -> String {
    let WaiterInfo { mode, count, view, priority, .. } = waiter;
    let slots = (*mode == Mode::Counted && *count != 1).then(|| plural(*count, "slot", "slots"));
    // The daemon only sends a view that the waiter itself passed.
    let size = view.as_deref().map(sanitize).map(|view| match view.split_once('x') {
        Some((per, buckets)) => format!("requested with --per {per} --buckets {buckets}"),
        None => format!("requested with -j {view}"),
    });
    let parts = [
        slots.map(|slots| format!("asks for {slots}")),
        size,
        waiter.estimate.as_ref().map(|of| estimate(of, Duration::ZERO)),
        (*priority != 0).then(|| format!("priority {priority}")),
    ];
    parts.iter().flatten().map(|part| format!("; {part}")).collect()
}

fn state(state: &str) -> Option<&'static str> {
    Some(match state {
        "stopped" => "is stopped (SIGSTOP, Ctrl-Z or a debugger)",
        "frozen" => "is frozen (by its cgroup)",
        "children" => "has ended, but processes that it started keep the lock (--with-children)",
        "unverified" => "the daemon could not identify it after a restart",
        _ => return None,
    })
}

/// `a lease of 1m00s, 42s left`.
fn lease_words(lease: &LeaseInfo, verbose: bool) -> String {
    let renewed = match lease.renewals {
        _ if !verbose => String::new(),
        0 => ", never renewed".to_owned(),
        n => format!(", renewed {}", plural(n, "time", "times")),
    };
    format!("a lease of {}{}{renewed}", stated_ms(lease.ttl_ms), left(Some(lease)))
}

/// `bucket 1, in /srv/app`.
fn place(holder: &HolderInfo) -> Option<String> {
    let bucket = holder.bucket.map(|bucket| format!("bucket {bucket}"));
    let folder = holder.folder.as_ref().map(|folder| format!("in {}", sanitize(folder)));
    Some(bucket.into_iter().chain(folder).join(", ")).filter(|parts| !parts.is_empty())
}

fn number(pid: u32, lease: bool) -> String {
    match (pid, lease) {
        (_, true) => "lease".to_owned(),
        // A process of another pid namespace has no pid here.
        (0, false) => "-".to_owned(),
        (pid, false) => pid.to_string(),
    }
}

/// `./train.sh`, `%17 ./train.sh` for a background job.
fn command(command: Option<&String>, job: Option<u64>) -> String {
    let Some(command) = command else { return "(hidden)".to_owned() };
    job.map(|job| format!("%{job} ")).unwrap_or_default() + &command_line(command)
}

#[cfg(test)]
mod tests;
