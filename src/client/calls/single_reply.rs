//! Calls with one answer.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::{
    Configuration, ConfigurationQuery, Confirm, EndedLeases, EndedLeasesQuery, GraphQuery,
    HistoryPage, HistoryQuery, HistoryStats, HistoryStatsQuery, Kill, KillTargets, Killed, Leader,
    LeaderQuery, Metrics, MetricsQuery, Reload, Reloaded, Renew, Renewed, Resize, Resized, Status,
    StatusQuery, Waits, WhyQuery, WouldAcquire, WouldGrant, WouldKill,
};
use crate::sys::pidfd::Pidfd;

use crate::client::calls::deadline_page::Received;
use crate::client::connection::silence::Limits;
use crate::client::connection::stream::{Replies, parameters};
use crate::client::error::{Broken, CallOutcome};
use crate::client::{Client, ClientError};

/// Whether a call may be sent again when the connection was lost before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Doing it twice is the same as doing it once.
    Always,
    /// Only if the daemon cannot have done it.
    IfUndone,
}

/// The pauses between attempts after the daemon went away: a daemon that ends at every call is not
/// to be started in a tight loop.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(Duration::from_millis(5))
    }

    pub(crate) fn pause(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}

/// How often a call without a wait of its own is tried.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

impl Client {
    pub(crate) fn call<P: Serialize, T: DeserializeOwned>(
        &mut self,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
        repeat: Repeat,
    ) -> Result<T, ClientError> {
        let limits = Limits::from(&self.options);
        self.call_within(limits, method, input, owner, repeat)
    }

    /// Calls a method that looks for something in the history.
    fn search<P: Serialize, T: DeserializeOwned>(
        &mut self,
        method: &str,
        input: &P,
    ) -> Result<T, ClientError> {
        let limits = Limits::of_search(&self.options);
        self.call_within(limits, method, input, None, Repeat::Always)
    }

    fn call_within<P: Serialize, T: DeserializeOwned>(
        &mut self,
        limits: Limits,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
        repeat: Repeat,
    ) -> Result<T, ClientError> {
        let mut pauses = Backoff::new();
        for _ in 0..ATTEMPTS_MAX {
            let lost = match self.call_once(limits, method, input, owner) {
                Ok(output) => return Ok(output),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Disconnected(lost)) => lost,
            };
            if lost == CallOutcome::Unknown && repeat == Repeat::IfUndone {
                break;
            }
            pauses.pause();
        }
        Err(ClientError::Gone)
    }

    pub(crate) fn call_once<P: Serialize, T: DeserializeOwned>(
        &mut self,
        limits: Limits,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
    ) -> Result<T, Broken> {
        let mut connection = self.take_connection()?;
        self.trace(|| format!("sending {method}"));
        let answer = connection
            .send(method, input, Replies::One, owner, limits)
            .and_then(|()| connection.reply(limits));
        let output = match answer {
            Ok(reply) => {
                self.starts.daemon_answered();
                parameters(reply)
            }
            Err(broken) => {
                let failed = Err(broken);
                self.trace(|| format!("{method}: {}", Broken::explained(&failed, done)));
                return failed;
            }
        };
        self.trace(|| format!("{method}: {}", Broken::explained(&output, done)));
        // A connection that failed is not used again; a connection that carried an error reply is.
        if !matches!(output, Err(Broken::Disconnected(_))) {
            self.connection = Some(connection);
        }
        output
    }
}

/// What a client is told of a call that was answered.
fn done<T>(_: &T) -> String {
    "answered".to_owned()
}

impl Client {
    /// Confirms a provisional grant, after its owner was told. If the daemon goes away meanwhile,
    /// confirms at the next one: confirming twice has no further effect.
    ///
    /// # Errors
    /// [`ErrorName::UnknownTag`](crate::protocol::ErrorName::UnknownTag) if the grant was taken
    /// back.
    pub fn confirm(&mut self, confirm: &Confirm) -> Result<(), ClientError> {
        let _: serde_json::Value = self.call("Confirm", confirm, None, Repeat::Always)?;
        Ok(())
    }

    /// Asks what would be granted now without waiting. Takes nothing.
    ///
    /// # Errors
    /// [`ErrorName::Refused`](crate::protocol::ErrorName::Refused) if nothing would be, and those
    /// of [`Client::acquire`].
    pub fn would_acquire(&mut self, asked: &WouldAcquire) -> Result<WouldGrant, ClientError> {
        self.call("WouldAcquire", asked, None, Repeat::Always)
    }

    /// Renews a lease: from now it lives for its whole TTL.
    ///
    /// # Errors
    /// [`ErrorName::LeaseLost`](crate::protocol::ErrorName::LeaseLost) if the lease has ended.
    pub fn renew(&mut self, renew: &Renew) -> Result<Renewed, ClientError> {
        self.call("Renew", renew, None, Repeat::Always)
    }

