//! The client, and its calls that have one answer.
//!
//! Invariants: the client repeats a call that must not take effect twice only if the daemon cannot
//! have carried it out. A release never ends a hold that the owner got after the release was
//! requested, nor any hold other than the one named first.

use std::time::Duration;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use canal_protocol::paths::Place;
use canal_protocol::{
    Configuration, DeadlinePageFound, DeadlinePageQuery, EndedLeases, EndedLeasesQuery, ErrorName,
    Handle, HistoryPage, HistoryQuery, HistoryStats, HistoryStatsQuery, Kill, KillTargets, Killed,
    Leader, LeaderQuery, Metrics, NoParameters, Prioritize, Prioritized, Release, Released,
    Reloaded, Renew, Renewed, RequestTag, Resize, Resized, Status, StatusQuery, Stopping, Tag,
    Waits, WhyQuery, WouldAcquire, WouldGrant, WouldKill,
};
use canal_sys::deadline_page::Reader;
use canal_sys::kernel::random;
use canal_sys::pidfd::Pidfd;
use canal_sys::terminal::output::OutputReaders;

use super::connection::options::Options;
use super::connection::start_daemon::{Starts, connect};
use super::connection::stream::{Connection, Received, Replies, activity, parameters};
use super::connection::time_limits::{Limits, Owed};
use super::error::{CallOutcome, ClientError, Result};

/// A connection to the daemon of a place.
#[derive(Debug)]
pub struct Client {
    pub(crate) place: Place,
    pub(super) options: Options,
    /// `None` after the connection was lost; the next call opens another.
    pub(super) connection: Option<Connection>,
    pub(super) starts: Starts,
    /// Receives a line for the user for each call and for each answer.
    pub trace: Option<fn(&str)>,
    /// The readers of the output. When they are gone, the client gives up a waiting request.
    pub readers: Option<OutputReaders>,
}

/// A new random name for a request.
///
/// # Errors
/// The system cannot provide random bytes.
pub fn tag() -> Result<Tag> {
    Ok(Tag(random::u128()?))
}

/// A new random secret for a lease.
///
/// # Errors
/// The system cannot provide random bytes.
pub fn handle() -> Result<Handle> {
    tag().map(|Tag(bits)| Handle::new(bits))
}

impl Client {
    /// Connects, and starts a daemon if necessary.
    ///
    /// # Errors
    /// No daemon runs and none may or can be started, or its directory cannot be trusted.
    pub fn connect(place: &Place, options: impl Into<Options>) -> Result<Self> {
        let options = options.into();
        let mut starts = Starts::default();
        let connection = Some(connect(place, &options, false, &mut starts)?);
        let (place, trace, readers) = (place.clone(), None, None);
        Ok(Self { place, options, connection, starts, trace, readers })
    }

    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        if let Some(say) = self.trace {
            say(&line());
        }
    }

    /// Whether this client has started a daemon that has not answered it yet.
    pub fn has_started_daemon(&self) -> bool {
        self.starts.count > 0
    }

    /// The connection, or a new one if there is none. The caller puts it back if it remains usable.
    pub(super) fn take_connection(&mut self) -> Result<Connection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => {
                self.trace(|| "connecting again".to_owned());
                connect(&self.place, &self.options, true, &mut self.starts)
            }
        }
    }
}

/// What the client does if it loses the connection before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It repeats the call: doing it twice has the same effect as doing it once.
    Repeat,
    /// The same, and the daemon may take long, because it searches the history.
    Search,
    /// It repeats the call only if the daemon cannot have carried it out.
    OnlyOnce,
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
    fn call<P: Serialize, T: DeserializeOwned>(
        &mut self,
        manner: Manner,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
    ) -> Result<T> {
        let limits = self.options.limits;
        let limits = if manner == Manner::Search { limits.of_search() } else { limits };
        let mut pauses = Backoff::new();
        for _ in 0..ATTEMPTS_MAX {
            match self.call_once(limits, method, input, owner) {
                Err(ClientError::Gone(lost))
                    if manner != Manner::OnlyOnce || lost == CallOutcome::Undone => {}
                answer => return answer,
            }
            pauses.pause();
        }
        Err(ClientError::Gone(CallOutcome::Unknown))
    }

    fn call_once<P: Serialize, T: DeserializeOwned>(
        &mut self,
        limits: Limits,
        method: &str,
        input: &P,
        owner: Option<&Pidfd>,
    ) -> Result<T> {
        let mut connection = self.take_connection()?;
        self.trace(|| format!("sending {method}"));
        let reply = connection
            .send(method, input, Replies::One, owner, limits)
            .and_then(|()| connection.reply(limits));
        let is_answered = reply.is_ok();
        let output = reply.and_then(parameters);
        self.trace(|| {
            let answered = |_: &T| "answered".to_owned();
            format!("{method}: {}", output.as_ref().map_or_else(ClientError::traced, answered))
        });
        if is_answered {
            self.starts.daemon_answered();
            // The client reuses a connection that carried an error reply, but not one to a daemon
            // that is stopping.
            if !matches!(output, Err(ClientError::Gone(_))) {
                self.connection = Some(connection);
            }
        }
        output
    }

    /// Takes the descriptors that came with the last answer.
    fn take_received(&mut self) -> Received {
        self.connection.as_mut().map(Connection::take_received).unwrap_or_default()
    }
}

