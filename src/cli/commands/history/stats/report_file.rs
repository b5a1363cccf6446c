//! Writes a report to a file: completely or not at all, and without overwriting a file by accident.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::cli::{Failed, Result, stdout};

/// The path that means standard output.
const STDOUT: &str = "-";

/// Writes a report. Replaces an existing file only with `force`, and only if it is a regular file.
pub(super) fn write(path: &Path, text: &str, force: bool) -> Result {
    if path == Path::new(STDOUT) {
        return stdout::print_or_fail(text);
    }
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.is_file() {
            return Err(Failed::new(format!("{} is not a regular file", path.display()))
                .hint("name another file, or `-` for standard output"));
        }
        if !force {
            return Err(exists(path));
        }
    }
    write_whole(path, text, force).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => Failed::new(format!("cannot write {}: {error}", path.display())),
    })
}

fn exists(path: &Path) -> Failed {
    Failed::new(format!("{} already exists", path.display())).hint("replace it with `--force`")
}

/// Writes the text to another file in the same directory, and gives it its name once it is
/// complete.
fn write_whole(path: &Path, text: &str, force: bool) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(ErrorKind::InvalidInput.into()) };
    let name = format!(".{}.{}.new", name.to_string_lossy(), std::process::id());
    let beside = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let named = written.and_then(|()| {
        if force {
            return fs::rename(&beside, path);
        }
        match fs::hard_link(&beside, path) {
            // If another program has taken the name in the meantime, it keeps it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            // The file system does not support hard links.
            Err(_) => fs::rename(&beside, path),
            Ok(()) => fs::remove_file(&beside),
        }
    });
    if named.is_err() {
        let _ = fs::remove_file(&beside);
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_only_by_force_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.svg");
        write(&path, "one", false).unwrap();
        let refused = write(&path, "two", false).unwrap_err();
        assert!(refused.message.ends_with("report.svg already exists"), "{refused:?}");
        assert_eq!(refused.hint.as_deref(), Some("replace it with `--force`"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        write(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names(dir.path()), ["report.svg"]);
    }

    #[test]
    fn no_link_is_followed_and_no_directory_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &dangling).unwrap();
        for path in [&link, &dangling, dir.path()] {
            for force in [false, true] {
                let refused = write(path, "x", force).unwrap_err();
                assert!(refused.message.ends_with("is not a regular file"), "{refused:?}");
            }
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert_eq!(names(dir.path()), ["dangling", "link", "target"]);
        let nowhere = write(&dir.path().join("no/report.svg"), "x", false).unwrap_err();
        assert!(nowhere.message.starts_with("cannot write "), "{nowhere:?}");
    }
}
