//! Replaces a file as a whole: at every moment, even during a power cut, its name leads to the old
//! content or to the new content.
//!
//! Invariant: a temporary file is locked by its writer while it is written. One without a lock was
//! left by a writer that was killed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::disk;
use canal_sys::kernel::random;

/// Gives the file `name` in `dir` this content: writes a temporary file, syncs it, renames it, and
/// syncs the directory. Returns the new file, open for writing.
///
/// # Errors
/// Names the file. It still has the old content, or perhaps the new content if only the directory
/// could not be synced.
pub fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<File> {
    let replaced = match try_replace(dir, name, content) {
        // Another process removed it before it was locked, or removed the directory.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create_dir(dir).and_then(|()| try_replace(dir, name, content))
        }
        other => other,
    };
    replaced.map_err(|error| named(&dir.join(name), &error))
}

/// Creates a directory that only its user can enter, and its parents, unless it exists.
pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn try_replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<File> {
    let beside = dir.join(format!("{name}.new-{:016x}", random::u64()?));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(&beside)?;
    let written = fs2::FileExt::lock_exclusive(&file)
        .and_then(|()| disk::write(&file, content, 0))
        .and_then(|()| disk::sync(&file))
        .and_then(|()| disk::rename(&beside, &dir.join(name)))
        .and_then(|()| disk::sync_dir(dir));
    if written.is_err() {
        // It already has its new name if only the directory could not be synced.
        let _ = disk::remove(&beside);
    }
    written.map(|()| file)
}

/// Removes the temporary files that killed writers left.
pub fn sweep(dir: &Path, name: &str) {
    let prefix = format!("{name}.new-");
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(|found| found.starts_with(&prefix)) {
            continue;
        }
        let path = entry.path();
        let (name, removed) = (path.display(), remove_unlocked(&path));
        match removed {
            Ok(()) => tracing::info!("removed {name}, which a killed daemon left behind"),
            Err(error) => tracing::debug!(%error, "could not remove {name}"),
        }
    }
}

fn remove_unlocked(path: &Path) -> io::Result<()> {
    let Some(file) = disk::open_plain(OpenOptions::new().write(true), path)? else { return Ok(()) };
    fs2::FileExt::try_lock_exclusive(&file)?;
    fs::remove_file(path)
}

/// An error that names the file.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "state.json";

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_that_another_process_removed_is_created_again() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("state/canal");
        for content in ["one", "two"] {
            replace(&dir, NAME, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(dir.join(NAME)).unwrap(), content);
            fs::remove_dir_all(outer.path().join("state")).unwrap();
        }
    }

    #[test]
    fn only_files_of_killed_writers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["state.json", "state.json.new-4711", "state.json.new-0a", "state.json.newer"] {
            fs::write(dir.path().join(name), "half").unwrap();
        }
        fs::create_dir(dir.path().join("state.json.new-dir")).unwrap();
        let written = File::options().write(true).open(dir.path().join("state.json.new-0a"));
        let written = written.unwrap();
        fs2::FileExt::lock_exclusive(&written).unwrap();
        sweep(dir.path(), NAME);
        let stay = ["state.json", "state.json.new-0a", "state.json.new-dir", "state.json.newer"];
        assert_eq!(names(dir.path()), stay);
        drop(written);
        // A process that another test starts has a copy of the lock until it executes its program.
        canal_sys::rerun::wait_until("nothing has the lock", || {
            sweep(dir.path(), NAME);
            !names(dir.path()).contains(&"state.json.new-0a".into())
        });
        assert_eq!(names(dir.path()), ["state.json", "state.json.new-dir", "state.json.newer"]);
    }

    #[test]
    fn a_replacement_that_is_stopped_anywhere_leaves_the_old_content_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        for budget in 1.. {
            replace(dir.path(), NAME, b"the old one").unwrap();
            let (replaced, stopped) = crate::sim::disk_faults::after(budget, || {
                replace(dir.path(), NAME, b"the new one")
            });
            let content = fs::read(dir.path().join(NAME)).unwrap();
            if replaced.is_ok() {
                assert_eq!(content, b"the new one");
            } else {
                assert!([&b"the old one"[..], b"the new one"].contains(&content.as_slice()));
            }
            canal_sys::rerun::wait_until("nothing is left behind", || {
                sweep(dir.path(), NAME);
                names(dir.path()) == [NAME]
            });
            if !stopped {
                return;
            }
        }
    }
}
