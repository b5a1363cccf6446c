//! Releases a hold exactly once, even while daemons are replaced.
//!
//! Invariant: a release never ends a hold that the owner got after the release was requested, nor
//! any hold other than the one named first.

use super::single_reply::{ATTEMPTS_MAX, Backoff, Repeat};
use crate::client::connection::silence::Limits;
use crate::client::error::{Broken, CallOutcome};
use crate::client::{Client, ClientError, Result};
use canal_protocol::{ErrorName, Failure, Release, Released};
use canal_sys::pidfd::Pidfd;

impl Client {
    /// Releases a hold of `owner`; by default, of this process. The client sets the message's
    /// `owner_fd` accordingly.
    ///
    /// # Errors
    /// The hold does not exist, or it does not belong to the caller. [`ClientError::Gone`] if the
    /// daemon may have released the hold and ended before it answered.
    pub fn release(&mut self, release: &Release, owner: Option<&Pidfd>) -> Result<Released> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        self.call("Release", &release, owner, Repeat::IfUndone)
    }

    /// Asks what [`Client::release`] would release now, and changes nothing.
    ///
    /// # Errors
    /// The same as for [`Client::release`].
    pub fn would_release(&mut self, release: &Release, owner: Option<&Pidfd>) -> Result<Released> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        self.call("WouldRelease", &release, owner, Repeat::Always)
    }

    /// Releases exactly once: first asks which hold it is, and repeats the call at the next daemon
    /// if one goes away before it answers.
    ///
    /// # Errors
    /// The same as for [`Client::release`]. [`ClientError::Gone`] only if daemons keep going away.
    pub fn release_once(&mut self, release: &Release, owner: Option<&Pidfd>) -> Result<Released> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        once(self, &release, owner)
    }
}

/// Finds out which hold to release, releases it, and repeats that until the outcome is certain.
pub(crate) fn once(
    client: &mut Client,
    release: &Release,
    owner: Option<&Pidfd>,
) -> Result<Released> {
    for _ in 0..ATTEMPTS_MAX {
        let held = match client.call("WouldRelease", release, owner, Repeat::Always) {
            Ok(held) => held,
            // With an engine, the daemon may have to read the log before it knows a lease.
            Err(error) if is(&error, ErrorName::LeaseLost) => {
                return client.call("Release", release, owner, Repeat::IfUndone);
            }
            Err(error) => return Err(error),
        };
        if let Some(released) = give_back(client, release, owner, held)? {
            return Ok(released);
        }
    }
    Err(ClientError::Gone)
}

/// Releases what was `held` at the time of the first question. Does nothing and returns `None` if
/// the owner now holds something else.
fn give_back(
    client: &mut Client,
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
        match client.call_once(Limits::from(&client.options), "Release", &named, owner) {
            Ok(released) if may_be_done => return Ok(Some(both(held, released))),
            Ok(released) => return Ok(Some(released)),
            Err(Broken::Disconnected(lost)) => may_be_done |= lost == CallOutcome::Unknown,
            Err(Broken::Failed(ClientError::Failure(failure))) => match outcome(&failure) {
                Some(Outcome::Over) if may_be_done => return Ok(Some(held)),
                Some(_) if named.key.is_some() => return Ok(None),
                _ => return Err(failure.into()),
            },
            Err(Broken::Failed(error)) => return Err(error),
        }
        pauses.pause();
    }
    Err(ClientError::Gone)
}

/// The consequence of an error for the named hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The hold has been released.
    Over,
    /// The hold still exists, and so does a later one.
    Changed,
}

fn outcome(failure: &Failure) -> Option<Outcome> {
    match (failure.name, failure.reason.as_deref()) {
        (ErrorName::NotHeld, Some("changed")) => Some(Outcome::Changed),
        (ErrorName::NotHeld, _) | (ErrorName::LeaseLost, Some("released")) => Some(Outcome::Over),
        _ => None,
    }
}

/// Combines what the first attempt released, if it released anything, with what the last one did.
fn both(first: Released, last: Released) -> Released {
    let mut released = first.released;
    released.retain(|hold| last.released.iter().all(|other| other.token != hold.token));
    released.extend(last.released);
    Released { released }
}

fn is(error: &ClientError, name: ErrorName) -> bool {
    matches!(error, ClientError::Failure(failure) if failure.name == name)
}
