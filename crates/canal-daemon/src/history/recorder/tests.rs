use super::*;
use canal_core::{ENTRY_VERSION, Entry, Request, UnixMillis};
use canal_history::{Limits, Query};

/// A table and its recorder. Each entry comes one second after the previous one.
struct Scene {
    table: Table,
    history: History,
}

const HERE: HostId = HostId(0);

impl Scene {
    fn new() -> Self {
        let limits = Limits { keep_ms: 1, max_bytes: 1 };
        let files = Files { dir: "/nowhere".into(), limits, boot_id: String::new() };
        Self { table: Table::default(), history: History::new(Some(files), None) }
    }

    /// The same, with files in a directory.
    fn in_dir(dir: &std::path::Path) -> Self {
        let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
        let files = Files { dir: dir.to_owned(), limits, boot_id: "this boot".to_owned() };
        Self { history: History::new(Some(files), None), ..Self::new() }
    }

    fn apply(&mut self, change: Change) -> Applied {
        let revision = Revision(self.table.revision().0 + 1);
        let at = UnixMillis(revision.0 * 1000);
        let entry = Entry { version: ENTRY_VERSION, at, change };
        let mut outcomes = Vec::new();
        self.table.apply(revision, &entry, &mut outcomes);
        let applied = Applied { revision, outcomes };
        self.history.take_in(&entry.change, None, &applied, &self.table, HERE);
        applied
    }

    /// A process requests a key.
    fn ask(&mut self, pid: u32, key: &str, waits: bool) -> RequestId {
        let wait = if waits { r#"{"yes":{}}"# } else { r#""no""# };
        let text = format!(
            r#"{{"tag":"{pid:032x}","owner":{{"process":{{"pid":{pid},"started":2}}}},"uid":7,
            "command":"x","items":[{{"key":"{key}","ask":{{"counted":{{"count":1}}}}}}],
            "wait":{wait}}}"#
        );
        let request: Request = serde_json::from_str(&text).unwrap();
        let applied = self.apply(Change::Request(Arc::new(request)));
        RequestId(applied.revision.0)
    }

    fn frame(&self, pid: u32) -> FrameId {
        let is_it = |owner: &Owner| pid_of(owner) == pid;
        self.table.frames().find(|frame| is_it(&frame.owner)).unwrap().id
    }

    /// The process and ending of each record, and whether it held something.
    fn ended(&self) -> Vec<(u32, Ending, bool)> {
        let ended = self.history.ended.iter();
        let told =
            |it: &EndedRequest| (pid_of(&it.open.asked.owner), it.ending.clone(), it.held_ms());
        ended.map(told).map(|(pid, ending, held)| (pid, ending, held.is_some())).collect()
    }

    fn open(&self) -> usize {
        self.history.open.len()
    }
}

#[test]
fn what_waits_and_holds_is_followed_to_its_end() {
    let mut scene = Scene::new();
    scene.ask(1, "a", true);
    scene.ask(2, "a", true);
    let third = scene.ask(3, "a", true);
    assert_eq!((scene.open(), scene.ended()), (3, Vec::new()));
    let frame = scene.frame(1);
    scene.apply(Change::End { frame });
    assert_eq!(scene.ended(), [(1, Ending::Ended, true)]);
    let token = scene.table.holds().next().unwrap().token;
    scene.apply(Change::Release(Release::Hold { token, forced: true }));
    assert_eq!(scene.ended()[1], (2, Ending::Forced { by: None }, true));
    // With an engine, a withdrawal does not show that the time had expired.
    let fourth = scene.ask(4, "a", true);
    scene.history.expect_end(fourth, Cause::TimedOut);
    scene.apply(Change::Withdraw { request: fourth });
    assert_eq!(scene.ended()[2], (4, Ending::Timeout, false));
    scene.apply(Change::Release(Release::All { frame: scene.frame(3) }));
    assert_eq!(scene.ended()[3], (3, Ending::Released, true));
    scene.apply(Change::Withdraw { request: third });
    assert_eq!((scene.open(), scene.ended().len()), (0, 4));
}

