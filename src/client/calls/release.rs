//! Giving back exactly once, even while daemons are replaced.
//!
//! Invariant: a hold that the owner got after the release was asked for is never given back, nor
//! any hold but the one that was named at first.

use super::single_reply::{ATTEMPTS_MAX, Backoff, Repeat};
use crate::client::connection::silence::Limits;
use crate::client::error::{Broken, CallOutcome};
use crate::client::{Client, ClientError};
use crate::protocol::{ErrorName, Failure, Release, Released};
use crate::sys::pidfd::Pidfd;

impl Client {
    /// Gives back a hold of `owner`, by default of this process. The message's `owner_fd` is set
    /// accordingly.
    ///
    /// # Errors
    /// There is no such hold, or it is not the caller's. [`ClientError::Gone`] if the daemon may
    /// have done it and ended before it answered.
    pub fn release(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
    ) -> Result<Released, ClientError> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        self.call("Release", &release, owner, Repeat::IfUndone)
    }

    /// Asks what [`Client::release`] would give back now. Changes nothing.
    ///
    /// # Errors
    /// As of [`Client::release`].
    pub fn would_release(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
    ) -> Result<Released, ClientError> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        self.call("WouldRelease", &release, owner, Repeat::Always)
    }

    /// Gives back exactly once: first asks which hold that is, and asks the next daemon if one goes
    /// away before it answered.
    ///
    /// # Errors
    /// As of [`Client::release`]. [`ClientError::Gone`] only if daemons keep going away.
    pub fn release_once(
        &mut self,
        release: &Release,
        owner: Option<&Pidfd>,
    ) -> Result<Released, ClientError> {
        let release = Release { owner_fd: owner.map(|_| 0), ..release.clone() };
        once(self, &release, owner)
    }
}

/// Finds out which hold is to be given back, gives it back, and repeats that until it is certain.
pub(crate) fn once(
    client: &mut Client,
    release: &Release,
    owner: Option<&Pidfd>,
) -> Result<Released, ClientError> {
    for _ in 0..ATTEMPTS_MAX {
        let held = match client.call("WouldRelease", release, owner, Repeat::Always) {
            Ok(held) => held,
            // Over an engine the log may have to say what a lease is.
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

/// Gives back what was `held` a moment ago; `None` if the owner holds something else now, in which
/// case nothing was done.
fn give_back(
    client: &mut Client,
    release: &Release,
    owner: Option<&Pidfd>,
    held: Released,
) -> Result<Option<Released>, ClientError> {
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

/// What an error says of the hold that was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is given back.
    Over,
    /// It is there, and a later one too.
    Changed,
}

fn outcome(failure: &Failure) -> Option<Outcome> {
    match (failure.name, failure.reason.as_deref()) {
        (ErrorName::NotHeld, Some("changed")) => Some(Outcome::Changed),
        (ErrorName::NotHeld, _) | (ErrorName::LeaseLost, Some("released")) => Some(Outcome::Over),
        _ => None,
    }
}

/// What the first try gave back, if it did, and the last one.
fn both(first: Released, last: Released) -> Released {
    let mut released = first.released;
    released.retain(|hold| last.released.iter().all(|other| other.token != hold.token));
    released.extend(last.released);
    Released { released }
}

fn is(error: &ClientError, name: ErrorName) -> bool {
    matches!(error, ClientError::Failure(failure) if failure.name == name)
}
