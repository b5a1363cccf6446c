//! The hooks of the configuration in force, and the events sent to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::config::hooks::{HookSettings, On};
use crate::history::followed_requests::EndedRequest;
use crate::history::recorder::is_of;
use crate::hooks::event::{About, Event};
use crate::hooks::event_thread::EventThread;
use canal_core::{HostId, Request, Table, Tag, UnixMillis};
use canal_sys::clock;
use canal_text::duration::milliseconds;

/// The minimum time between two searches of the table for long waits and holds.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// An additional delay of each search, so that it comes after the millisecond in which a wait
/// becomes long.
const MARGIN: Duration = Duration::from_millis(5);

/// How long an ending daemon waits for the guards, which end the programs.
const FAREWELL: Duration = Duration::from_secs(2);

/// The file whose modification time is the time up to which hooks know of long waits and holds. If
/// that is unknown, the next daemon reports everything.
const TOLD_UNTIL: &str = "hooks";

/// The hooks of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    /// `None` if this daemon runs no hooks.
    by: Option<By>,
    each: Vec<Hook>,
    /// The hooks that a reload removed, until their threads have ended.
    retired: Vec<EventThread>,
    /// When to search the table.
    pub due: Option<Instant>,
    /// Whether anything has changed since the next search was scheduled.
    pub stirred: bool,
}

/// The means to run the programs.
#[derive(Debug)]
struct By {
    /// The program of the guards: canal.
    program: PathBuf,
    about: Arc<About>,
    told_until: PathBuf,
    /// Up to this time, in milliseconds since 1970 UTC, a previous daemon reported long waits and
    /// holds to the first hooks of this daemon.
    told_before_ms: u64,
}

#[derive(Debug)]
struct Hook {
    settings: Arc<HookSettings>,
    thread: EventThread,
    /// The requests whose long wait or hold this hook already knows.
    told: BTreeSet<(On, Tag)>,
    /// A previous daemon reported all waits and holds that became long up to this time, in
    /// milliseconds since 1970 UTC.
    told_before_ms: u64,
}

/// A wait or a hold of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lasting<'a> {
    pub on: On,
    pub asked: &'a Request,
    /// When the wait or the hold began.
    pub since: UnixMillis,
}

impl Hooks {
    /// The hooks of a daemon with its files in `dir`. `program` is canal, which guards their
    /// programs. A previous daemon has already reported earlier long waits and holds.
    pub(crate) fn new(program: PathBuf, dir: &Path, about: About, wanted: &[HookSettings]) -> Self {
        let told_until = dir.join(TOLD_UNTIL);
        let time = std::fs::metadata(&told_until).and_then(|found| found.modified()).ok();
        let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let told_before_ms = since.map_or(0, milliseconds);
        let by = By { program, about: Arc::new(about), told_until, told_before_ms };
        let mut hooks = Self { by: Some(by), ..Self::default() };
        hooks.follow(wanted);
        hooks
    }

    /// Takes over the hooks of a configuration. Unchanged hooks continue.
    pub(crate) fn follow(&mut self, wanted: &[HookSettings]) {
        let Some(by) = &mut self.by else { return };
        let told_before_ms = std::mem::take(&mut by.told_before_ms);
        let mut before = std::mem::take(&mut self.each);
        for settings in wanted {
            let at = before.iter().position(|hook| *hook.settings == *settings);
            let hook = at.map(|at| before.remove(at)).unwrap_or_else(|| {
                let settings = Arc::new(settings.clone());
                let about = Arc::clone(&by.about);
                let thread = EventThread::start(by.program.clone(), Arc::clone(&settings), about);
                Hook { settings, thread, told: BTreeSet::new(), told_before_ms }
            });
            self.each.push(hook);
        }
        for hook in before {
            hook.thread.retire();
            self.retired.push(hook.thread);
        }
        self.retired.retain(|thread| !thread.has_ended());
        // A new hook immediately receives the waits and holds that are already long.
        self.due = None;
        self.look_soon();
    }

