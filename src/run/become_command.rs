//! Becoming the command in place.

use std::path::Path;

use crate::client::{Acquired, Client};
use crate::protocol::Release;
use crate::sys::{exec, fds, startup};

use super::{Command, NotRun, Starting, variables};

/// From which number on the descriptor that descendants keep is put, if the limit allows: above
/// those that scripts and shells use.
const CHILDREN_FD_AT_LEAST: i32 = 512;

/// Becomes the command: same process, with all that canal's caller gave it, and nothing of canal's
/// but the variables of the grant (and with `--with-children` the descriptor that keeps the hold).
///
/// `socket` is where the daemon was said to be, `None` if it was not. `starting` is what [`stay`](super::stay)
/// gave, `None` without a parent of canal's.
///
/// Returns only if the command cannot be run; the lock was given back then.
pub fn become_command(
    command: &Command,
    client: &mut Client,
    acquired: Acquired,
    socket: Option<&Path>,
    starting: Option<Starting>,
) -> NotRun {
    let Acquired { grant, children } = acquired;
    let variables = variables(&grant, socket);
    // The parent is told before the descriptor is duplicated without close-on-exec, and its end
    // of the channel closes with the exec.
    let channel = starting.map(|starting| starting.granted(children.as_ref()));
    let inherited = children.map(|fd| fds::inherit(fd, CHILDREN_FD_AT_LEAST)).transpose();
    let error = match inherited {
        Ok(_) => {
            startup::restore();
            exec::exec(&command.file, &command.argv, &variables)
        }
        Err(error) => error,
    };
    drop(channel);
    for key in grant.keys {
        // A failure changes nothing: the hold ends with this process in a moment.
        let _ = client.release(&Release { key: Some(key.key), ..Release::default() }, None);
    }
    NotRun::after_exec(command, error)
}
