//! Calls that have one answer.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use canal_protocol::{
    Configuration, ConfigurationQuery, Confirm, EndedLeases, EndedLeasesQuery, GraphQuery,
    HistoryPage, HistoryQuery, HistoryStats, HistoryStatsQuery, Kill, KillTargets, Killed, Leader,
    LeaderQuery, Metrics, MetricsQuery, Prioritize, Prioritized, Reload, Reloaded, Renew, Renewed,
    Resize, Resized, Status, StatusQuery, Waits, WhyQuery, WouldAcquire, WouldGrant, WouldKill,
};
use canal_sys::pidfd::Pidfd;

use crate::client::calls::deadline_page::Received;
use crate::client::connection::silence::Limits;
use crate::client::connection::stream::{Replies, parameters};
use crate::client::error::{Broken, CallOutcome};
use crate::client::{Client, ClientError, Result};

/// Whether the client may repeat a call if it lost the connection before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Yes: doing it twice has the same effect as doing it once.
    Always,
    /// Only if the daemon cannot have carried it out.
    IfUndone,
}

/// The pauses between attempts after the daemon went away. Without them, a client would start a
/// daemon that ends at every call in a tight loop.
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

/// How many times the client tries a call that does not wait.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

impl Client {
    pub fn call<P: Serialize, T: DeserializeOwned>(
        &mut self,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
        repeat: Repeat,
    ) -> Result<T> {
        let limits = Limits::from(&self.options);
        self.call_within(limits, method, input, owner, repeat)
    }

    /// Calls a method that searches the history.
    fn search<P: Serialize, T: DeserializeOwned>(&mut self, method: &str, input: &P) -> Result<T> {
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
    ) -> Result<T> {
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

    pub fn call_once<P: Serialize, T: DeserializeOwned>(
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
        // The client reuses a connection that carried an error reply, but not one that failed.
        if !matches!(output, Err(Broken::Disconnected(_))) {
            self.connection = Some(connection);
        }
        output
    }
}

/// The trace line for a call that was answered.
fn done<T>(_: &T) -> String {
    "answered".to_owned()
}

/// Defines calls that may be repeated: the name, the query and the reply of each, and its name in
/// the protocol.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($query:ty) -> $reply:ty = $method:literal;)*) => {
        impl Client {
            $($(#[$doc])*
            pub fn $name(&mut self, query: &$query) -> Result<$reply> {
                self.call($method, query, None, Repeat::Always)
            })*
        }
    };
}

calls! {
    /// Asks what the daemon would grant now without waiting, and takes nothing.
    ///
    /// # Errors
    /// [`ErrorName::Refused`](canal_protocol::ErrorName::Refused) if it would grant nothing, and
    /// the errors of [`Client::acquire`].
    would_acquire(WouldAcquire) -> WouldGrant = "WouldAcquire";

    /// Renews a lease, which then lives for its whole TTL from now.
    ///
    /// # Errors
    /// [`ErrorName::LeaseLost`](canal_protocol::ErrorName::LeaseLost) if the lease has ended.
    renew(Renew) -> Renewed = "Renew";

    /// Asks for the state of the locks.
    ///
    /// # Errors
    /// Only the errors that any call can have.
    status(StatusQuery) -> Status = "Status";

    /// Asks which holders and waiters a process or session waits for, to the end of the chain.
    ///
    /// # Errors
    /// [`ErrorName::BadRequest`](canal_protocol::ErrorName::BadRequest) if it neither holds nor
    /// waits.
    why(WhyQuery) -> Waits = "Why";

    /// Asks for all waiters and what blocks them.
    ///
    /// # Errors
    /// Only the errors that any call can have.
    graph(GraphQuery) -> Waits = "Graph";

    /// Asks for the leader of a key, which is its only holder.
    ///
    /// # Errors
    /// [`ErrorName::NotExclusive`](canal_protocol::ErrorName::NotExclusive) if several can hold
    /// the key at once, [`ErrorName::EngineAway`](canal_protocol::ErrorName::EngineAway) if the
    /// daemon cannot know.
    leader(LeaderQuery) -> Leader = "Leader";

    /// Asks for the leases that ended recently.
    ///
    /// # Errors
    /// Only the errors that any call can have.
    ended_leases(EndedLeasesQuery) -> EndedLeases = "EndedLeases";

    /// Asks for the metrics that a monitoring system reads.
    ///
    /// # Errors
    /// Only the errors that any call can have.
    metrics(MetricsQuery) -> Metrics = "Metrics";

    /// Asks which holds and waiting requests a [`Kill`] could target, and sends no signal.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if there are none.
    would_kill(WouldKill) -> KillTargets = "WouldKill";

    /// Makes the daemon read its configuration again.
    ///
    /// # Errors
    /// [`ErrorName::BadConfiguration`](canal_protocol::ErrorName::BadConfiguration) if the file is
    /// unusable; an error if the caller lacks the permission.
    reload(Reload) -> Reloaded = "Reload";

    /// Asks for the configuration that is in force.
    ///
    /// # Errors
    /// Only the errors that any call can have.
    configuration(ConfigurationQuery) -> Configuration = "Configuration";

    /// Changes the priority of the waiting requests of a session.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if nothing of the session waits;
    /// [`ErrorName::Denied`](canal_protocol::ErrorName::Denied) if the caller lacks the
    /// permission.
    prioritize(Prioritize) -> Prioritized = "Prioritize";

    /// Stores a size.
    ///
    /// # Errors
    /// The size makes no sense, or the caller lacks the permission.
    resize(Resize) -> Resized = "Resize";
}

impl Client {
    /// Confirms a provisional grant, after its owner has learned of it. If the daemon goes away in
    /// the meantime, confirms at the next one: confirming twice has no further effect.
    ///
    /// # Errors
    /// [`ErrorName::UnknownTag`](canal_protocol::ErrorName::UnknownTag) if the grant was
    /// withdrawn.
    pub fn confirm(&mut self, confirm: &Confirm) -> Result<()> {
        let _: serde_json::Value = self.call("Confirm", confirm, None, Repeat::Always)?;
        Ok(())
    }

    /// Asks for one page of requests and holds that have ended, the newest first.
    ///
    /// # Errors
    /// [`ErrorName::Unsupported`](canal_protocol::ErrorName::Unsupported) if the daemon keeps no
    /// history.
    pub fn history(&mut self, query: &HistoryQuery) -> Result<HistoryPage> {
        self.search("History", query)
    }

    /// Asks how long ended requests waited and how long they held their locks.
    ///
    /// # Errors
    /// The same as for [`Client::history`].
    pub fn history_stats(&mut self, query: &HistoryStatsQuery) -> Result<HistoryStats> {
        self.search("HistoryStats", query)
    }

    /// Returns the process of a hold or of a waiting request, if the caller may end it. With its
    /// pidfd, a client finds the processes below it and notices when they end.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if the process no longer holds
    /// or waits.
    pub fn process_to_kill(&mut self, kill: &Kill) -> Result<Option<Pidfd>> {
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
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if the process no longer holds
    /// or waits, [`ErrorName::Denied`](canal_protocol::ErrorName::Denied) if the caller may not
    /// signal it. [`ClientError::Gone`] if the daemon may have sent the signal and ended before it
    /// answered.
    pub fn kill(&mut self, kill: &Kill) -> Result<Killed> {
        self.call("Kill", kill, None, Repeat::IfUndone)
    }
}