    /// Schedules a search, because the table was replaced.
    pub(crate) fn look_soon(&mut self) {
        if self.least_after().is_some() {
            self.due = Some(clock::now());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Whether the end of a request can start one of the hooks.
    pub(crate) fn are_told_of_ends(&self) -> bool {
        self.each.iter().any(|hook| hook.settings.is_told_of_ends())
    }

    /// Reports the end of a request.
    pub(crate) fn tell_end(&self, ended: &EndedRequest) {
        let Some(on) = On::of(&ended.ending) else { return };
        for hook in self.each.iter().filter(|hook| hook.settings.is_for(on, &ended.open.asked)) {
            hook.thread.push(ended.by_uid(), || Some(Event::of(on, ended.clone())));
        }
    }

    /// Reports the waits and holds that have become long by `now_ms`, each once. `write_out` makes
    /// the event. Returns when the next one becomes long.
    pub(crate) fn tell_lasting<'a>(
        &mut self,
        table: &Table,
        lasting: &[Lasting<'a>],
        now_ms: u64,
        write_out: impl Fn(Lasting<'a>) -> Option<Event>,
    ) -> Option<u64> {
        let (mut next, mut has_told) = (None, false);
        for hook in &mut self.each {
            let Some(after_ms) = hook.settings.after().map(milliseconds) else { continue };
            hook.told.retain(|(_, tag)| table.tagged(*tag).is_some());
            for one in lasting.iter().copied() {
                let name = (one.on, one.asked.tag);
                if !hook.settings.is_for(one.on, one.asked) || hook.told.contains(&name) {
                    continue;
                }
                let long_at = one.since.0.saturating_add(after_ms);
                if long_at > now_ms {
                    next = Some(next.map_or(long_at, |next: u64| next.min(long_at)));
                    continue;
                }
                hook.told.insert(name);
                if long_at <= hook.told_before_ms {
                    continue;
                }
                has_told = true;
                hook.thread.push(one.asked.uid, || write_out(one));
            }
        }
        if has_told && let Some(by) = &self.by {
            let time = UNIX_EPOCH + Duration::from_millis(now_ms);
            let file = File::options().create(true).append(true).open(&by.told_until);
            if let Err(error) = file.and_then(|file| file.set_modified(time)) {
                let path = by.told_until.display();
                tracing::warn!("{path}: {error}; the next daemon will run its hooks again");
            }
        }
        next
    }

    /// Schedules the next search for the time when something becomes long, `next_ms`.
    pub(crate) fn look_at(&mut self, next_ms: u64, now_ms: u64, now: Instant) {
        let left = Duration::from_millis(next_ms.saturating_sub(now_ms)) + MARGIN;
        self.due = Some(now + left.max(LOOK_PAUSE));
    }

    /// Schedules a search if something has changed and none is scheduled. Nothing that begins now
    /// can become long earlier than that.
    pub(crate) fn look_ahead(&mut self, lasts: bool, now: Instant) {
        if std::mem::take(&mut self.stirred)
            && self.due.is_none()
            && lasts
            && let Some(after) = self.least_after()
        {
            self.due = Some(now + after + MARGIN);
        }
    }

    fn least_after(&self) -> Option<Duration> {
        self.each.iter().filter_map(|hook| hook.settings.after()).min()
    }

    /// Whether a program runs, or an event waits.
    pub(crate) fn are_busy(&self) -> bool {
        self.each.iter().map(|hook| &hook.thread).chain(&self.retired).any(EventThread::is_busy)
    }

    /// Notes for operators.
    pub(crate) fn notes(&self) -> Vec<String> {
        let each = self.each.iter().enumerate();
        let notes = each.filter_map(|(number, hook)| {
            let program = hook.settings.program();
            Some(format!("its hooks[{number}], {program}, {}", hook.thread.note()?))
        });
        notes.collect()
    }

    /// Ends the running programs. Called when the daemon ends.
    pub(crate) fn close(&mut self) {
        let threads = self.each.drain(..).map(|hook| hook.thread);
        let mut threads: Vec<EventThread> = threads.chain(self.retired.drain(..)).collect();
        threads.iter().for_each(EventThread::end);
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            threads.retain(|thread| !thread.has_ended());
            if threads.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A slow guard still ends its program.
    }
}

/// The waits and holds of this host.
pub(crate) fn lasting(table: &Table, here: HostId) -> Vec<Lasting<'_>> {
    let waiters = table.waiters().filter(|waiter| is_of(table, waiter.frame, here));
    let waits = waiters.map(|it| Lasting { on: On::LongWait, asked: &it.request, since: it.since });
    let holds = table.holds().filter(|hold| is_of(table, hold.frame, here));
    let holds = holds.map(|it| Lasting { on: On::LongHold, asked: &it.asked, since: it.since });
    waits.chain(holds).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::config::hooks::tests::hooks;
    use canal_core::{Change, ENTRY_VERSION, Entry, Revision};

    const HERE: HostId = HostId(0);

    /// A table with requests for one key that came at these times. The first one holds it.
    fn table(times: &[u64]) -> Table {
        let mut table = Table::default();
        for (number, at) in times.iter().enumerate() {
            let pid = number + 1;
            let text = format!(
                r#"{{"tag":"{pid:032x}","owner":{{"process":{{"pid":{pid},"started":2}}}},"uid":7,
                "command":"x","items":[{{"key":"a","ask":{{"counted":{{"count":1}}}}}}],
                "wait":{{"yes":{{}}}}}}"#
            );
            let request: Request = serde_json::from_str(&text).unwrap();
            let change = Change::Request(Arc::new(request));
            let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(*at), change };
            let revision = Revision(table.revision().0 + 1);
            table.apply(revision, &entry, &mut Vec::new());
        }
        table
    }

    /// The hooks of a daemon that has just started.
    fn started(dir: &Path) -> Hooks {
        // This program is not a guard, but the test runs no hook.
        Hooks::new("/bin/false".into(), dir, About::default(), &wanted("10s"))
    }

    fn wanted(after: &str) -> Vec<HookSettings> {
        let on = "on = [\"long-wait\", \"long-hold\"]\nrun = [\"/x\"]";
        hooks(&format!("[[hooks]]\n{on}\nafter = \"{after}\"\n")).unwrap()
    }

    /// The reports at a time, each with its start, and when the next report is due.
    fn told(hooks: &mut Hooks, table: &Table, now_ms: u64) -> (Vec<(On, u64)>, Option<u64>) {
        let told = RefCell::new(Vec::new());
        let next = hooks.tell_lasting(table, &lasting(table, HERE), now_ms, |one| {
            told.borrow_mut().push((one.on, one.since.0));
            None
        });
        (told.into_inner(), next)
    }

    #[test]
    fn what_becomes_long_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut hooks, table) = (started(dir.path()), table(&[0, 5_000]));
        assert_eq!(told(&mut hooks, &table, 9_999), (vec![], Some(10_000)));
        assert_eq!(told(&mut hooks, &table, 10_000), (vec![(On::LongHold, 0)], Some(15_000)));
        assert_eq!(told(&mut hooks, &table, 15_000), (vec![(On::LongWait, 5_000)], None));
        assert_eq!(told(&mut hooks, &table, 99_000), (vec![], None));
        // The clock may be set back.
        assert_eq!(told(&mut hooks, &table, 1), (vec![], None));
        hooks.close();
    }

    #[test]
    fn the_next_daemon_tells_what_the_one_before_it_did_not() {
        let dir = tempfile::tempdir().unwrap();
        let (mut hooks, table) = (started(dir.path()), table(&[0, 5_000]));
        assert_eq!(told(&mut hooks, &table, 12_000).0, [(On::LongHold, 0)]);
        hooks.close();
        let mut hooks = started(dir.path());
        assert_eq!(told(&mut hooks, &table, 99_000), (vec![(On::LongWait, 5_000)], None));
        // When a daemon already runs, no earlier daemon has reported anything to a new hook.
        hooks.follow(&wanted("11s"));
        assert_eq!(told(&mut hooks, &table, 99_000).0.len(), 2);
        hooks.close();
    }

    #[test]
    fn a_hook_that_stays_keeps_what_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        let (mut hooks, table) = (started(dir.path()), table(&[0]));
        assert_eq!(told(&mut hooks, &table, 12_000).0.len(), 1);
        hooks.follow(&[wanted("20s"), wanted("10s")].concat());
        assert_eq!(told(&mut hooks, &table, 15_000), (vec![], Some(20_000)));
        hooks.follow(&[]);
        assert!(hooks.is_empty() && hooks.due.is_none());
        assert_eq!(told(&mut hooks, &table, 99_000), (vec![], None));
        hooks.close();
    }

    #[test]
    fn a_look_is_scheduled_only_while_something_lasts_that_was_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut hooks = started(dir.path());
        let now = Instant::now();
        assert!(hooks.due.take().is_some_and(|due| due <= now), "a daemon looks when it starts");
        hooks.look_ahead(true, now);
        assert_eq!(hooks.due, None, "nothing changed");
        hooks.stirred = true;
        hooks.look_ahead(false, now);
        assert_eq!(hooks.due, None, "nothing waits or holds");
        hooks.stirred = true;
        hooks.look_ahead(true, now);
        assert_eq!(hooks.due, Some(now + Duration::from_secs(10) + MARGIN));
        hooks.look_at(1_001, 1_000, now);
        assert_eq!(hooks.due, Some(now + LOOK_PAUSE));
        hooks.close();
    }
}
