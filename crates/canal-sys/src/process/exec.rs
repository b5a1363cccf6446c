//! Executes another program in this process.
//!
//! Changes only what the caller names: arguments and environment are bytes, not text.

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;

/// The program that runs a file whose format the kernel does not know (`_PATH_BSHELL`).
const SHELL: &CStr = c"/bin/sh";

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
