//! Reads the name, the command line, the environment, the working folder, the open files and the
//! program of another process.
//!
//! The kernel shows all but the name and the command line of another user's process only to root.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, fstat, stat};

use canal_text::safe_text::sanitize;

use super::ancestry::visible;
use super::user;
use crate::kernel::{field, open_files};

/// The most bytes of a command line that are read.
pub const COMMAND_LINE_MAX: usize = 4096;

/// The short name (15 bytes at most). Control characters are replaced by `?`.
pub fn name(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(sanitize(&String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name))))
}

/// The command line, its arguments joined by blanks (control characters are replaced by `?`). If
/// there is none, the short name in brackets. Reads at most [`COMMAND_LINE_MAX`] bytes.
pub fn command_line(pid: u32) -> Option<String> {
    let line = arguments(pid)?;
    let Some(last) = line.iter().rposition(|&byte| byte != 0) else {
        return name(pid).map(|name| format!("[{name}]"));
    };
    let words: Vec<_> = line[..=last].split(|&byte| byte == 0).collect();
    Some(sanitize(&String::from_utf8_lossy(&words.join(&b' '))))
}

/// The beginning of the command line, each argument ended by a NUL.
fn arguments(pid: u32) -> Option<Vec<u8>> {
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    let mut line = Vec::new();
    file.take(COMMAND_LINE_MAX as u64).read_to_end(&mut line).ok()?;
    Some(line)
}

/// The first words of the command line, byte for byte, if they are within its first
/// [`COMMAND_LINE_MAX`] bytes. Empty if there is no such process, or if it is a zombie.
pub fn first_words(pid: u32, count: usize) -> Vec<OsString> {
    let line = arguments(pid).unwrap_or_default();
    let words = line.split_inclusive(|byte| *byte == 0).filter_map(|word| word.strip_suffix(&[0]));
    words.take(count).map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// The value of a variable in the environment with which a process was started. `None` if the
/// variable is not set, or if the environment is not visible.
pub fn variable(pid: u32, name: &str) -> Option<OsString> {
    simulated!(|kernel| kernel.variable(pid, name));
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    value.map(|value| OsString::from_vec(value.to_vec()))
}

/// The positions in `files` of those that a process visibly has open.
pub fn has_open(pid: u32, files: &[&File]) -> Vec<usize> {
    simulated!(|kernel| kernel.has_open(pid, files));
    if files.is_empty() {
        return Vec::new();
    }
    let ids: Vec<_> = files.iter().map(|file| fstat(file).ok().map(|it| id_of(&it))).collect();
    let open = open_files(pid).filter_map(|link| file_of(&link));
    let found = open.filter_map(|file| ids.iter().position(|id| *id == Some(file)));
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether a process visibly has a file of this name open. The name also matches a removed file
/// that had it.
pub fn has_named(pid: u32, name: &str) -> bool {
    simulated!(|kernel| kernel.has_named(pid, name));
    open_files(pid).any(|link| is_link_to(&link, name))
}

/// Whether a link below `/proc/PID/fd` names a file of this name, which may have been removed.
pub fn is_link_to(link: &Path, name: &str) -> bool {
    let Ok(path) = fs::read_link(link) else { return false };
    let found = path.file_name().unwrap_or_default().as_encoded_bytes();
    found.strip_suffix(b" (deleted)").unwrap_or(found) == name.as_bytes()
}

/// The working folder of a process, if visible. With `uid`, only if the process belongs to this
/// user and has no further privileges, so that the kernel would show the folder to the user too.
pub fn folder(pid: u32, uid: Option<u32>) -> Option<PathBuf> {
    simulated!(|_| None);
    // The files below /proc/PID belong to root if the process is privileged in any way.
    let shown_to = || user::stat(format!("/proc/{pid}")).ok().map(|it| it.st_uid);
    if uid.is_some() && shown_to() != uid {
        return None;
    }
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    // The process may have executed another program meanwhile.
    (uid.is_none() || shown_to() == uid).then_some(folder)
}

/// The processes that visibly have a file open for writing. The device and inode identify the file.
///
/// # Errors
/// /proc belongs to another namespace.
pub fn writers_of(device: u64, inode: u64) -> io::Result<Vec<u32>> {
    let writes = |pid: &u32| {
        open_files(*pid).filter(|link| file_of(link) == Some((device, inode))).any(|link| {
            let number = link.file_name().unwrap_or_default().to_string_lossy();
            let path = format!("/proc/{pid}/fdinfo/{number}");
            let info = fs::read_to_string(path).unwrap_or_default();
            let flags = field(&info, "flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
            flags.is_some_and(|flags| flags & OFlag::O_ACCMODE.bits() != OFlag::O_RDONLY.bits())
        })
    };
    Ok(visible()?.into_iter().filter(writes).collect())
}

/// The program of this process, to compare with other processes.
#[derive(Debug)]
pub struct OwnProgram {
    file: Option<(u64, u64)>,
    path: Option<PathBuf>,
}

impl OwnProgram {
    /// Looks up the program of this process.
    pub fn find() -> Self {
        let own = Path::new("/proc/self/exe");
        Self { file: file_of(own), path: path_of(own) }
    }

    /// Whether a process runs this program. A program that an upgrade replaced counts, and so does
    /// its replacement.
    pub fn is_of(&self, pid: u32) -> bool {
        simulated!(|kernel| kernel.is_canal(pid));
        let link = PathBuf::from(format!("/proc/{pid}/exe"));
        self.file.is_some() && file_of(&link) == self.file
            || self.path.is_some() && path_of(&link) == self.path
    }
}

/// The device and the inode of the file at the end of a link, which identify it.
pub fn file_of(link: &Path) -> Option<(u64, u64)> {
    stat(link).ok().map(|it| id_of(&it))
}

fn id_of(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The path of the program at the end of a link in /proc, without the suffix that the kernel adds
/// if a newer file has replaced it.
pub fn path_of(link: &Path) -> Option<PathBuf> {
    let path = fs::read_link(link).ok()?.into_os_string().into_vec();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path).to_vec();
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::rerun::wait_until;

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

    #[test]
    fn a_folder_is_shown_to_the_user_of_the_process_only() {
        let own = user::geteuid().as_raw();
        let here = std::env::current_dir().unwrap();
        let pid = std::process::id();
        assert_eq!(folder(pid, Some(own)), Some(here.clone()));
        assert_eq!(folder(pid, None), Some(here));
        assert_eq!(folder(pid, Some(own + 1)), None);
    }

    #[test]
    fn who_has_a_fifo_open_for_writing_is_found_and_a_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)
            .unwrap();
        let id = stat(&path).unwrap();
        let mut open = fs::OpenOptions::new();
        let both = open.read(true).write(true).open(&path).unwrap();
        let mut cat = Command::new("cat");
        let reads = fs::OpenOptions::new().read(true).open(&path).unwrap();
        let mut reader = cat.stdin(reads).stdout(Stdio::null()).spawn().unwrap();
        // A program that another test starts has a copy for a short time.
        let writers = || writers_of(id.st_dev, id.st_ino).unwrap();
        assert!(writers().contains(&std::process::id()));
        assert!(!writers().contains(&reader.id()));
        drop(both);
        wait_until("nobody writes", || writers().is_empty());
        reader.wait().unwrap();
    }
}
