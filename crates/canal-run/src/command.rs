//! A command that was found, or the reason why it cannot be run.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use canal_sys::process::find_command::{NotRun, lookup};

/// A command whose file was found before the request is sent, so that a mistyped command fails at
/// once instead of after the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The file.
    pub file: PathBuf,
    /// Its arguments. The first one is the name by which it was called. They may contain any bytes.
    pub argv: Vec<OsString>,
}

impl Command {
    /// Finds the command as execvp(3) does.
    ///
    /// # Errors
    /// There is none, or it cannot be executed.
    pub fn find(argv: Vec<OsString>) -> Result<Self, NotRun> {
        let file = lookup(argv.first().map(OsString::as_os_str).unwrap_or_default())?;
        Ok(Self { file, argv })
    }

    /// The reason for a failed exec.
    pub(super) fn not_run(&self, error: io::Error) -> NotRun {
        let file = || self.file.clone().into_os_string();
        let (command, error) = match error.raw_os_error() {
            Some(libc::ENOENT) if self.file.exists() => {
                let text = "its interpreter was not found";
                (file(), io::Error::new(io::ErrorKind::NotFound, text))
            }
            Some(libc::ENOENT) => (self.argv.first().cloned().unwrap_or_default(), error),
            _ => (file(), error),
        };
        NotRun { command, error }
    }
}