#[test]
fn an_expected_end_has_its_cause_if_it_comes_as_expected() {
    let (by, signal) = (HistoryClient { uid: 7, pid: 77 }, 15);
    let killed = Cause::Killed { signal, by };
    let mut scene = Scene::new();
    let first = scene.ask(1, "a", true);
    let waiting = [2, 3, 4, 5].map(|pid| scene.ask(pid, "a", true));
    scene.history.expect_end(first, Cause::Overrun);
    waiting[..3].iter().for_each(|request| scene.history.expect_end(*request, killed));
    // The daemon may first notice the end of the connection or that of the process.
    scene.apply(Change::Withdraw { request: waiting[1] });
    scene.apply(Change::End { frame: scene.frame(4) });
    let gone = Ending::KilledWaiting { signal, by };
    assert_eq!(scene.ended(), [(3, gone.clone(), false), (4, gone, false)]);
    scene.apply(Change::End { frame: scene.frame(1) });
    assert_eq!(scene.ended()[2], (1, OVERRUN, true));
    // It was granted first, so the history needs its exit status.
    scene.apply(Change::End { frame: scene.frame(2) });
    assert_eq!(scene.ended()[3], (2, Ending::Ended, true));
    // A supervisor may report an end that another one forestalls.
    scene.history.expect_end(waiting[3], Cause::Overrun);
    scene.apply(Change::Release(Release::All { frame: scene.frame(5) }));
    assert_eq!(scene.ended()[4], (5, Ending::Released, true));
    assert_eq!((scene.open(), scene.history.causes.len()), (0, 0));
}

#[test]
fn grants_and_ends_are_counted_whether_they_are_written_or_not() {
    let mut scene = Scene::new();
    scene.history = History::new(None, None);
    scene.ask(1, "a", true);
    scene.ask(2, "a", true);
    scene.ask(3, "a", false);
    scene.history.take_back(Tag(3));
    scene.ask(4, "a", false);
    scene.apply(Change::End { frame: scene.frame(1) });
    let counters = scene.history.counters();
    let a = &counters.keys[&canal_core::Key::new("a").unwrap()];
    assert_eq!((a.grants, a.waits.sum_us), (2, 3_000_000));
    assert_eq!(a.refusals[0], 1, "one of the two was asked again");
    assert_eq!(a.holds.counts.iter().sum::<u64>(), 1);
    assert_eq!(scene.ended(), [], "nothing waits to be written");
}

#[test]
fn a_refusal_is_recorded_unless_the_request_is_asked_again() {
    let mut scene = Scene::new();
    scene.ask(1, "a", true);
    let full = Ending::Full;
    scene.ask(2, "a", false);
    scene.ask(3, "a", false);
    assert_eq!(scene.ended(), [(2, full.clone(), false), (3, full.clone(), false)]);
    scene.history.take_back(Tag(2));
    scene.history.take_back(Tag(9));
    assert_eq!(scene.ended(), [(3, full, false)]);
}

#[test]
fn hooks_are_told_of_some_ends_also_where_nothing_is_kept() {
    let mut scene = Scene::new();
    scene.ask(1, "a", true);
    scene.history = History::default();
    scene.history.follow(&scene.table, HERE);
    scene.history.tell_hooks(true);
    assert!(scene.history.kept_ms().is_none());
    scene.ask(2, "a", false);
    let token = scene.table.holds().next().unwrap().token;
    scene.apply(Change::Release(Release::Hold { token, forced: true }));
    scene.ask(3, "a", true);
    scene.apply(Change::End { frame: scene.frame(3) });
    scene.ask(4, "a", true);
    scene.history.follow(&Table::default(), HERE);
    let told: Vec<_> = scene.history.take_notable().iter().map(|it| On::of(&it.ending)).collect();
    assert_eq!(told, [Some(On::ForcedRelease), Some(On::LostLease)]);
    assert!(scene.history.take_notable().is_empty());
    assert_eq!(scene.ended().len(), 4);
    scene.history.hand_over();
    assert_eq!(scene.ended().len(), 0);
    scene.history.tell_hooks(false);
    scene.ask(5, "a", true);
    scene.apply(Change::End { frame: scene.frame(5) });
    assert_eq!(scene.ended().len(), 1, "what ends is still counted");
    assert!(scene.history.take_notable().is_empty());
}

