//! Turns this process into the command.

use std::os::fd::OwnedFd;
use std::path::Path;

use canal_lock::client::environment::{Variables, hold_variable, of_a_new_session, variables};
use canal_lock::client::hold_monitor::LostHold;
use canal_lock::client::{Acquired, Client, JobserverEnds};
use canal_protocol::{Release, Tag};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline::Reader;
use canal_sys::process::exec;
use canal_sys::{fds, startup};

use super::jobs::OpenRecord;
use super::jobserver;
use super::nodes::{ChildEnd, OverNodes, Start};
use super::{ChildChannel, Command, NotRun};

/// The lowest number for the descriptors that descendants keep, if the limit allows: above those
/// that scripts and shells use.
const CHILDREN_FD_AT_LEAST: i32 = 512;

/// The part of the caller's request that the command's environment shows.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The tag of the request.
    pub tag: Tag,
    /// The daemon's socket, if the caller named one.
    pub socket: Option<&'a Path>,
    /// Whether the request began a new session (`--new-session`).
    pub new_session: bool,
    /// The record of a background job, in which the start of the command is noted.
    pub record: Option<&'a OpenRecord>,
}

/// Why this process did not become the command.
#[derive(Debug)]
pub enum NotBegun {
    /// The command cannot be run.
    NotRun(NotRun),
    /// The lock was lost before the command started.
    Lost(Box<LostHold>),
    /// The command cannot be supervised or recorded. The reason is text for people.
    Failed(String),
}

/// A lock that this process has taken.
#[expect(
    clippy::large_enum_variant,
    reason = "a process has one, and the usual one is the large one"
)]
pub enum Taken {
    /// From a daemon, over this connection.
    FromDaemon {
        /// The connection.
        client: Client,
        /// The grant.
        acquired: Acquired,
    },
    /// From nodes. The coordinator releases it when this process or its command ends.
    FromNodes(Box<TakenFromNodes>),
}

/// A lock that this process has taken from nodes.
pub struct TakenFromNodes {
    /// The grants.
    pub start: Start,
    /// Shows until when the lock is safe.
    pub page: Reader,
    /// The channel over which it was taken.
    pub end: ChildEnd,
    /// The coordinator, if this process is its parent.
    pub coordinator: Option<OverNodes>,
}

impl Taken {
    /// The deadline page and the token of a lock that can be lost.
    fn held(&self) -> Option<(&Reader, u64)> {
        match self {
            Self::FromDaemon { acquired: Acquired { page, grant, .. }, .. } => {
                page.as_ref().map(|page| (page, grant.token))
            }
            // The token is for messages.
            Self::FromNodes(taken) => Some((&taken.page, taken.start.token.unwrap_or(0))),
        }
    }

    fn variables(&self, asked: Asked<'_>) -> Variables {
        match self {
            Self::FromDaemon { acquired: Acquired { page, grant, .. }, .. } => {
                let mut variables = variables(grant, asked.socket);
                variables.extend(page.is_some().then(|| hold_variable(asked.tag)));
                if asked.new_session {
                    variables.extend(of_a_new_session());
                }
                variables
            }
            Self::FromNodes(taken) => taken.end.variables(&taken.start, asked.socket),
        }
    }

    fn give_back(self) {
        let Self::FromDaemon { mut client, acquired } = self else { return };
        for key in acquired.grant.keys {
            let release = Release { key: Some(key.key.into()), ..Release::default() };
            // A failure changes nothing: the hold is about to end with this process.
            let _ = client.release(&release, None);
        }
    }
}

/// Becomes the command in the same process. The command gets everything that canal's caller passed
/// on; canal adds only the variables of the grant, and with `--with-children` the descriptor that
/// keeps the hold.
///
/// `child_channel` is the channel that [`supervise`](super::supervise()) gave to the child, `None`
/// without a supervisor.
///
/// Returns only if the command was not started. By then the lock has been released or lost.
pub fn become_command(
    command: &Command,
    mut taken: Taken,
    asked: Asked<'_>,
    child_channel: Option<ChildChannel>,
) -> NotBegun {
    let variables = taken.variables(asked);
    let inherited = match &mut taken {
        Taken::FromDaemon { acquired, .. } => (acquired.children.take(), acquired.jobserver.take()),
        Taken::FromNodes(_) => (None, None),
    };
    let held = taken.held();
    let not_begun = begin(command, variables, inherited, held, child_channel, asked.record);
    // After a loss, the daemon is unreachable, and the hold ends with this process anyway.
    if !matches!(not_begun, NotBegun::Lost(_)) {
        taken.give_back();
    }
    not_begun
}

fn begin(
    command: &Command,
    mut variables: Variables,
    (children, jobserver): (Option<OwnedFd>, Option<JobserverEnds>),
    held: Option<(&Reader, u64)>,
    child_channel: Option<ChildChannel>,
    record: Option<&OpenRecord>,
) -> NotBegun {
    let begin = || {
        // Report to the parent before duplicating the descriptor without close-on-exec; the child's
        // end of the channel closes at the exec.
        if let Some(child_channel) = &child_channel
            && child_channel.granted(children.as_ref(), held).is_err()
        {
            return NotBegun::Failed("the command's supervisor has ended".to_owned());
        }
        // Not earlier: until now, this process ended with its parent, without running the command.
        if let Some(Err(error)) = record.map(OpenRecord::started) {
            return NotBegun::Failed(format!("cannot record that the job starts: {error}"));
        }
        let inherited = children.map(|fd| fds::inherit(fd, CHILDREN_FD_AT_LEAST)).transpose();
        if let Err(error) = inherited {
            return NotBegun::NotRun(NotRun::after_exec(command, error));
        }
        match jobserver.map(|ends| jobserver::inherit(ends, CHILDREN_FD_AT_LEAST)).transpose() {
            Ok(named) => variables.extend(named.into_iter().flatten()),
            Err(error) => return NotBegun::NotRun(NotRun::after_exec(command, error)),
        }
        startup::restore();
        // The last check before the exec: a process that was stopped meanwhile finds out here that
        // its lock is lost.
        if let Some(lost) =
            held.and_then(|(page, token)| LostHold::found(page, token, boottime_ms()))
        {
            return NotBegun::Lost(Box::new(lost));
        }
        let error = exec::exec(&command.file, &command.argv, &variables);
        NotBegun::NotRun(NotRun::after_exec(command, error))
    };
    let not_begun = begin();
    if let Some(child_channel) = child_channel {
        child_channel.not_begun();
    }
    not_begun
}
