//! Becoming another program.
//!
//! Nothing is changed on the way but what the caller names: arguments and environment are bytes,
//! not text.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat, getegid, geteuid, getgid, getuid};

/// Where to look if PATH is not set, as confstr(_CS_PATH) of glibc says.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// What runs a file without a format that the kernel knows (`_PATH_BSHELL`).
const SHELL: &CStr = c"/bin/sh";

unsafe extern "C" {
    /// environ(7).
    static environ: *const *const libc::c_char;
}

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
    lookup_along(command, std::env::var_os("PATH").as_deref())
}

fn lookup_along(command: &OsStr, path: Option<&OsStr>) -> Lookup {
    if command.is_empty() {
        return Lookup::NotFound;
    }
    if command.as_bytes().contains(&b'/') {
        return match check(Path::new(command)) {
            Ok(()) => Lookup::Found(command.into()),
            Err(Errno::ENOENT) => Lookup::NotFound,
            Err(error) => Lookup::NotExecutable(command.into(), error.into()),
        };
    }
    let mut denied = None;
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    for element in path.as_bytes().split(|&byte| byte == b':') {
        // An empty element is the current directory: joined to it, the name stays as it is.
        let file = Path::new(OsStr::from_bytes(element)).join(command);
        match check(&file) {
            Ok(()) => return Lookup::Found(file),
            Err(Errno::EACCES) => {
                denied.get_or_insert(file);
            }
            Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ENODEV)
            | Err(Errno::ETIMEDOUT) => {}
            Err(error) => return Lookup::NotExecutable(file, error.into()),
        }
    }
    denied.map_or(Lookup::NotFound, |file| Lookup::NotExecutable(file, Errno::EACCES.into()))
}

/// Whether a file may be executed by us as we are now (our effective ids), with execve(2)'s error.
fn check(file: &Path) -> Result<(), Errno> {
    let stat = nix::sys::stat::stat(file)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::EACCES);
    }
    // With the flag it is another system call (faccessat2, Linux 5.8), which older containers
    // refuse with EPERM; so only where it makes a difference.
    let same = geteuid() == getuid() && getegid() == getgid();
    let flags = if same { AtFlags::empty() } else { AtFlags::AT_EACCESS };
    faccessat(AT_FDCWD, file, AccessFlags::X_OK, flags)
}

/// Becomes `file` with `argv` (`argv[0]` included, any bytes) and our environment, in which each of
/// `environment` is set, or with `None` unset; everything else of it is passed on byte for byte
/// and in order. A file without a format the kernel knows (ENOEXEC) is run by `/bin/sh`, as
/// execvp(3) of glibc does. Returns only if it failed.
pub fn exec(file: &Path, argv: &[OsString], environment: &[(&str, Option<OsString>)]) -> io::Error {
    match prepare(file, argv, environment) {
        Ok(prepared) => prepared.exec().into(),
        Err(error) => error,
    }
}

/// An execve(2) that needs no more memory, so that it can be called in a forked child.
pub(super) struct Prepared {
    file: CString,
    argv: Vec<CString>,
    /// Our own strings of the environment; `envp` points to them and to those of `environ`.
    _set: Vec<CString>,
    envp: Vec<*const libc::c_char>,
    argp: Vec<*const libc::c_char>,
    /// The arguments of a shell that runs the file.
    script_argp: Vec<*const libc::c_char>,
}

impl Prepared {
    /// With an environment of nothing but `set`.
    pub(super) fn with_environment(
        file: &Path,
        argv: &[OsString],
        set: Vec<CString>,
    ) -> io::Result<Self> {
        Self::new(file, argv, Vec::new(), set)
    }

    fn new(
        file: &Path,
        argv: &[OsString],
        mut envp: Vec<*const libc::c_char>,
        set: Vec<CString>,
    ) -> io::Result<Self> {
        let file = CString::new(file.as_os_str().as_bytes())?;
        let argv = argv
            .iter()
            .map(|argument| CString::new(argument.as_bytes()))
            .collect::<Result<Vec<_>, _>>()?;
        let end = || std::iter::once(std::ptr::null());
        let argp: Vec<_> = argv.iter().map(|argument| argument.as_ptr()).chain(end()).collect();
        // As maybe_script_execute of glibc: argv[0] gives way to the shell and the file.
        let rest = argv.iter().skip(1).map(|argument| argument.as_ptr());
        let script_argp = [SHELL.as_ptr(), file.as_ptr()].into_iter().chain(rest).chain(end());
        let script_argp = script_argp.collect();
        envp.extend(set.iter().map(|entry| entry.as_ptr()).chain(end()));
        Ok(Self { file, argv, _set: set, envp, argp, script_argp })
    }

    /// Becomes it; returns only if that failed. Async-signal-safe.
    pub(super) fn exec(&self) -> Errno {
        debug_assert_eq!(self.argv.len() + 1, self.argp.len());
        // SAFETY: each vector ends with a null and points to strings that we own, or that are in
        // `environ`, which `prepare` says must not change meanwhile.
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

/// Nobody may change the environment until the result is used or dropped; nobody does: canal sets
/// no variable of its own.
fn prepare(
    file: &Path,
    argv: &[OsString],
    environment: &[(&str, Option<OsString>)],
) -> io::Result<Prepared> {
    let kept = inherited(|name| environment.iter().any(|(own, _)| own.as_bytes() == name));
    let mut set = Vec::new();
    for (name, value) in environment {
        if let Some(value) = value {
            set.push(entry(OsStr::new(name), value)?);
        }
    }
    Prepared::new(file, argv, kept, set)
}

/// `NAME=VALUE`, as it stands in an environment.
pub(super) fn entry(name: &OsStr, value: &OsStr) -> io::Result<CString> {
    let mut text = name.to_owned().into_vec();
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    Ok(CString::new(text)?)
}

/// The entries of our environment whose name is not `ours`, in order. One without `=` is all name.
fn inherited(ours: impl Fn(&[u8]) -> bool) -> Vec<*const libc::c_char> {
    let mut kept = Vec::new();
    // SAFETY: `environ` is null or a vector that ends with a null; no other thread changes it (see
    // `prepare`).
    let mut next = unsafe { environ };
    while !next.is_null() {
        // SAFETY: `next` is within the vector, whose end we have not passed.
        let entry = unsafe { *next };
        if entry.is_null() {
            break;
        }
        // SAFETY: what stands in an environment is a string with its end.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let name = bytes.split(|&byte| byte == b'=').next().unwrap_or(bytes);
        if !ours(name) {
            kept.push(entry);
        }
        // SAFETY: the vector goes on: this was not its end.
        next = unsafe { next.add(1) };
    }
    kept
}

#[cfg(test)]
mod tests;
