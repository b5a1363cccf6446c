//! Asks for a lock, and waits for it even while daemons are replaced.
//!
//! Invariant: one `acquire` is one request. Each attempt sends the same tag, so that a daemon that
//! knows the request continues it and never grants it twice.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::calls::{Backoff, Client};
use super::connection::stream::{Connection, Read, Replies, Reply, parameters};
use super::connection::time_limits::Silence;
use super::error::{ClientError, Result};
use super::former_user_daemon;
use canal_protocol::{Acquire, Failure, Grant, Progress, RequestTag, frame};
use canal_sys::clock::{boottime_ms, boottime_ms_after};
use canal_sys::deadline_page::Reader;
use canal_sys::pidfd::Pidfd;
use canal_sys::terminal::output::OutputReaders;

const ACQUIRE: &str = "Acquire";

/// The shortest time between two calls of `progress`.
const CALL_AGAIN_MIN: Duration = Duration::from_millis(1);

/// How long a client repeats a request that does not wait, or whose wait is over, after the daemon
/// went away. The time suffices to start another daemon.
const RETRY_MS_MIN: u64 = 10_000;

/// The callback while a request waits. It returns when to call it again, or an error that gives up
/// the request.
pub(crate) type OnProgress<'a> =
    &'a mut dyn FnMut(Option<&Progress>) -> Result<Option<Duration>, Box<Failure>>;

/// Whether a wait until then, by CLOCK_BOOTTIME, which is also the daemon's clock, has been over
/// for this long.
fn is_past(until: Option<u64>, by_ms: u64) -> bool {
    until.is_some_and(|until| boottime_ms() >= until.saturating_add(by_ms))
}

/// The FIFOs of a jobserver, from the side of its build.
#[derive(Debug)]
pub struct JobserverEnds {
    /// The FIFO from which the build takes job tokens.
    pub offers: OwnedFd,
    /// The FIFO to which the build writes them back.
    pub returns: OwnedFd,
    /// The path of the FIFO, if it is one for both (only with `jobserver_fifo`).
    pub path: Option<PathBuf>,
}

/// The result of a granted request.
#[derive(Debug)]
pub struct Acquired {
    /// The grant.
    pub grant: Grant,
    /// The write end of the FIFO that the command inherits (only with `with_children`).
    pub children: Option<OwnedFd>,
    /// The jobserver that the command inherits (only with `jobserver`).
    pub jobserver: Option<JobserverEnds>,
    /// The deadline page, which shows until when the hold is safe. Only a daemon with an engine has
    /// one.
    pub page: Option<Reader>,
}

impl Client {
    /// Sends the request and waits for the grant as long as the request allows.
    ///
    /// The client calls `progress` with every progress message of the daemon. `progress` returns
    /// the time after which the client calls it again, with `None`, if no message comes; the client
    /// may call it sooner. Without such a time, the client sleeps until a message comes, except
    /// that it checks every 25 s whether the daemon is stopped. An error from `progress` ends the
    /// wait. Closing the connection then withdraws the request, so the caller must drop this
    /// client. If the daemon goes away during the wait, the client connects to the next one (and
    /// starts it if necessary) and continues under the same tag.
    ///
    /// `owner` is the process that will own the lock; by default, this process. The client sets the
    /// request's `owner_fd` accordingly.
    ///
    /// # Errors
    /// A refusal is [`ClientError::Failure`]. [`ClientError::Silent`] if the daemon sends no
    /// message for 5 s, or for 5 s after the end of the wait, or if it is found stopped after 30 s
    /// of silence. A daemon whose process is busy gets a minute instead of 5 s.
    /// [`ClientError::HeldAtOwnDaemon`] if this is the daemon of the machine, and the user's own
    /// daemon still has holds that it granted earlier. [`ClientError::Abandoned`] once no
    /// reader of the output is left.
    pub fn acquire(
        &mut self,
        request: &Acquire,
        owner: Option<&Pidfd>,
        progress: OnProgress<'_>,
    ) -> Result<Acquired> {
        former_user_daemon::refuse_holders(&self.place, &self.options)?;
        let until = request.wait_ms.map(boottime_ms_after);
        let mut asked = Cow::Borrowed(request);
        let owner_fd = owner.map(|_| 0);
        if request.owner_fd != owner_fd {
            asked.to_mut().owner_fd = owner_fd;
        }
        let (mut pauses, mut was_queued) = (Backoff::new(), false);
        loop {
            let mut answered = false;
            let on_progress = &mut |word: Option<&Progress>| {
                answered |= word.is_some();
                was_queued |= word.is_some_and(|word| word.position > 0);
                progress(word)
            };
            match self.acquire_once(&asked, owner, until, on_progress) {
                Ok(acquired) => return Ok(acquired),
                Err(ClientError::Gone(_)) if !is_past(until, RETRY_MS_MIN) => {}
                Err(error) => return Err(error),
            }
            if answered {
                self.starts.daemon_answered();
                pauses = Backoff::new();
            }
            pauses.pause();
            let again = asked.to_mut();
            // The rest of the wait. For a wait that has begun, it is never 0, because 0 means not
            // to wait at all.
            again.wait_ms = until
                .zip(request.wait_ms)
                .map(|(until, wait_ms)| until.saturating_sub(boottime_ms()).max(wait_ms.min(1)));
            // A request that was queued has superseded others.
            again.supersede = again.supersede.filter(|_| !was_queued);
        }
    }

