//! The request of `canal run` or `canal acquire`, and why it was not granted.

use crate::cli::arguments::lock::LockArgs;
use crate::cli::arguments::nodes::NodesArgs;
use crate::cli::arguments::note::NoteArgs;
use crate::cli::arguments::session::SessionArgs;
use crate::cli::arguments::wait::{ProgressArg, Readers, WaitArgs};
use crate::cli::{Failed, Result, Verbosity, cut, wrong};
use crate::client::{self, ClientError};
use crate::protocol::{Acquire, ErrorName, Failure, Grant, Progress, Superseded};
use crate::sys::pidfd::Pidfd;

/// The most columns of a command line that canal sends to the daemon.
const COMMAND_COLUMNS_MAX: usize = 1000;

/// The request that the options of `canal VERB` describe, under a new tag.
pub(crate) fn request(
    verb: &str,
    (lock, nodes): (&LockArgs, &NodesArgs),
    wait: &WaitArgs,
    session: SessionArgs,
    note: &NoteArgs,
    command: &str,
) -> Result<Acquire> {
    let enclosing = session.enclosing();
    Ok(Acquire {
        tag: client::tag()?,
        items: lock.items()?,
        wait_ms: wait.wait_ms(),
        priority: wait.priority.unwrap_or(0),
        max_waiting: wait.max_waiting,
        group: wait.group.clone(),
        command: cut(command, COMMAND_COLUMNS_MAX),
        note: note.of_request()?,
        supersede: superseded(wait, verb, nodes)?,
        session: enclosing.session,
        frame: enclosing.frame,
        under_run: enclosing.run,
        ..Acquire::default()
    })
}

/// The older requests that a request of `canal VERB` supersedes.
fn superseded(wait: &WaitArgs, verb: &str, nodes: &NodesArgs) -> Result<Option<Superseded>> {
    if nodes.is_given() && (wait.supersede.is_some() || wait.group.is_some()) {
        let why = "--supersede and --group cannot be used with --on: independent nodes have no \
                   common queue";
        return Err(wrong(verb, why));
    }
    if wait.supersede == Some(Superseded::Running) && wait.wait_ms() == Some(0) {
        let why =
            "--supersede running waits until the command has ended, so it cannot be used with -n";
        return Err(wrong(verb, why));
    }
    Ok(wait.supersede)
}

/// A request, and how to show its wait.
pub(crate) struct Asking<'a> {
    pub(crate) request: &'a Acquire,
    /// The owner of the lock, if that is not this process.
    pub(crate) owner: Option<&'a Pidfd>,
    pub(crate) progress: ProgressArg,
    pub(crate) readers: Readers,
    pub(crate) verbosity: Verbosity,
}

/// Why a request acquired nothing.
#[derive(Debug)]
pub(crate) enum NotAcquired {
    /// It was refused: the lock is busy, the wait is over, or there is a deadlock.
    Refused(Failure),
    /// The daemon did not consider the request, because the command needs a supervisor.
    SupervisorRequired(Failure),
    /// canal failed.
    Failed(Failed),
}

impl From<Failed> for NotAcquired {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl From<ClientError> for NotAcquired {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Failure(failure) if failure.name == ErrorName::Refused => {
                Self::Refused(failure)
            }
            ClientError::Failure(failure) if failure.name == ErrorName::SupervisorRequired => {
                Self::SupervisorRequired(failure)
            }
            error => Self::Failed(error.into()),
        }
    }
}

/// Learns that a request waits at a daemon, and that it was granted.
pub(crate) trait Witness {
    /// Called with each progress message. An error withdraws the request.
    fn waits(&mut self, progress: &Progress) -> Result;

    /// Called with the grant. After an error, the caller must end, which releases the grant.
    fn granted(&mut self, grant: &Grant) -> Result;
}
