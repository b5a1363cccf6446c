//! Executes another program in this process.
//!
//! Changes only what the caller names: arguments and environment are bytes, not text.

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::stat;
use nix::unistd::{AccessFlags, access, faccessat};

use crate::process::user::{getegid, geteuid, getgid, getuid};

/// The search path if PATH is not set, as glibc's confstr(_CS_PATH) returns it.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The program that runs a file whose format the kernel does not know (`_PATH_BSHELL`).
const SHELL: &CStr = c"/bin/sh";

/// A command that cannot be run. Its text begins with the command.
#[derive(Debug)]
pub struct NotRun {
    /// The file that was found; without one, the command as it was called.
    pub command: OsString,
    /// The system's error. Its kind is `NotFound` if there is no such command, or if the
    /// interpreter of its file is missing.
    pub error: io::Error,
}

impl NotRun {
    fn new(command: impl Into<OsString>, error: impl Into<io::Error>) -> Self {
        Self { command: command.into(), error: error.into() }
    }

    /// Whether the command, or the interpreter of its file, was not found.
    pub fn is_not_found(&self) -> bool {
        self.error.kind() == io::ErrorKind::NotFound
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.command.to_string_lossy();
        if self.is_not_found() && self.error.get_ref().is_none() {
            return write!(f, "{name}: command not found");
        }
        write!(f, "{name}: cannot be executed: {}", self.error)
    }
}

/// Finds a command as a shell does: a name without `/` along PATH of our environment. As in bash, a
/// folder that cannot be searched holds no command; execvp(3) would report a command that cannot be
/// executed.
///
/// # Errors
/// There is no such file, or it cannot be executed.
pub fn lookup(command: &OsStr) -> Result<PathBuf, NotRun> {
    lookup_along(command, std::env::var_os("PATH").as_deref())
}

fn lookup_along(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotRun> {
    let not_found = || NotRun::new(command, Errno::ENOENT);
    if command.is_empty() {
        return Err(not_found());
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return check(&file).map(|()| file).map_err(|error| NotRun::new(command, error));
    }
    let mut denied = None;
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    for folder in path.as_bytes().split(|&byte| byte == b':') {
        // An empty folder is the current directory: the name stays as it is.
        let file = Path::new(OsStr::from_bytes(folder)).join(command);
        match check(&file) {
            Ok(()) => return Ok(file),
            Err(Errno::EACCES) if file.exists() => {
                denied.get_or_insert(file);
            }
            Err(Errno::EACCES | Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ENODEV)
            | Err(Errno::ETIMEDOUT) => {}
            Err(error) => return Err(NotRun::new(file, error)),
        }
    }
    Err(denied.map_or_else(not_found, |file| NotRun::new(file, Errno::EACCES)))
}

/// Whether we may execute a file with our effective ids. Returns the error of execve(2).
fn check(file: &Path) -> nix::Result<()> {
    let file = CString::new(file.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    if stat(&*file)?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::EACCES);
    }
    // If effective and real ids are the same, uses the call that every kernel and container has.
    // With the flag, the call is faccessat2 (Linux 5.8), which older containers refuse with EPERM.
    if geteuid() == getuid() && getegid() == getgid() {
        return access(&*file, AccessFlags::X_OK);
    }
    faccessat(AT_FDCWD, &*file, AccessFlags::X_OK, AtFlags::AT_EACCESS)
}

/// Executes `file` with `argv` (`argv[0]` included, any bytes) and our environment. Sets each
/// variable of `set`, or unsets it if the value is `None`; passes on everything else byte
/// for byte and in order. `/bin/sh` runs a file whose format the kernel does not know (ENOEXEC), as
/// in glibc's execvp(3). Returns only on failure.
pub fn exec(file: &Path, argv: &[OsString], set: &[(Cow<'_, str>, Option<OsString>)]) -> io::Error {
    let prepare = || {
        let mut entries = own_environment();
        let is_set = |own: &CString| set.iter().any(|(name, _)| name_of(own) == name.as_bytes());
        entries.retain(|own| !is_set(own));
        for (name, value) in set {
            if let Some(value) = value {
                entries.push(entry(OsStr::new(&**name), value)?);
            }
        }
        Prepared::new(file, argv, entries)
    };
    prepare().map_or_else(|error| error, |prepared| prepared.exec().into())
}

/// An execve(2) that allocates no memory, so that a forked child can call it.
pub(crate) struct Prepared {
    file: CString,
    argv: Vec<CString>,
    /// `envp` points to these.
    _environment: Vec<CString>,
    envp: Vec<*const libc::c_char>,
    argp: Vec<*const libc::c_char>,
    /// The arguments of a shell that runs the file.
    script_argp: Vec<*const libc::c_char>,
}

impl Prepared {
    /// Prepares the call with exactly this environment, one `NAME=VALUE` each.
    pub(crate) fn new(file: &Path, argv: &[OsString], entries: Vec<CString>) -> io::Result<Self> {
        let file = CString::new(file.as_os_str().as_bytes())?;
        let argv = argv.iter().map(|argument| CString::new(argument.as_bytes()));
        let argv = argv.collect::<Result<Vec<_>, _>>()?;
        let end = || std::iter::once(std::ptr::null());
        let argp: Vec<_> = argv.iter().map(|argument| argument.as_ptr()).chain(end()).collect();
        // Like glibc's maybe_script_execute: the shell and the file replace argv[0].
        let rest = argv.iter().skip(1).map(|argument| argument.as_ptr());
        let script_argp = [SHELL.as_ptr(), file.as_ptr()].into_iter().chain(rest).chain(end());
        let script_argp = script_argp.collect();
        let envp = entries.iter().map(|entry| entry.as_ptr()).chain(end()).collect();
        Ok(Self { file, argv, _environment: entries, envp, argp, script_argp })
    }

    /// Executes the program. Returns only on failure. Async-signal-safe.
    pub(crate) fn exec(&self) -> Errno {
        debug_assert_eq!(self.argv.len() + 1, self.argp.len());
        // SAFETY: each vector ends with a null and points to strings that we own.
        unsafe { libc::execve(self.file.as_ptr(), self.argp.as_ptr(), self.envp.as_ptr()) };
        let error = Errno::last();
        if error != Errno::ENOEXEC {
            return error;
        }
        // SAFETY: as above.
        unsafe { libc::execve(SHELL.as_ptr(), self.script_argp.as_ptr(), self.envp.as_ptr()) };
        Errno::last()
    }
}

unsafe extern "C" {
    /// environ(7).
    static environ: *const *const libc::c_char;
}

/// A copy of every entry of our environment, byte for byte and in order. `std::env::vars_os` omits
/// entries without `=`, which a command may receive too.
fn own_environment() -> Vec<CString> {
    let mut entries = Vec::new();
    // SAFETY: `environ` is null, or a list of strings that ends with a null. Nothing changes it
    // meanwhile: a caller of `std::env::set_var`, which is unsafe, promises that no other thread
    // reads the environment.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            entries.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    entries
}

/// The part of an entry up to its `=`, or all of it.
fn name_of(entry: &CStr) -> &[u8] {
    entry.to_bytes().split(|&byte| byte == b'=').next().unwrap_or_default()
}

/// `NAME=VALUE`, as in an environment.
pub(crate) fn entry(name: &OsStr, value: &OsStr) -> io::Result<CString> {
    // Includes room for the NUL.
    let mut text = Vec::with_capacity(name.len() + value.len() + 2);
    text.extend_from_slice(name.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    Ok(CString::new(text)?)
}

#[cfg(test)]
mod tests;
