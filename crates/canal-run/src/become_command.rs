//! Turns this process into the command.
//!
//! With a supervisor, the child first reports that it has its lock. If the lock came with a
//! deadline page, the child then waits until the parent has the page and is ready to act on it. The
//! channel ends at the exec, or with the end of the child.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use serde::{Deserialize, Serialize};

use canal_lock::client::channel::{End, Received};
use canal_lock::client::command_environment::{
    Variables, hold_variable, of_a_new_session, variables,
};
use canal_lock::client::hold_monitor::LostHold;
use canal_lock::client::{Acquired, Client};
use canal_protocol::{Release, Tag};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline_page::Reader;
use canal_sys::fds;
use canal_sys::process::child::outlive_parent;
use canal_sys::process::{exec, startup};

use super::job_files::OpenRecord;
use super::nodes::{ChildEnd, OverNodes, Start};
use super::{Command, NotRun, makeflags};

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
    FromNodes {
        /// The grants.
        start: Start,
        /// The channel over which it was taken, and its deadline page.
        end: ChildEnd,
        /// The coordinator, if this process is its parent.
        coordinator: Option<OverNodes>,
    },
}

impl Taken {
    /// The deadline page and the token of a lock that can be lost.
    fn held(&self) -> Option<(&Reader, u64)> {
        match self {
            Self::FromDaemon { acquired: Acquired { page, grant, .. }, .. } => {
                page.as_ref().map(|page| (page, grant.token))
            }
            // The token is for messages.
            Self::FromNodes { start, end, .. } => Some((&end.page, start.token.unwrap_or(0))),
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
            Self::FromNodes { start, end, .. } => end.variables(start, asked.socket),
        }
    }

    fn give_back(self) {
        let Self::FromDaemon { mut client, acquired } = self else { return };
        let release = Release { token: Some(acquired.grant.token), ..Release::default() };
        // A failure changes nothing: the hold is about to end with this process.
        let _ = client.release(&release);
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
    let Err(not_begun) = begin(command, &mut taken, asked, child_channel.as_ref());
    if let Some(child_channel) = child_channel {
        child_channel.not_begun();
    }
    // After a loss, the daemon is unreachable, and the hold ends with this process anyway.
    if !matches!(not_begun, NotBegun::Lost(_)) {
        taken.give_back();
    }
    not_begun
}

fn begin(
    command: &Command,
    taken: &mut Taken,
    asked: Asked<'_>,
    child_channel: Option<&ChildChannel>,
) -> Result<Infallible, NotBegun> {
    let mut variables = taken.variables(asked);
    let (children, jobserver) = match taken {
        Taken::FromDaemon { acquired, .. } => (acquired.children.take(), acquired.jobserver.take()),
        Taken::FromNodes { .. } => (None, None),
    };
    let held = taken.held();
    // Report to the parent before duplicating the descriptor without close-on-exec; the child's end
    // of the channel closes at the exec.
    if let Some(child_channel) = child_channel {
        let ended = |_| NotBegun::Failed("the command's supervisor has ended".to_owned());
        child_channel.granted(children.as_ref(), held).map_err(ended)?;
    }
    // Not earlier: until now, this process ended with its parent, without running the command.
    if let Some(Err(error)) = asked.record.map(OpenRecord::started) {
        return Err(NotBegun::Failed(format!("cannot record that the job starts: {error}")));
    }
    let not_run = |error| NotBegun::NotRun(command.not_run(error));
    if let Some(fd) = children {
        fds::inherit(fd, CHILDREN_FD_AT_LEAST).map_err(not_run)?;
    }
    if let Some(ends) = jobserver {
        variables.extend(makeflags::inherit(ends, CHILDREN_FD_AT_LEAST).map_err(not_run)?);
    }
    startup::restore();
    // The last check before the exec: a process that was stopped meanwhile finds out here that its
    // lock is lost.
    if let Some(lost) = held.and_then(|(page, token)| LostHold::found(page, token, boottime_ms())) {
        return Err(NotBegun::Lost(Box::new(lost)));
    }
    Err(not_run(exec::exec(&command.file, &command.argv, &variables)))
}

/// The child's end of the channel to its parent; close-on-exec.
#[derive(Debug)]
pub struct ChildChannel(pub(super) End);

/// A message of the child.
#[derive(Serialize, Deserialize)]
pub(super) enum ChildMessage {
    /// It has its lock. With a token, the lock can be lost, and the first two descriptors are its
    /// deadline page. The others keep the hold while descendants live.
    Granted { token: Option<u64> },
    /// It did not become the command, and is about to end.
    NotBegun,
}

/// The answer of the parent: it is ready to end the command in time.
#[derive(Serialize, Deserialize)]
pub(super) struct Ready;

impl ChildChannel {
    /// Reports to the parent that the lock is held and the command starts. `children` is the
    /// descriptor that keeps the hold; the parent gets it too. `held` is the page and the token of
    /// a hold that can be lost. In that case, returns once the parent is ready to end the command
    /// in time.
    ///
    /// From then on, the end of the parent no longer ends this process: the command keeps its lock.
    /// If the parent is killed before, this process ends with it, and the daemon frees the lock.
    ///
    /// # Errors
    /// The parent has ended.
    pub fn granted(
        &self,
        children: Option<&OwnedFd>,
        held: Option<(&Reader, u64)>,
    ) -> io::Result<()> {
        let page = held.iter().flat_map(|(page, _)| page.descriptors());
        let descriptors: Vec<_> = page.chain(children.map(AsFd::as_fd)).collect();
        let granted = ChildMessage::Granted { token: held.map(|(_, token)| token) };
        let is_sent = self.0.send(&granted, &descriptors);
        let is_ready = || matches!(self.0.next::<Ready>(), Received::Message(Ready, _));
        if !is_sent || held.is_some() && !is_ready() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        outlive_parent()
    }

    /// Reports to the parent that the command does not begin.
    pub fn not_begun(self) {
        // A parent that has ended does not need the message.
        self.0.send(&ChildMessage::NotBegun, &[]);
    }
}
