//! Creates files for root, without overwriting any or following any link on the way.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

/// Creates a file with this content and mode, and its missing parent directories (0755). The name
/// appears with the whole content, or not at all.
///
/// # Errors
/// A message for the user: the name already exists, a directory is a link, or a system call failed.
pub(super) fn create(path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let name = path.file_name().unwrap_or_default();
    let dir = directory(path.parent().unwrap_or(Path::new("/")))?;
    let mut beside = OsStr::new(".").to_owned();
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let fd = openat(&dir, beside.as_os_str(), flags | OFlag::O_NOFOLLOW, Mode::S_IRUSR)
        .map_err(|error| failed(error.into()))?;
    let mut file = File::from(fd);
    let written = file
        .write_all(content)
        .and_then(|()| Ok(fchmod(&file, Mode::from_bits_truncate(mode))?))
        .and_then(|()| file.sync_all())
        // Unlike a rename, this fails if the name exists.
        .and_then(|()| Ok(linkat(&dir, beside.as_os_str(), &dir, name, AtFlags::empty())?));
    let _ = unlinkat(&dir, beside.as_os_str(), UnlinkatFlags::NoRemoveDir);
    written.map_err(failed)
}

/// Opens a directory by its absolute path, and creates the missing parts of the path.
fn directory(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let failed = |error: Errno| match error {
        Errno::ELOOP | Errno::ENOTDIR => {
            format!("{}: part of the path is a symbolic link or not a directory", path.display())
        }
        error => format!("{}: {}", path.display(), std::io::Error::from(error)),
    };
    let mut dir = open("/", flags, Mode::empty()).map_err(failed)?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let mode = Mode::from_bits_truncate(0o755);
        let made = match mkdirat(&dir, name, mode) {
            Err(Errno::EEXIST) => Ok(false),
            made => made.map(|()| true),
        };
        let made = made.map_err(failed)?;
        dir = openat(&dir, name, flags, Mode::empty()).map_err(failed)?;
        if made {
            // Independent of the umask.
            fchmod(&dir, mode).map_err(failed)?;
        }
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_created_whole_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        create(&path, b"content", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
        let error = create(&path, b"other", 0o644).unwrap_err();
        assert!(error.contains("File exists"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, dir.path().join("link")).unwrap();
        let error = create(&dir.path().join("link/file"), b"x", 0o644).unwrap_err();
        assert!(error.contains("symbolic link"), "{error}");
        symlink(elsewhere.join("made"), dir.path().join("file")).unwrap();
        create(&dir.path().join("file"), b"x", 0o644).unwrap_err();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}
