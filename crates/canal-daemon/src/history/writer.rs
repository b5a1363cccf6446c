//! The thread of the history: writes records in batches, and searches.
//!
//! Only this thread touches the files. It has the lowest priority, so that it takes no processor
//! time from a busy daemon and its clients.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::history::queue::{About, Answer, Noted, Question, Queue};
use crate::history::raw::Raw;
use canal_history::{
    Batch, Checkpoint, Found, Limits, Query, Search, Store, Summary, Tally, unrecorded,
};
use canal_sys::clock;

/// How long to wait before using the files again after a failure. Records that arrive in between
/// are dropped.
const RETRY: Duration = Duration::from_secs(10);

/// The nice value of the thread.
const LOWEST_PRIORITY: i32 = 19;

/// The stack size of the thread.
const STACK_BYTES: usize = 256 * 1024;

/// The directory of the files, and their limits.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub dir: PathBuf,
    pub limits: Limits,
    /// The boot of the machine.
    pub boot_id: String,
}

/// Starts the thread.
pub(crate) fn start(queue: Arc<Queue>, files: Files) -> io::Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("history".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        // This applies to this thread only.
        let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
        let summary = Summary::default();
        Writer { queue, files, store: None, failed: None, late: Vec::new(), summary }.work();
    })
}

/// The search in progress.
enum UnderWay {
    Search(Search),
    Tally(Box<Tally>),
}

impl UnderWay {
    /// Searches the next file. Returns whether the search is complete.
    fn step(&mut self, store: &Store) -> bool {
        match self {
            Self::Search(search) => search.step(store),
            Self::Tally(tally) => tally.step(store),
        }
    }
}

struct Writer {
    queue: Arc<Queue>,
    files: Files,
    /// `None` before it is first needed, and after a failure.
    store: Option<Store>,
    /// When an operation on the files last failed.
    failed: Option<Instant>,
    /// Requests that wait for an exit status, at most once.
    late: Vec<Raw>,
    /// How long keys were held recently.
    summary: Summary,
}

impl Writer {
    fn work(mut self) {
        let mut asked: VecDeque<(ConnId, Question)> = VecDeque::new();
        let mut search: Option<(ConnId, UnderWay)> = None;
        let mut batch = Batch::default();
        self.open();
        self.summary = self.store.as_ref().map(Summary::of).unwrap_or_default();
        self.queue.publish(&self.summary);
        loop {
            let is_busy = search.is_some() || !asked.is_empty();
            let taken = self.queue.take(is_busy, !self.late.is_empty(), &mut batch);
            asked.extend(taken.searches);
            self.recall(&taken.recalled);
            self.add_exits(taken.with_exit, taken.closing || is_busy, &mut batch);
            self.append(&batch);
            batch.clear();
            if let Some(noted) = taken.noted {
                self.note_open(noted);
            }
            if taken.closing {
                return;
            }
            if search.is_none() {
                search = asked.pop_front().map(|(id, question)| (id, self.begin(question)));
            }
            if let Some((id, mut under_way)) = search.take() {
                let is_over = match &self.store {
                    Some(store) => under_way.step(store),
                    None => true,
                };
                if is_over {
                    let answer = match under_way {
                        UnderWay::Search(search) => {
                            self.note_damage(&search.found);
                            Answer::Records(search.found)
                        }
                        UnderWay::Tally(tally) => Answer::Counts(Box::new(tally.counts)),
                    };
                    self.queue.answer(id, answer);
                } else {
                    search = Some((id, under_way));
                }
            }
        }
    }

    fn begin(&mut self, question: Question) -> UnderWay {
        self.open();
        let oldest = clock::unix_ms().saturating_sub(self.files.limits.keep_ms);
        let kept = |query: Query| Query { since_ms: query.since_ms.max(oldest), ..query };
        match question {
            Question::Records(query) => UnderWay::Search(Search::new(kept(query))),
            Question::Counts { query, viewer, present } => {
                UnderWay::Tally(Box::new(Tally::new(kept(query), viewer, present)))
            }
        }
    }

    /// Adds the requests that ended with a process. Those without an exit status from the kernel
    /// are left for the next call, which comes soon. With `now`, none is left.
    fn add_exits(&mut self, with_exit: Vec<Raw>, now: bool, batch: &mut Batch) {
        let late = std::mem::take(&mut self.late).into_iter().map(|raw| (raw, true));
        for (raw, now) in late.chain(with_exit.into_iter().map(|raw| (raw, now))) {
            match raw.exit.as_ref().and_then(|exit| exit.ending()) {
                Some(ending) => batch.push(&Raw { ending, ..raw }.fields()),
                None if now => batch.push(&raw.fields()),
                None => self.late.push(raw),
            }
        }
    }

    /// Writes those records of requests that ended before this daemon started that are not in the
    /// files yet.
    fn recall(&mut self, records: &Batch) {
        if records.is_empty() {
            return;
        }
        self.open();
        match &self.store {
            Some(store) => self.append(&unrecorded(store, records)),
            None => self.queue.count_dropped(records.records()),
        }
    }

    /// Notes the open requests, or that they are still open.
    fn note_open(&mut self, noted: Noted) {
        self.open();
        if self.store.is_none() {
            return;
        }
        let (dir, known_ms) = (&self.files.dir, noted.at_ms);
        let written = match noted.open {
            None => Checkpoint::confirm(dir, known_ms),
            Some(open) => {
                let boot_id = self.files.boot_id.clone();
                let records = open.iter().map(Raw::fields).collect();
                Checkpoint { boot_id, known_ms, records }.write(dir)
            }
        };
        if let Err(error) = written {
            let dir = dir.display();
            tracing::debug!("cannot record open requests in {dir}: {error}");
        }
    }

    fn append(&mut self, batch: &Batch) {
        if batch.is_empty() {
            return;
        }
        self.summary.add_batch(batch);
        self.queue.publish(&self.summary);
        self.open();
        let Some(store) = &mut self.store else { return self.queue.count_dropped(batch.records()) };
        match store.append(batch, clock::unix_ms()) {
            Ok(()) => self.queue.set_bytes(store.bytes()),
            Err(error) => {
                self.store = None;
                self.queue.count_dropped(batch.records());
                self.fail(&error);
            }
        }
    }

    /// Opens the files if they are not open and have not just failed.
    fn open(&mut self) {
        if self.store.is_some() || self.failed.is_some_and(|at| at.elapsed() < RETRY) {
            return;
        }
        match Store::open(&self.files.dir, self.files.limits) {
            Ok((store, aside)) => {
                if let Some(aside) = aside {
                    tracing::warn!("moved a history file aside: {aside}");
                    let note = format!("it moved one of its history files aside: {aside}");
                    self.queue.note(About::Aside, Some(note));
                }
                if self.failed.take().is_some() {
                    tracing::info!("writing the history again");
                }
                self.queue.note(About::Writing, None);
                self.queue.set_bytes(store.bytes());
                self.store = Some(store);
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        let dir = self.files.dir.display();
        if self.failed.is_none() {
            tracing::warn!("cannot write the history in {dir}: {error}");
        }
        self.failed = Some(Instant::now());
        let note = format!("it cannot write its history in {dir}: {error}");
        self.queue.note(About::Writing, Some(note));
    }

    fn note_damage(&self, found: &Found) {
        if let Some(first) = found.damaged {
            let path = self.files.dir.join(format!("{first:016x}"));
            let note = format!("one of its history files is damaged: {}", path.display());
            self.queue.note(About::Aside, Some(note));
        }
    }
}
