//! Decides how canal ends: with one of its own exit codes, or with the code or the signal of the
//! command.
//!
//! canal's own codes follow timeout(1) and the shells, and EX_TEMPFAIL of sysexits for "not
//! acquired". Every other code is the command's.

use nix::sys::signal::Signal;

use canal_lock::client::hold_monitor::LostHold;
use canal_sys::process::find_command::NotRun;
use canal_sys::signals;

/// The exit code for success.
pub const SUCCESS: u8 = 0;

/// An exit code that canal itself returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OwnCode {
    /// The lock was not free and canal was not to wait, the wait timed out, or the request was
    /// refused to end a deadlock.
    NotAcquired = 75,
    /// The lock was lost while the command ran.
    LockLost = 122,
    /// The command ran longer than it may and was ended, by KILL too.
    TimeOver = 124,
    /// canal itself failed: usage, no daemon, permission.
    Failed = 125,
    /// The command was found but cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

impl OwnCode {
    /// The code for a command that was not run. For a file whose interpreter is missing, every
    /// shell returns 127 too, although the file itself exists.
    pub fn of_not_run(not_run: &NotRun) -> Self {
        if not_run.is_not_found() { Self::NotFound } else { Self::NotExecutable }
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// How a supervised command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code: the command's, or canal's own if the command was never run.
    Exited(u8),
    /// By a signal.
    Signaled(i32),
    /// It ran too long and was ended; this was the last signal that reached it.
    TimeOver(Signal),
    /// The lock was lost, and the command was ended for that, or could not be signalled.
    LockLost(Box<LostHold>),
}

impl Ended {
    /// The exit code that says so, or the signal.
    pub fn code(&self) -> Result<u8, i32> {
        match self {
            Self::Exited(code) => Ok(*code),
            Self::TimeOver(_) => Ok(OwnCode::TimeOver.number()),
            Self::LockLost(_) => Ok(OwnCode::LockLost.number()),
            Self::Signaled(signal) => Err(*signal),
        }
    }

    /// Makes this process end in the same way: returns the exit code to end with, or ends this
    /// process by the same signal (without a second core dump).
    #[must_use]
    pub fn pass_on(self) -> u8 {
        self.code().unwrap_or_else(signals::die_by)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use crate::Command;

    use super::*;

    fn failed(errno: i32) -> NotRun {
        let command = Command { file: "/x".into(), argv: vec!["x".into()] };
        command.not_run(io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn a_file_that_is_gone_is_127_and_any_other_failure_126() {
        assert_eq!(OwnCode::of_not_run(&failed(libc::ENOENT)), OwnCode::NotFound);
        for errno in [libc::EACCES, libc::E2BIG, libc::ENOTDIR, libc::ENOMEM, libc::ETXTBSY] {
            let code = OwnCode::of_not_run(&failed(errno));
            assert_eq!(code, OwnCode::NotExecutable, "errno {errno}");
        }
    }

    #[test]
    fn a_file_with_a_missing_interpreter_is_127_with_the_reason() {
        let command = Command { file: "/dev/null".into(), argv: vec!["x".into()] };
        let not_run = command.not_run(io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(OwnCode::of_not_run(&not_run), OwnCode::NotFound);
        assert_eq!(
            not_run.to_string(),
            "/dev/null: cannot be executed: its interpreter was not found"
        );
    }

    #[test]
    fn the_words_begin_with_the_command() {
        assert_eq!(failed(libc::ENOENT).to_string(), "x: command not found");
        assert!(failed(libc::EACCES).to_string().starts_with("/x: cannot be executed: "));
    }
}
