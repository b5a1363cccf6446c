//! Turns this process into the command.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::client::{Acquired, Client, JobserverEnds};
use crate::protocol::{Grant, Release, Tag};
use crate::sys::clock::boottime_ms;
use crate::sys::deadline::Reader;
use crate::sys::process::exec;
use crate::sys::{fds, startup};

use super::environment::{hold_variable, of_a_new_session};
use super::jobserver;
use super::{ChildChannel, Command, LostHold, NotRun, Variables, variables};

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
}

/// Why this process did not become the command.
#[derive(Debug)]
pub enum NotBegun {
    /// It cannot be run.
    NotRun(NotRun),
    /// The lock was lost before.
    Lost(Box<LostHold>),
    /// The supervisor has ended.
    Alone,
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
    client: &mut Client,
    acquired: Acquired,
    asked: Asked<'_>,
    child_channel: Option<ChildChannel>,
) -> NotBegun {
    let Acquired { grant, children, jobserver, page } = acquired;
    let mut variables = variables(&grant, asked.socket);
    variables.extend(page.is_some().then(|| hold_variable(asked.tag)));
    if asked.new_session {
        variables.extend(of_a_new_session());
    }
    let held = page.as_ref().map(|page| (page, grant.token));
    let not_begun = begin(command, variables, (children, jobserver), held, child_channel);
    if matches!(not_begun, NotBegun::Lost(_)) {
        // The daemon is unreachable, and the hold ends with this process anyway.
        return not_begun;
    }
    give_back(client, grant);
    not_begun
}

/// The same for a lock over nodes, which the coordinator releases. `page` states how long it is
/// safe; `token` is for messages.
pub fn become_command_over_nodes(
    command: &Command,
    variables: &Variables,
    page: &Reader,
    token: u64,
    child_channel: ChildChannel,
) -> NotBegun {
    begin(command, variables.clone(), (None, None), Some((page, token)), Some(child_channel))
}

fn begin(
    command: &Command,
    mut variables: Variables,
    (children, jobserver): (Option<OwnedFd>, Option<JobserverEnds>),
    held: Option<(&Reader, u64)>,
    child_channel: Option<ChildChannel>,
) -> NotBegun {
    let begin = || {
        // Report to the parent before duplicating the descriptor without close-on-exec; the child's
        // end of the channel closes at the exec.
        if let Some(child_channel) = &child_channel
            && child_channel.granted(children.as_ref(), held).is_err()
        {
            return NotBegun::Alone;
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

fn give_back(client: &mut Client, grant: Grant) {
    for key in grant.keys {
        // A failure changes nothing: the hold is about to end with this process.
        let _ = client.release(&Release { key: Some(key.key.into()), ..Release::default() }, None);
    }
}
