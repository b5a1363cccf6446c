//! A command that was found, or the reason why it cannot be run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::{fmt, io};

use canal_sys::process::exec::{Lookup, lookup};

use super::OwnCode;

/// A command whose file was found before the request is sent, so that a mistyped command fails at
/// once instead of after the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The file.
    pub file: PathBuf,
    /// Its arguments. The first one is the name by which it was called. They may contain any bytes.
    pub argv: Vec<OsString>,
}

/// Why a command was not run. Its text begins with the command.
#[derive(Debug)]
pub struct NotRun {
    /// The file that was found; without one, the command as it was called.
    pub command: OsString,
    /// [`OwnCode::NotFound`] or [`OwnCode::NotExecutable`].
    pub code: OwnCode,
    /// The system's error.
    pub error: io::Error,
}

impl Command {
    /// Finds the command as execvp(3) does.
    ///
    /// # Errors
    /// There is none, or it cannot be executed.
    pub fn find(argv: Vec<OsString>) -> Result<Self, NotRun> {
        let name = argv.first().cloned().unwrap_or_default();
        match lookup(&name) {
            Lookup::Found(file) => Ok(Self { file, argv }),
            Lookup::NotExecutable(file, error) => {
                Err(NotRun { command: file.into(), code: OwnCode::NotExecutable, error })
            }
            Lookup::NotFound => Err(NotRun {
                command: name,
                code: OwnCode::NotFound,
                error: io::Error::from(io::ErrorKind::NotFound),
            }),
        }
    }
}

impl NotRun {
    /// The reason for a failed exec.
    pub(super) fn after_exec(command: &Command, error: io::Error) -> Self {
        let file = || command.file.clone().into_os_string();
        let (command, code, error) = match error.raw_os_error() {
            Some(libc::ENOENT) if command.file.exists() => {
                // Every shell does this too: 127, although the file itself exists.
                let text = "its interpreter was not found";
                (file(), OwnCode::NotFound, io::Error::new(io::ErrorKind::NotFound, text))
            }
            Some(libc::ENOENT) => {
                (command.argv.first().cloned().unwrap_or_default(), OwnCode::NotFound, error)
            }
            _ => (file(), OwnCode::NotExecutable, error),
        };
        Self { command, code, error }
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.command.to_string_lossy();
        if self.code == OwnCode::NotFound && self.error.get_ref().is_none() {
            return write!(f, "{name}: command not found");
        }
        write!(f, "{name}: cannot be executed: {}", self.error)
    }
}

impl std::error::Error for NotRun {}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: i32) -> NotRun {
        let command = Command { file: "/x".into(), argv: vec!["x".into()] };
        NotRun::after_exec(&command, io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn a_file_that_is_gone_is_127_and_any_other_failure_126() {
        assert_eq!(failed(libc::ENOENT).code, OwnCode::NotFound);
        for errno in [libc::EACCES, libc::E2BIG, libc::ENOTDIR, libc::ENOMEM, libc::ETXTBSY] {
            assert_eq!(failed(errno).code, OwnCode::NotExecutable, "errno {errno}");
        }
    }

    #[test]
    fn a_file_with_a_missing_interpreter_is_127_with_the_reason() {
        let command = Command { file: "/dev/null".into(), argv: vec!["x".into()] };
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let not_run = NotRun::after_exec(&command, error);
        assert_eq!(not_run.code, OwnCode::NotFound);
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
