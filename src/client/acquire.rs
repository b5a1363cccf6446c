//! Asking for a lock, and waiting for it over any number of daemons.
//!
//! Invariant: one `acquire` is one request. However often it is sent, its tag is the same, so that
//! a daemon that knows it goes on with it and never grants it twice.

use std::borrow::Cow;
use std::time::Duration;

use crate::protocol::{Acquire, Grant, Progress, frame};
use crate::sys::clock::boottime_ms;
use crate::sys::pidfd::Pidfd;
use crate::sys::process::{RunState, run_state};

use super::call::Pauses;
use super::connection::{Connection, Heard, Replies, parameters, reply};
use super::error::Broken;
use super::page::Received;
use super::{Acquired, Client, ClientError};

start_text!(ACQUIRE = "Acquire");

/// How often `progress` is called at least.
const TICK: Duration = Duration::from_secs(1);

/// After how long a silence while waiting it is looked whether the daemon is stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(30);

/// For how long a request that does not wait (any more) is asked again after the daemon went away:
/// enough to start another one.
const RETRY_MS_MIN: u64 = 10_000;

/// What is called while a request waits.
pub(super) type OnProgress<'a> = &'a mut dyn FnMut(Option<&Progress>);

/// When a wait is over, by CLOCK_BOOTTIME; the daemon's clock is the same.
#[derive(Clone, Copy, Debug)]
struct Until(Option<u64>);

impl Until {
    fn after(wait_ms: Option<u64>) -> Self {
        Self(wait_ms.map(|wait_ms| boottime_ms().saturating_add(wait_ms)))
    }

    /// What is left to say to the next daemon. A wait that began stays one: 0 would mean that it
    /// was never to wait.
    fn left_ms(self, wait_ms: Option<u64>) -> Option<u64> {
        let until = self.0?;
        let least = wait_ms.map_or(1, |wait_ms| wait_ms.min(1));
        Some(until.saturating_sub(boottime_ms()).max(least))
    }

    fn is_past(self, by_ms: u64) -> bool {
        self.0.is_some_and(|until| boottime_ms() > until.saturating_add(by_ms))
    }
}

impl Client {
    /// Asks, and waits as long as the request says. `progress` is called for every word from the
    /// daemon while it waits, and about once a second with `None`. If the daemon goes away
    /// meanwhile, connects anew (starting it if need be) and goes on under the same tag.
    ///
    /// `owner` is the process that shall own; without it, this process does. The request's
    /// `owner_fd` is set accordingly.
    ///
    /// # Errors
    /// A refusal is [`ClientError::Failure`]. A daemon that does not say a word for 5 s, or for
    /// that long after the wait is over, is [`ClientError::Silent`].
    pub fn acquire(
        &mut self,
        request: &Acquire,
        owner: Option<&Pidfd>,
        progress: OnProgress<'_>,
    ) -> Result<Acquired, ClientError> {
        let until = Until::after(request.wait_ms);
        let mut asked = Cow::Borrowed(request);
        let owner_fd = owner.map(|_| 0);
        if request.owner_fd != owner_fd {
            asked.to_mut().owner_fd = owner_fd;
        }
        let mut pauses = Pauses::new();
        loop {
            let mut told = false;
            let on_progress = &mut |word: Option<&Progress>| {
                told |= word.is_some();
                progress(word);
            };
            match self.acquire_once(&asked, owner, until, on_progress) {
                Ok(acquired) => return Ok(acquired),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Lost(_)) if until.is_past(RETRY_MS_MIN) => {
                    return Err(ClientError::Gone);
                }
                Err(Broken::Lost(_)) => {}
            }
            if told {
                pauses = Pauses::new();
            }
            pauses.pause();
            asked.to_mut().wait_ms = until.left_ms(request.wait_ms);
        }
    }

    fn acquire_once(
        &mut self,
        request: &Acquire,
        owner: Option<&Pidfd>,
        until: Until,
        progress: OnProgress<'_>,
    ) -> Result<Acquired, Broken> {
        let mut connection = self.take_connection()?;
        connection.send(ACQUIRE, request, Replies::More, owner, self.options.answer)?;
        let wait = Wait { answer: self.options.answer, until };
        let acquired = wait.grant(&mut connection, progress);
        if matches!(acquired, Ok(_) | Err(Broken::Failed(ClientError::Failure(_)))) {
            self.connection = Some(connection);
        }
        acquired
    }
}

/// One wait for a grant on one connection.
struct Wait {
    answer: Duration,
    until: Until,
}

impl Wait {
    fn grant(
        &self,
        connection: &mut Connection,
        progress: OnProgress<'_>,
    ) -> Result<Acquired, Broken> {
        let mut told = false;
        let mut silence = Duration::ZERO;
        loop {
            let patience = if told { TICK } else { self.answer.saturating_sub(silence) };
            match connection.message_within(patience)? {
                Ok(message) => {
                    // Mostly it is granted at once.
                    if let Some(grant) = frame::parse_plain_reply(&message) {
                        return acquired(grant, connection);
                    }
                    match *understood(&message)? {
                        Word::Last(grant) => return acquired(grant, connection),
                        Word::Progress(word) => progress(Some(&word)),
                    }
                    told = true;
                    silence = Duration::ZERO;
                }
                Err(Heard::Part) => silence = Duration::ZERO,
                Err(Heard::Nothing(waited)) => {
                    silence += waited;
                    if told {
                        progress(None);
                    }
                    self.check_silence(connection, told, silence)?;
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn check_silence(
        &self,
        connection: &Connection,
        told: bool,
        silence: Duration,
    ) -> Result<(), ClientError> {
        if silence < self.answer {
            return Ok(());
        }
        let answer_ms = u64::try_from(self.answer.as_millis()).unwrap_or(u64::MAX);
        if !told || self.until.is_past(answer_ms) {
            return Err(super::silent(connection.pid()));
        }
        let pid = connection.pid().filter(|_| silence >= STOPPED_AFTER);
        match pid.map(run_state) {
            Some(RunState::Stopped | RunState::Frozen) => Err(super::silent(pid)),
            _ => Ok(()),
        }
    }
}

/// What the daemon says while a request waits, and at its end.
enum Word {
    Progress(Progress),
    Last(Grant),
}

#[cold]
#[inline(never)]
fn understood(message: &[u8]) -> Result<Box<Word>, Broken> {
    let reply = reply(message)?;
    Ok(Box::new(if reply.continues {
        Word::Progress(parameters(reply)?)
    } else {
        Word::Last(parameters(reply)?)
    }))
}

fn acquired(grant: Grant, connection: &mut Connection) -> Result<Acquired, Broken> {
    let mut received = Received::of(connection);
    let children = grant.children_fd.map(|index| received.take(index)).transpose()?;
    let page = match (grant.page_fd, grant.line_fd) {
        (Some(page), Some(line)) => Some(received.page(page, line)?),
        _ => None,
    };
    Ok(Acquired { grant, children, page })
}