    /// Asks for the state of the locks.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn status(&mut self, query: &StatusQuery) -> Result<Status, ClientError> {
        self.call("Status", query, None, Repeat::Always)
    }

    /// Asks which holders and waiters a process or session waits for, to the end of the chain.
    ///
    /// # Errors
    /// [`ErrorName::BadRequest`](crate::protocol::ErrorName::BadRequest) if it neither holds nor
    /// waits.
    pub fn why(&mut self, query: &WhyQuery) -> Result<Waits, ClientError> {
        self.call("Why", query, None, Repeat::Always)
    }

    /// Asks for all waiters and their blockers.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn graph(&mut self, query: &GraphQuery) -> Result<Waits, ClientError> {
        self.call("Graph", query, None, Repeat::Always)
    }

    /// Asks who leads by holding a key.
    ///
    /// # Errors
    /// [`ErrorName::NotExclusive`](crate::protocol::ErrorName::NotExclusive) if several can hold the
    /// key at once, [`ErrorName::EngineAway`](crate::protocol::ErrorName::EngineAway) if the daemon
    /// cannot know.
    pub fn leader(&mut self, query: &LeaderQuery) -> Result<Leader, ClientError> {
        self.call("Leader", query, None, Repeat::Always)
    }

    /// Asks for the leases that ended lately.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn ended_leases(&mut self, query: &EndedLeasesQuery) -> Result<EndedLeases, ClientError> {
        self.call("EndedLeases", query, None, Repeat::Always)
    }

    /// Asks for requests and holds that have ended: one page, the newest first.
    ///
    /// # Errors
    /// [`ErrorName::Unsupported`](crate::protocol::ErrorName::Unsupported) if the daemon keeps no
    /// history.
    pub fn history(&mut self, query: &HistoryQuery) -> Result<HistoryPage, ClientError> {
        self.search("History", query)
    }

    /// Asks how long what has ended waited and held its locks.
    ///
    /// # Errors
    /// As [`Client::history`].
    pub fn history_stats(
        &mut self,
        query: &HistoryStatsQuery,
    ) -> Result<HistoryStats, ClientError> {
        self.search("HistoryStats", query)
    }

    /// Asks for the figures that a monitor reads.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn metrics(&mut self, query: &MetricsQuery) -> Result<Metrics, ClientError> {
        self.call("Metrics", query, None, Repeat::Always)
    }

    /// Asks which holds and waiting requests a [`Kill`] may be about. Signals nothing.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](crate::protocol::ErrorName::NotHeld) if there are none.
    pub fn would_kill(&mut self, asked: &WouldKill) -> Result<KillTargets, ClientError> {
        self.call("WouldKill", asked, None, Repeat::Always)
    }

    /// The process of a hold or of a waiting request, if the caller can end it: with a pidfd, a
    /// client finds the processes below it, and sees them end.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](crate::protocol::ErrorName::NotHeld) if it does not hold or wait any
    /// more.
    pub fn process_to_kill(&mut self, kill: &Kill) -> Result<Option<Pidfd>, ClientError> {
        let asked = WouldKill { token: kill.token, request: kill.request, ..WouldKill::default() };
        let found = self.would_kill(&asked)?;
        let (Some(index), Some(connection)) = (found.process_fd, self.connection.as_mut()) else {
            return Ok(None);
        };
        let fd = Received::of(connection).take(index)?;
        let pidfd = Pidfd::from_fd(fd).map_err(|error| ClientError::Protocol(error.to_string()))?;
        Ok(Some(pidfd))
    }

    /// Sends a signal to the process of a hold or of a waiting request.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](crate::protocol::ErrorName::NotHeld) if it does not hold or wait any
    /// more, [`ErrorName::Denied`](crate::protocol::ErrorName::Denied) if it must not be signalled.
    /// [`ClientError::Gone`] if the daemon may have done it and ended before it answered.
    pub fn kill(&mut self, kill: &Kill) -> Result<Killed, ClientError> {
        self.call("Kill", kill, None, Repeat::IfUndone)
    }

    /// Has the daemon read its configuration again.
    ///
    /// # Errors
    /// [`ErrorName::BadConfiguration`](crate::protocol::ErrorName::BadConfiguration) if the file
    /// cannot be used; the caller may not.
    pub fn reload(&mut self, reload: &Reload) -> Result<Reloaded, ClientError> {
        self.call("Reload", reload, None, Repeat::Always)
    }

    /// Asks what is in force of the configuration.
    ///
    /// # Errors
    /// Only those of every call.
    pub fn configuration(
        &mut self,
        query: &ConfigurationQuery,
    ) -> Result<Configuration, ClientError> {
        self.call("Configuration", query, None, Repeat::Always)
    }

    /// Stores a view.
    ///
    /// # Errors
    /// The view makes no sense, or the caller may not.
    pub fn resize(&mut self, resize: &Resize) -> Result<Resized, ClientError> {
        self.call("Resize", resize, None, Repeat::Always)
    }
}
