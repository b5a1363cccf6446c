//! Reads the environment, the open files and the program of another process.
//!
//! For a process of another user the kernel shows none of this, except to root.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::sys::stat::{fstat, stat};

/// The value of a variable in the environment that a process was started with. `None` if the
/// variable is not set, or if the environment is not visible.
#[must_use]
pub fn variable(pid: u32, name: &str) -> Option<OsString> {
    #[cfg(test)]
    if let Some(kernel) = crate::sys::kernel::simulated::current() {
        return kernel.variable(pid, name);
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    value.map(|value| OsString::from_vec(value.to_vec()))
}

/// Which of these files a process has open, as far as this is visible. Returns their positions in
/// `files`.
#[must_use]
pub fn has_open(pid: u32, files: &[&File]) -> Vec<usize> {
    #[cfg(test)]
    if let Some(kernel) = crate::sys::kernel::simulated::current() {
        return kernel.has_open(pid, files);
    }
    let ids = files.iter().map(|file| fstat(file.as_fd()).ok().map(|it| (it.st_dev, it.st_ino)));
    let ids: Vec<_> = ids.collect();
    if ids.is_empty() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let open = entries.flatten().filter_map(|entry| stat(&entry.path()).ok());
    let mut found: Vec<usize> = open
        .filter_map(|it| ids.iter().position(|id| *id == Some((it.st_dev, it.st_ino))))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The program of this process, for comparison with other processes.
#[derive(Debug)]
pub struct OwnProgram {
    file: Option<(u64, u64)>,
    path: Option<PathBuf>,
}

impl OwnProgram {
    /// Looks up the program of this process.
    #[must_use]
    pub fn find() -> Self {
        let own = "/proc/self/exe";
        Self { file: file_of(own), path: path_of(own) }
    }

    /// Whether a process runs this program. A program that was replaced by an upgrade counts, and
    /// so does its replacement.
    #[must_use]
    pub fn is_of(&self, pid: u32) -> bool {
        #[cfg(test)]
        if let Some(kernel) = crate::sys::kernel::simulated::current() {
            return kernel.is_canal(pid);
        }
        let link = format!("/proc/{pid}/exe");
        let is = |ours: Option<(u64, u64)>| ours.is_some() && file_of(&link) == ours;
        is(self.file) || self.path.is_some() && path_of(&link) == self.path
    }
}

fn file_of(link: &str) -> Option<(u64, u64)> {
    stat(link).ok().map(|it| (it.st_dev, it.st_ino))
}

/// The path of the program, without the suffix that the kernel adds if a newer file has replaced
/// it.
fn path_of(link: &str) -> Option<PathBuf> {
    let path = fs::read_link(link).ok()?.into_os_string().into_vec();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path).to_vec();
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::sys::rerun::wait_until;

    #[test]
    fn a_process_is_known_by_what_it_was_given() {
        let kept = tempfile::tempfile().unwrap();
        let other = tempfile::tempfile().unwrap();
        let mut cat = Command::new("cat");
        cat.env("LONGER_NAME", "no").env("NAME", "a b").stdin(Stdio::piped());
        let mut cat = cat.stdout(kept.try_clone().unwrap()).spawn().unwrap();
        wait_until("it was started", || variable(cat.id(), "NAME").is_some_and(|it| it == "a b"));
        assert_eq!(variable(cat.id(), "NAM"), None);
        assert_eq!(has_open(cat.id(), &[&other, &kept]), [1]);
        assert!(!OwnProgram::find().is_of(cat.id()));
        assert!(OwnProgram::find().is_of(std::process::id()));
        drop(cat.stdin.take());
        cat.wait().unwrap();
        assert_eq!(variable(cat.id(), "NAME"), None, "it is gone");
        assert!(has_open(cat.id(), &[&kept]).is_empty());
    }
}
