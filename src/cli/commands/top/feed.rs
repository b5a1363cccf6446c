//! Brings the daemon's reports, and its answers to the user's questions and actions, to the screen.
//!
//! The reports come over one connection for the whole life of the command. The first question opens
//! a second one. Each action is the call of the command of that name, with the same permissions and
//! messages. canal first asks what the action would do, and shows that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::Signal;

use crate::cli::commands::history::records;
use crate::cli::commands::status::completed;
use crate::cli::commands::{kill, release, resize};
use crate::cli::kill_and_supersede::{self, Ending};
use crate::cli::{Failed, Now, Result, Target};
use crate::client::{Client, Watch};
use crate::protocol::{
    HistoryPage, KillTarget, Release, Resize, Status, StatusQuery, Waits, WhyQuery, WouldKill,
};
use crate::run::job_files::Folder;

use super::timeline::RECORDS_IN_CHART;

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
    news: Receiver<News>,
    /// Readable as soon as there is news.
    pub(super) wake: Arc<EventFd>,
    /// Sends questions to the thread that asks the daemon.
    asks: Sender<Ask>,
}

impl Feed {
    /// Starts to watch the state of the locks.
    pub(super) fn start(client: Client, target: Target, query: StatusQuery) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map(Arc::new);
        let failed = |error| Failed::new(format!("cannot create an eventfd: {error}"));
        let wake = wake.map_err(failed)?;
        let ((sender, news), (asks, to_ask)) = (sync_channel(NEWS_MAX), channel());
        let to_wake = Arc::clone(&wake);
        // Sends news, and returns whether the screen still exists.
        let tell = move |news| {
            let is_there = sender.send(news).is_ok();
            let _ = to_wake.write(1);
            is_there
        };
        let (jobs, tell_state) = (Folder::of(&target.place), tell.clone());
        thread::spawn(move || watch(client, query, &jobs, tell_state));
        thread::spawn(move || answer(&target, &to_ask, tell));
        Ok(Self { news, wake, asks })
    }

    /// Takes the news that has arrived since the last call.
    pub(super) fn take(&self) -> Vec<News> {
        // The event is cleared first, so that news arriving now wakes the screen again.
        let _ = self.wake.read();
        self.news.try_iter().collect()
    }

    /// Sends a question to the daemon, without waiting for the answer.
    pub(super) fn ask(&self, ask: Ask) {
        // The thread lives while this sender does.
        let _ = self.asks.send(ask);
    }
}

fn watch(mut client: Client, query: StatusQuery, jobs: &Folder, tell: impl Fn(News) -> bool) {
    let mut watch = Watch::new(query);
    loop {
        let news = match watch.look(&mut client, None) {
            Ok(Some(status)) => News::Status(Box::new(completed(status, jobs))),
            Ok(None) if watch.is_lost => News::Lost,
            Ok(None) if watch.over => News::Over(Ok(())),
            Ok(None) => continue,
            Err(error) => News::Over(Err(error.into())),
        };
        let is_over = matches!(news, News::Over(_));
        if !tell(news) || is_over {
            return;
        }
    }
}

fn answer(target: &Target, asks: &Receiver<Ask>, tell: impl Fn(News) -> bool) {
    let mut client = None;
    while let Ok(ask) = asks.recv() {
        let connected = match &mut client {
            Some(client) => Ok(client),
            None => target.connect().map(|connected| client.insert(connected)),
        };
        let answer = connected.and_then(|client| ask.put(client)).unwrap_or_else(Answer::Failed);
        if !tell(News::Answer(ask, Box::new(answer))) {
            return;
        }
    }
}

/// The signal of `k`, the same as that of `canal kill`.
pub(super) const SIGNAL: Signal = Signal::SIGTERM;

/// A holder or a waiter of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    /// The token of a hold.
    pub(super) token: Option<u64>,
    pub(super) session: String,
    pub(super) pid: u32,
    /// When its hold or wait began.
    pub(super) since: String,
}

/// A question to the daemon, or an action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    /// Asks what a session waits for, and what waits for it.
    Chain(WhyQuery),
    /// Asks which requests for a key have ended.
    History { key: String },
    /// Asks what a forced release would break.
    WouldRelease { token: u64 },
    /// Asks which process would be signalled.
    WouldKill { key: String, who: Who },
    /// Breaks this hold.
    Release { token: u64 },
    /// Signals this process.
    Kill(Box<KillTarget>),
    /// Stores a size, pauses or resumes.
    Resize(Resize),
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Chain(Waits),
    History(HistoryPage),
    /// The question to the user before this action.
    Question(String, Ask),
    /// The message about what was done.
    Done(String),
    Failed(Failed),
}

impl Ask {
    /// Sends it, and waits for the answer.
    fn put(&self, client: &mut Client) -> Result<Answer> {
        let now = Now::here();
        Ok(match self {
            Self::Chain(target) => Answer::Chain(client.why(target)?),
            Self::History { key } => {
                Answer::History(records::of_key(client, key, RECORDS_IN_CHART)?)
            }
            Self::WouldRelease { token } => {
                let held = client.would_release(&of_token(*token))?;
                let lines = release::lines(&held, "break the hold on", "by");
                Answer::Question(format!("{}?", lines.join("; ")), Self::Release { token: *token })
            }
            Self::WouldKill { key, who } => {
                let asked =
                    WouldKill { key: Some(key.clone()), waiters: true, ..WouldKill::default() };
                let found = client.would_kill(&asked)?;
                let target = found.targets.into_iter().find(|it| who.is(it));
                let target = target.ok_or_else(|| match found.left_out {
                    0 => Failed::new("it no longer holds the lock or waits for it"),
                    _ => Failed::new(
                        "the daemon lists only the first holders and waiters of this key, and this \
                         is not one of them",
                    )
                    .hint("end it with `canal kill --pid PID`"),
                })?;
                kill_and_supersede::refusal(&target)?;
                let line = kill::line(&target, &now);
                let question = format!("send {} to {line}?", kill_and_supersede::name(SIGNAL));
                Answer::Question(question, Self::Kill(Box::new(target)))
            }
            Self::Release { token } => {
                let released = client.release_once(&of_token(*token), None)?;
                Answer::Done(release::lines(&released, "broke the hold on", "by").join("; "))
            }
            Self::Kill(target) => {
                let refused = Ending::find(client, target)?.signal(client, SIGNAL)?;
                match refused.first() {
                    Some(refused) => Answer::Failed(Failed::new(refused.as_str())),
                    None => Answer::Done(kill_and_supersede::sent(target, SIGNAL)),
                }
            }
            Self::Resize(asked) => {
                let resized = client.resize(asked)?;
                Answer::Done(resize::told(asked, &resized))
            }
        })
    }
}

/// The release of the hold with this token.
fn of_token(token: u64) -> Release {
    Release { token: Some(token), ..Release::default() }
}

impl Who {
    /// Whether the daemon's target is the same holder or waiter.
    fn is(&self, target: &KillTarget) -> bool {
        let party = &target.party;
        target.token == self.token
            && (self.token.is_some()
                || (&party.session, party.pid, &target.since)
                    == (&self.session, self.pid, &self.since))
    }
}
