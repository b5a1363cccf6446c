//! Brings the daemon's reports, and its answers to the user's questions, to the screen.
//!
//! The reports come over one connection for the whole life of the command. The first question opens
//! a second one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::ask::{Answer, Ask};
use crate::cli::commands::status::completed;
use crate::cli::{Failed, Result, Target, Verbosity};
use crate::client::{Client, Watch, Watched};
use crate::protocol::{Status, StatusQuery};
use crate::run::jobs::Folder;

/// How many items may wait while the terminal accepts no output. Then canal stops reading from the
/// daemon.
const NEWS_MAX: usize = 8;

/// An item for the screen.
#[derive(Debug)]
pub(super) enum News {
    /// The state of the locks, at first and after each change.
    Status(Box<Status>),
    /// The daemon went away; canal waits for the next one.
    Lost,
    /// No report follows.
    Over(Result),
    /// The answer to a question or action.
    Answer(Ask, Box<Answer>),
}

/// The receiving end of the news.
#[derive(Debug)]
pub(super) struct Feed {
    /// Readable as soon as there is news.
    wake: Arc<EventFd>,
    news: Receiver<News>,
    sender: SyncSender<News>,
    target: Target,
    /// Sends questions to the thread that asks the daemon; `None` until it is needed.
    asks: Option<Sender<Ask>>,
}

impl Feed {
    /// Starts to watch the state of the locks.
    pub(super) fn start(client: Client, target: Target, query: StatusQuery) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags);
        let wake =
            wake.map_err(|error| Failed::new(format!("cannot create an eventfd: {error}")))?;
        let (wake, (sender, news)) = (Arc::new(wake), sync_channel(NEWS_MAX));
        let teller = Teller { wake: wake.clone(), sender: sender.clone() };
        // Only the screen may write to the terminal.
        let target = target.with_verbosity(Verbosity::Silent);
        let jobs = Folder::of(&target.place);
        thread::spawn(move || watch(client, query, &jobs, &teller));
        Ok(Self { wake, news, sender, target, asks: None })
    }

    /// Takes the news that has arrived since the last call.
    pub(super) fn take(&mut self) -> Vec<News> {
        // The event is cleared first, so that news arriving now wakes the screen again.
        let _ = self.wake.read();
        self.news.try_iter().collect()
    }

    /// Sends a question to the daemon, without waiting for the answer.
    pub(super) fn ask(&mut self, ask: Ask) {
        let asks = self.asks.get_or_insert_with(|| {
            let (asks, to_ask) = channel();
            let teller = Teller { wake: self.wake.clone(), sender: self.sender.clone() };
            let target = self.target.clone();
            thread::spawn(move || answer(&target, &to_ask, &teller));
            asks
        });
        // The thread lives while this sender does.
        let _ = asks.send(ask);
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The sending end of the news.
struct Teller {
    wake: Arc<EventFd>,
    sender: SyncSender<News>,
}

impl Teller {
    /// Sends news. Returns whether the screen still exists.
    fn tell(&self, news: News) -> bool {
        let is_there = self.sender.send(news).is_ok();
        let _ = self.wake.write(1);
        is_there
    }
}

fn watch(mut client: Client, query: StatusQuery, jobs: &Folder, teller: &Teller) {
    let mut watch = Watch::new(query);
    loop {
        let news = match watch.look(&mut client, None) {
            Ok(Watched::State(status)) => News::Status(Box::new(completed(status, jobs))),
            Ok(Watched::Lost) => News::Lost,
            Ok(Watched::Nothing) if watch.is_over() => News::Over(Ok(())),
            Ok(Watched::Nothing) => continue,
            Err(error) => News::Over(Err(error.into())),
        };
        let is_over = matches!(news, News::Over(_));
        if !teller.tell(news) || is_over {
            return;
        }
    }
}

fn answer(target: &Target, asks: &Receiver<Ask>, teller: &Teller) {
    let mut client = None;
    while let Ok(ask) = asks.recv() {
        let answer = match &mut client {
            Some(client) => ask.put(client),
            None => match target.connect() {
                Ok(connected) => ask.put(client.insert(connected)),
                Err(failed) => Answer::Failed(failed),
            },
        };
        if !teller.tell(News::Answer(ask, Box::new(answer))) {
            return;
        }
    }
}
