//! What reaches the screen: the reports of the daemon, and the answers to what the user asks.
//!
//! The reports come over one connection, for the whole life of the command. A second one is made
//! when the user first asks for something else.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::ask::{Answer, Ask};
use crate::cli::commands::status::with_keepers;
use crate::cli::connect::{self, Target};
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::client::{Client, Watch, Watched};
use crate::protocol::{Status, StatusQuery};

/// How many news wait while the terminal takes nothing. Then the daemon is not read from any more.
const NEWS_MAX: usize = 8;

/// Something new.
#[derive(Debug)]
pub(super) enum News {
    /// The state of the locks, at first and after each change.
    Status(Box<Status>),
    /// The daemon went away; the next one is waited for.
    Lost,
    /// No report follows.
    Over(Result<(), Failed>),
    /// The answer to what was asked.
    Answer(Ask, Answer),
}

/// Brings the news.
#[derive(Debug)]
pub(super) struct Feed {
    /// Can be read as soon as there are news.
    wake: Arc<EventFd>,
    news: Receiver<News>,
    sender: SyncSender<News>,
    target: Target,
    /// What the thread that asks is to ask; `None` until it is needed.
    asks: Option<Sender<Ask>>,
}

impl Feed {
    /// Watches the state of the locks.
    pub(super) fn start(
        client: Client,
        target: Target,
        query: StatusQuery,
    ) -> Result<Self, Failed> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags);
        let wake = wake.map_err(|error| Failed::new(format!("cannot make an eventfd: {error}")))?;
        let (wake, (sender, news)) = (Arc::new(wake), sync_channel(NEWS_MAX));
        let teller = Teller { wake: wake.clone(), sender: sender.clone() };
        thread::spawn(move || watch(client, query, &teller));
        Ok(Self { wake, news, sender, target, asks: None })
    }

    /// What came since the last time.
    pub(super) fn take(&mut self) -> Vec<News> {
        // First this: what comes now wakes again.
        let _ = self.wake.read();
        self.news.try_iter().collect()
    }

    /// Asks the daemon, and does not wait for the answer.
    pub(super) fn ask(&mut self, ask: Ask) {
        let asks = self.asks.get_or_insert_with(|| {
            let (asks, to_ask) = channel();
            let teller = Teller { wake: self.wake.clone(), sender: self.sender.clone() };
            let target = self.target.clone();
            thread::spawn(move || answer(&target, &to_ask, &teller));
            asks
        });
        // The thread lives as long as this sender.
        let _ = asks.send(ask);
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Tells the screen.
struct Teller {
    wake: Arc<EventFd>,
    sender: SyncSender<News>,
}

impl Teller {
    /// Whether the screen is still there.
    fn tell(&self, news: News) -> bool {
        let is_there = self.sender.send(news).is_ok();
        let _ = self.wake.write(1);
        is_there
    }
}

fn watch(mut client: Client, query: StatusQuery, teller: &Teller) {
    let mut watch = Watch::new(query);
    loop {
        let news = match watch.look(&mut client, None) {
            Ok(Watched::State(status)) => News::Status(Box::new(with_keepers(status))),
            Ok(Watched::Lost) => News::Lost,
            Ok(Watched::Nothing) if watch.is_over() => News::Over(Ok(())),
            Ok(Watched::Nothing) => continue,
            Err(error) => News::Over(Err(connect::failed(error))),
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
            // Silent: nothing but the screen may be written to the terminal.
            None => match target.connect(Verbosity::Silent) {
                Ok(connected) => ask.put(client.insert(connected)),
                Err(failed) => Answer::Failed(failed),
            },
        };
        if !teller.tell(News::Answer(ask, answer)) {
            return;
        }
    }
}