/// Defines calls of one manner: the name, the query and the reply of each, and its name in the
/// protocol.
macro_rules! calls {
    ($manner:expr; $($(#[$doc:meta])* $name:ident($query:ty) -> $reply:ty = $method:literal;)*) => {
        impl Client {
            $($(#[$doc])*
            pub fn $name(&mut self, query: &$query) -> Result<$reply> {
                self.call($manner, $method, query, None)
            })*
        }
    };
}

calls! {
    Manner::Repeat;

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

    /// Confirms a provisional grant, after its owner has learned of it. If the daemon goes away in
    /// the meantime, confirms at the next one: confirming twice has no further effect.
    ///
    /// # Errors
    /// [`ErrorName::UnknownTag`](canal_protocol::ErrorName::UnknownTag) if the grant was
    /// withdrawn.
    confirm(RequestTag) -> IgnoredAny = "Confirm";

    /// Asks what [`Client::release`] would release now, and changes nothing.
    ///
    /// # Errors
    /// The same as for [`Client::release`].
    would_release(Release) -> Released = "WouldRelease";

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
    graph(NoParameters) -> Waits = "Graph";

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
    metrics(NoParameters) -> Metrics = "Metrics";

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
    reload(NoParameters) -> Reloaded = "Reload";

    /// Asks for the configuration that is in force.
    ///
    /// # Errors
    /// Only the errors that any call can have.
    configuration(NoParameters) -> Configuration = "Configuration";

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

calls! {
    Manner::Search;

    /// Asks for one page of requests and holds that have ended, the newest first.
    ///
    /// # Errors
    /// [`ErrorName::Unsupported`](canal_protocol::ErrorName::Unsupported) if the daemon keeps no
    /// history.
    history(HistoryQuery) -> HistoryPage = "History";

    /// Asks how long ended requests waited and how long they held their locks.
    ///
    /// # Errors
    /// The same as for [`Client::history`].
    history_stats(HistoryStatsQuery) -> HistoryStats = "HistoryStats";
}

calls! {
    Manner::OnlyOnce;

    /// Sends a signal to the process of a hold or of a waiting request.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if the process no longer holds
    /// or waits, [`ErrorName::Denied`](canal_protocol::ErrorName::Denied) if the caller may not
    /// signal it. [`ClientError::Gone`] if the daemon may have sent the signal and ended before it
    /// answered.
    kill(Kill) -> Killed = "Kill";

    /// Reports that the command of a hold has run for too long, and is about to be ended. Only the
    /// history depends on it.
    ///
    /// # Errors
    /// [`ErrorName::UnknownTag`](canal_protocol::ErrorName::UnknownTag) if there is no such hold.
    overrun(RequestTag) -> IgnoredAny = "Overrun";

    /// Releases a hold of this process.
    ///
    /// # Errors
    /// The hold does not exist, or it does not belong to the caller. [`ClientError::Gone`] if the
    /// daemon may have released the hold and ended before it answered.
    release(Release) -> Released = "Release";
}

impl Client {
    /// Returns the process of a hold or of a waiting request, if the caller may end it. With its
    /// pidfd, a client finds the processes below it and notices when they end.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if the process no longer holds
    /// or waits.
    pub fn process_to_kill(&mut self, kill: &Kill) -> Result<Option<Pidfd>> {
        let asked = WouldKill { token: kill.token, request: kill.request, ..WouldKill::default() };
        let found = self.would_kill(&asked)?;
        let Some(index) = found.process_fd else { return Ok(None) };
        let pidfd = Pidfd::from_fd(self.take_received().take(index)?);
        pidfd.map(Some).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// Asks for the deadline page of a held request. The client sends this call once, whatever its
    /// outcome.
    ///
    /// # Errors
    /// [`ErrorName::NotHeld`](canal_protocol::ErrorName::NotHeld) if this daemon does not know the
    /// hold (yet), [`ErrorName::Unsupported`](canal_protocol::ErrorName::Unsupported) if it has no
    /// engine.
    pub(super) fn page(&mut self, query: &DeadlinePageQuery) -> Result<Reader> {
        let limits = self.options.limits;
        let found: DeadlinePageFound = self.call_once(limits, "DeadlinePage", query, None)?;
        self.take_received().page(found.deadline_fd, found.liveness_fd)
    }

    /// Releases a hold of `owner`, by default of this process, exactly once: first asks which hold
    /// it is, and repeats the call at the next daemon if one goes away before it answers.
    ///
    /// # Errors
    /// The same as for [`Client::release`]. [`ClientError::Gone`] only if daemons keep going away.
    pub fn release_once(&mut self, release: &Release, owner: Option<&Pidfd>) -> Result<Released> {
        let release = &Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        for _ in 0..ATTEMPTS_MAX {
            let held = match self.call(Manner::Repeat, "WouldRelease", release, owner) {
                // With an engine, the daemon may have to read the log before it knows a lease.
                Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
                    return self.call(Manner::OnlyOnce, "Release", release, owner);
                }
                held => held?,
            };
            if let Some(released) = self.give_back(release, owner, held)? {
                return Ok(released);
            }
        }
        Err(ClientError::Gone(CallOutcome::Unknown))
    }

    /// Releases what was `held` at the time of the first question. Does nothing and returns `None`
    /// if the owner now holds something else. A hold that is named by its token can be released
    /// without a question, because tokens are never reused.
    pub(crate) fn give_back(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
        held: Released,
    ) -> Result<Option<Released>> {
        let mut named = release.clone();
        if named.key.is_some() {
            named.token = held.released.first().map(|hold| hold.token);
        }
        let (mut pauses, mut may_be_done) = (Backoff::new(), false);
        for _ in 0..ATTEMPTS_MAX {
            match self.call_once(self.options.limits, "Release", &named, owner) {
                Ok(Released { released: last }) => {
                    // The first attempt may have released something, too.
                    let mut released = if may_be_done { held.released } else { Vec::new() };
                    released.retain(|hold| last.iter().all(|it| it.token != hold.token));
                    released.extend(last);
                    return Ok(Some(Released { released }));
                }
                Err(ClientError::Gone(lost)) => may_be_done |= lost == CallOutcome::Unknown,
                Err(ClientError::Failure(failure)) => {
                    let reason = failure.reason.as_deref();
                    let is_gone = failure.name == ErrorName::NotHeld
                        || failure.name == ErrorName::LeaseLost && reason == Some("released");
                    // Otherwise, both the named hold and a later one still exist.
                    let is_over = is_gone && reason != Some("changed");
                    if is_over && may_be_done {
                        return Ok(Some(held));
                    }
                    let keeps_later = is_gone && named.key.is_some();
                    return if keeps_later { Ok(None) } else { Err(failure.into()) };
                }
                Err(error) => return Err(error),
            }
            pauses.pause();
        }
        Err(ClientError::Gone(CallOutcome::Unknown))
    }
}

/// How long a daemon may take to end. A busy one may take longer, as it may for its answers.
const END_MAX: Duration = Duration::from_secs(10);

impl Client {
    /// Ends the daemon and waits until it is gone. It watches the daemon's process if that is
    /// known, and the daemon's end of the connection otherwise. The next daemon takes over its
    /// holds.
    ///
    /// # Errors
    /// [`ClientError::Silent`] if the daemon is not gone after 10 s, or after a minute of work.
    pub fn stop(&mut self, stop: &NoParameters) -> Result<Stopping> {
        let limits = self.options.limits;
        let connection = self.take_connection()?;
        // With socket activation, the listening process is the service manager, and in another pid
        // namespace the daemon has another pid. The pids name the daemon only if they agree.
        let listener = connection.pid();
        self.connection = Some(connection);
        // A daemon that runs as a thread of this process ends without it.
        let elsewhere = listener.filter(|pid| *pid != std::process::id());
        let watched = elsewhere.and_then(|pid| Pidfd::open(pid).ok());
        let stopping: Stopping = self.call_once(limits, "Stop", stop, None)?;
        let connection = self.connection.take();
        let limits = Limits { idle: END_MAX.max(limits.idle), ..limits };
        let ended = match watched {
            Some(daemon) if listener == Some(stopping.pid) => {
                let mut owed = Owed::new(limits);
                loop {
                    let patience = owed.patience();
                    if daemon.wait_end(patience) {
                        break true;
                    }
                    if owed.grow(patience, || activity(Some(stopping.pid))) {
                        break false;
                    }
                }
            }
            _ => connection.is_none_or(|mut connection| connection.wait_closed(limits)),
        };
        if ended { Ok(stopping) } else { Err(ClientError::silent(Some(stopping.pid))) }
    }
}