    fn acquire_once(
        &mut self,
        request: &Acquire,
        owner: Option<&Pidfd>,
        until: Option<u64>,
        progress: OnProgress<'_>,
    ) -> Result<Acquired> {
        let mut connection = self.take_connection()?;
        let limits = self.options.limits;
        self.trace(|| format!("sending {ACQUIRE}, request {}", request.tag));
        let silence = Silence::new(limits, Instant::now());
        let mut readers = self.readers.take();
        let wait = Wait { until, silence, call_at: None, readers: readers.as_mut() };
        let trace = self.trace;
        let progress = &mut |word: Option<&Progress>| {
            if let Some(say) = trace
                && let Some(Progress { key, position, waiting, reason, .. }) = word
            {
                let place = match waiting {
                    0 => String::new(),
                    _ => format!(", {position} of {waiting} in line"),
                };
                say(&format!("{ACQUIRE}: waiting for {key}{place}: {reason}"));
            }
            progress(word)
        };
        let acquired = connection
            .send(ACQUIRE, request, Replies::More, owner, limits)
            .and_then(|()| wait.grant(&mut connection, progress));
        self.readers = readers;
        if matches!(acquired, Err(ClientError::Abandoned)) {
            // The daemon finds this message when the connection closes, which withdraws the
            // request. Without the message, the history only shows that the request was withdrawn.
            let abandon = RequestTag { tag: request.tag };
            let _ = connection.send("Abandon", &abandon, Replies::One, None, limits);
        }
        self.trace(|| {
            let granted = |acquired: &Acquired| format!("granted, token {}", acquired.grant.token);
            format!("{ACQUIRE}: {}", acquired.as_ref().map_or_else(ClientError::traced, granted))
        });
        if matches!(acquired, Ok(_) | Err(ClientError::Failure(_))) {
            self.starts.daemon_answered();
            self.connection = Some(connection);
        }
        acquired
    }
}

/// One wait for a grant on one connection.
struct Wait<'a> {
    until: Option<u64>,
    silence: Silence,
    /// When to call `progress` next if the daemon sends nothing.
    call_at: Option<Instant>,
    /// The readers of the output, without whom the client gives up the wait.
    readers: Option<&'a mut OutputReaders>,
}

impl Wait<'_> {
    fn grant(mut self, connection: &mut Connection, progress: OnProgress<'_>) -> Result<Acquired> {
        loop {
            // A request that need not wait is served even if no reader is left.
            let readers = self.readers.as_deref().filter(|_| self.silence.answered);
            match connection.read(self.patience(), readers)? {
                Read::Message(message) => {
                    // Most requests are granted immediately.
                    if let Some(grant) = frame::parse_last_reply(&message) {
                        return acquired(grant, connection);
                    }
                    let reply: Reply = frame::parse(&message)?;
                    if !reply.continues {
                        return acquired(parameters(reply)?, connection);
                    }
                    self.call(Some(&parameters(reply)?), progress)?;
                    self.silence.end_with_word(Instant::now());
                }
                Read::Part => self.silence.end_with_part(Instant::now()),
                Read::Nothing(waited) => {
                    if self.silence.answered {
                        if self.readers.as_mut().is_some_and(|readers| readers.are_gone()) {
                            return Err(ClientError::Abandoned);
                        }
                        self.call(None, progress)?;
                    }
                    let (is_over, now) = (is_past(self.until, 0), Instant::now());
                    if self.silence.grow(waited, is_over, now, || connection.activity()) {
                        return Err(ClientError::silent(connection.pid()));
                    }
                }
            }
        }
    }

    /// How long to sleep until something is due.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let left = self.until.map(|until| until.saturating_sub(boottime_ms()));
        let patience = self.silence.patience(left.map(Duration::from_millis), now);
        self.call_at.map_or(patience, |at| patience.min(at.saturating_duration_since(now)))
    }

    fn call(&mut self, word: Option<&Progress>, progress: OnProgress<'_>) -> Result<()> {
        let again = progress(word).map_err(|failure| ClientError::Failure(*failure))?;
        let again = again.map(|after| after.max(CALL_AGAIN_MIN));
        self.call_at = again.and_then(|after| Instant::now().checked_add(after));
        Ok(())
    }
}

fn acquired(grant: Grant, connection: &mut Connection) -> Result<Acquired> {
    let mut received = connection.take_received();
    let children = grant.children_fd.map(|index| received.take(index)).transpose()?;
    let jobserver = match (grant.offers_fd, grant.returns_fd) {
        (Some(offers), Some(returns)) => Some(JobserverEnds {
            offers: received.take(offers)?,
            returns: received.take(returns)?,
            path: grant.jobserver_path.as_ref().map(PathBuf::from),
        }),
        _ => None,
    };
    let page = grant.deadline_fd.zip(grant.liveness_fd);
    let page = page.map(|(page, line)| received.page(page, line)).transpose()?;
    Ok(Acquired { grant, children, jobserver, page })
}
