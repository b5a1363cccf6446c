//! The command's descendants, as far as they have become children of ours.
//!
//! A subreaper adopts every descendant whose parent has ended, so that as long as there is one,
//! there is a child: itself, or an ancestor of it.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use nix::unistd::Pid;

use crate::sys::child::{Reap, children, ended};
use crate::sys::process::command_line;

/// Which children are descendants of the command.
#[derive(Debug)]
pub(super) struct Descendants {
    watched: bool,
    /// Children that this process had when it was still its caller: not the command's.
    before: Vec<Pid>,
}

impl Descendants {
    /// To be made before the command is.
    pub(super) fn new(watched: bool) -> io::Result<Self> {
        let before = if watched { children()? } else { Vec::new() };
        Ok(Self { watched, before })
    }

    /// Reaps those that have ended, and returns those that live; never the command itself, and no
    /// canal daemon, which serves others as well.
    pub(super) fn living(&self, command: Pid) -> io::Result<Vec<Pid>> {
        if !self.watched {
            return Ok(Vec::new());
        }
        let mut children = children()?;
        children.retain(|pid| *pid != command && !self.before.contains(pid));
        children.retain(|pid| matches!(ended(*pid, Reap::Now), Ok(None)) && !is_daemon(*pid));
        Ok(children)
    }
}

fn is_daemon(pid: Pid) -> bool {
    command_line(pid.as_raw().unsigned_abs()).is_some_and(|line| names_daemon(&line))
}

fn names_daemon(line: &str) -> bool {
    let mut words = line.split(' ');
    let program = words.next().map(Path::new).and_then(Path::file_name);
    program == Some(OsStr::new("canal")) && words.next() == Some("daemon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_command_line() {
        assert!(names_daemon("canal daemon --on-demand"));
        assert!(names_daemon("/usr/bin/canal daemon"));
        for other in ["canal run -k x -- sleep 1", "daemon canal", "xcanal daemon", "", "canal"] {
            assert!(!names_daemon(other), "{other}");
        }
    }
}
