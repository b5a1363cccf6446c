//! Becoming another program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// Where a command was found, or why not.
#[derive(Debug)]
pub enum Lookup {
    /// An executable file.
    Found(PathBuf),
    /// A file is there, but it cannot be executed (exit code 126).
    NotExecutable(PathBuf, io::Error),
    /// No such file (exit code 127).
    NotFound,
}

/// Finds a command as execvp(3) does: a name without `/` along PATH of our environment.
#[must_use]
pub fn lookup(command: &OsStr) -> Lookup {
    let _ = command;
    todo!()
}

/// Becomes `file` with `argv` (argv[0] included, any bytes) and our environment, in which each of
/// `environment` is set, or with `None` unset; everything else of it is passed on byte for byte
/// and in order. A file without a format the kernel knows (ENOEXEC) is run by `/bin/sh`, as
/// execvp(3) of glibc does. Returns only if it failed.
pub fn exec(file: &Path, argv: &[OsString], environment: &[(&str, Option<OsString>)]) -> io::Error {
    let _ = (file, argv, environment);
    todo!()
}
