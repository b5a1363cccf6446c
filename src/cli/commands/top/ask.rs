//! Sends the user's questions and actions to the daemon, and receives the answers.
//!
//! Each action is the call of the command of that name, with the same permissions and messages.
//! canal first asks what the action would do, and shows that.

use nix::sys::signal::Signal;

use crate::cli::arguments::value::WhyTarget;
use crate::cli::commands::{history, kill, release, resize};
use crate::cli::{Failed, Now, Result};
use crate::client::Client;
use crate::protocol::{HistoryPage, KillTarget, Release, Resize, Waits, WouldKill};

/// The signal of `k`, the same as that of `canal kill`.
pub(super) const SIGNAL: Signal = Signal::SIGTERM;

/// A holder or a waiter of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The hold with this token.
    Holder { token: u64 },
    /// The request that has waited in this session since then.
    Waiter { session: String, pid: u32, since: String },
}

/// A question to the daemon, or an action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    /// Asks what a session waits for, and what waits for it.
    Chain(WhyTarget),
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
    pub(super) fn put(&self, client: &mut Client) -> Answer {
        self.try_to(client).unwrap_or_else(Answer::Failed)
    }

    fn try_to(&self, client: &mut Client) -> Result<Answer> {
        let now = Now::here();
        Ok(match self {
            Self::Chain(target) => Answer::Chain(client.why(&target.query())?),
            Self::History { key } => Answer::History(history::of_key(client, key)?),
            Self::WouldRelease { token } => {
                let asked = Release { token: Some(*token), ..Release::default() };
                let held = client.would_release(&asked, None)?;
                let lines = release::lines(&held, "break the hold on", "by");
                Answer::Question(format!("{}?", lines.join("; ")), Self::Release { token: *token })
            }
            Self::WouldKill { key, who } => {
                let asked =
                    WouldKill { key: Some(key.clone()), waiters: true, ..WouldKill::default() };
                let found = client.would_kill(&asked)?;
                let target = found.targets.into_iter().find(|it| who.is(it));
                let target = target.ok_or_else(|| absent(found.left_out))?;
                kill::refusal(&target)?;
                let line = kill::line(&target, &now);
                let question = format!("send {} to {line}?", kill::name(SIGNAL));
                Answer::Question(question, Self::Kill(Box::new(target)))
            }
            Self::Release { token } => {
                let asked = Release { token: Some(*token), ..Release::default() };
                let released = client.release_once(&asked, None)?;
                Answer::Done(release::lines(&released, "broke the hold on", "by").join("; "))
            }
            Self::Kill(target) => {
                let refused = kill::Ending::find(client, target)?.signal(client, SIGNAL)?;
                match refused.first() {
                    Some(refused) => Answer::Failed(Failed::new(refused.as_str())),
                    None => Answer::Done(kill::sent(target, SIGNAL)),
                }
            }
            Self::Resize(asked) => {
                let resized = client.resize(asked)?;
                Answer::Done(resize::told(asked, &resized))
            }
        })
    }
}

fn absent(left_out: u64) -> Failed {
    match left_out {
        0 => Failed::new("it no longer holds the lock or waits for it"),
        _ => Failed::new(
            "the daemon lists only the first holders and waiters of this key, and this is not one \
             of them",
        )
        .hint("end it with `canal kill --pid PID`"),
    }
}

impl Who {
    /// Whether the daemon's target is the same holder or waiter.
    fn is(&self, target: &KillTarget) -> bool {
        match self {
            Self::Holder { token } => target.token == Some(*token),
            Self::Waiter { session, pid, since } => {
                let party = &target.party;
                target.request.is_some()
                    && (&party.session, party.pid, &target.since) == (session, *pid, since)
            }
        }
    }
}