#[test]
fn what_is_not_in_the_table_that_comes_next_was_lost() {
    let mut scene = Scene::new();
    scene.ask(1, "a", true);
    scene.ask(2, "a", true);
    scene.ask(3, "b", true);
    let mut other = Scene::new();
    other.ask(3, "b", true);
    scene.history.follow(&other.table, HERE);
    // The waiter is requested again, and 3 is another request there, which has number 1.
    assert_eq!(scene.ended(), [(3, Ending::Lost, true)]);
    assert_eq!(scene.open(), 1);
    scene.history.follow(&Table::default(), HERE);
    assert_eq!(scene.ended().len(), 2);
    assert_eq!(scene.open(), 0);
}

#[test]
fn a_daemon_in_which_nothing_happens_notes_what_is_open_less_and_less_often() {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = Scene::in_dir(dir.path());
    let mut now = Instant::now();
    scene.history.note_open(now);
    assert_eq!(scene.history.note_due, None);
    scene.ask(1, "a", true);
    scene.history.note_open(now);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let due = scene.history.note_due.unwrap();
        pauses.push((due - now).as_secs());
        now = due;
        scene.history.note_open(now);
    }
    assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]);
    scene.ask(2, "b", true);
    scene.history.note_open(now);
    assert_eq!(scene.history.note_due, Some(now + NOTED_WITHIN));
    for which in [1, 2] {
        scene.apply(Change::End { frame: scene.frame(which) });
    }
    // The recorder also notes that nothing is open any longer.
    now += NOTED_WITHIN;
    scene.history.note_open(now);
    scene.history.note_open(now);
    assert_eq!(scene.history.note_due, None);
    scene.history.close();
}

#[test]
fn what_was_left_over_an_engine_is_lost_if_the_table_has_it_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = Scene::in_dir(dir.path());
    scene.ask(1, "a", true);
    scene.ask(2, "b", true);
    scene.ask(3, "b", true);
    scene.history.close();
    let table = scene.table.clone();
    // The next daemon of this boot follows.
    let mut next = Scene::in_dir(dir.path());
    next.history.take_in_unseen(&Unseen::default(), true);
    next.history.note_open(Instant::now());
    assert_eq!(next.history.note_due, None, "what was left is not overwritten");
    next.table = table;
    next.apply(Change::End { frame: scene.frame(1) });
    next.history.follow(&next.table, HERE);
    let ended = next.frame(2);
    next.history.ends_unseen(ended);
    next.history.take_in_left(&next.table, &Ending::Lost);
    next.history.ends_unseen(next.frame(3));
    next.apply(Change::End { frame: ended });
    next.apply(Change::End { frame: next.frame(3) });
    let unseen = |it: &EndedRequest| (pid_of(&it.open.asked.owner), it.at_least);
    let ended: Vec<_> = next.history.ended.iter().map(unseen).collect();
    assert_eq!(ended, [(2, true), (3, false)]);
    next.history.close();
    let limits = Limits { keep_ms: u64::MAX, max_bytes: 1 << 20 };
    let (store, _) = canal_history::Store::open(dir.path(), limits).unwrap();
    let all = Query { limit: 9, ..Default::default() };
    let mut search = canal_history::Search::new(all);
    while !search.step(&store) {}
    let found = search.found.records.iter().rev();
    let found: Vec<_> = found.map(|it| (it.pid, it.how.as_str(), it.at_least)).collect();
    let expected = [(1, "lost", true), (2, "ended", true), (3, "ended", false)];
    assert_eq!(found, expected);
    assert!(Checkpoint::read(dir.path()).is_none(), "nothing is open");
}

#[test]
fn what_other_hosts_do_is_not_recorded() {
    let mut scene = Scene::new();
    scene.ask(1, "a", true);
    let elsewhere = History::new(None, Some("beta"));
    let mut other = Scene { table: scene.table.clone(), history: elsewhere };
    other.history.follow(&scene.table, HostId(9));
    assert_eq!(other.open(), 0);
}
