use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn own() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_missing_directory_is_made_for_us_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    assert!(matches!(open_private(&path, own(), false), Err(DirError::Missing(p)) if p == path));
    let dir = open_private(&path, own(), true).unwrap();
    assert_eq!(mode(&path), 0o700);
    let opened = fstat(dir.as_fd()).unwrap();
    assert_eq!(opened.st_ino, lstat(&path).unwrap().st_ino);
    assert!(open_private(&path, own(), true).is_ok(), "and found the next time");
    assert!(is_private(&path, own()));
}

#[test]
fn only_the_last_directory_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/new");
    let error = open_private(&path, own(), true).unwrap_err();
    assert!(matches!(error, DirError::Missing(p) if p == folder.path().join("none")));
}

#[test]
fn a_link_is_refused_with_and_without_a_slash_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("target"), folder.path().join("link"));
    fs::create_dir(&target).unwrap();
    symlink(&target, &link).unwrap();
    for end in ["", "/", "/.", "//"] {
        let mut path = link.clone().into_os_string();
        path.push(end);
        let error = open_private(Path::new(&path), own(), true).unwrap_err();
        assert!(matches!(error, DirError::Symlink(_)), "{end}: {error}");
        assert!(!is_private(Path::new(&path), own()), "{end}");
    }
    fs::remove_dir(&target).unwrap();
    let error = open_private(&link, own(), true).unwrap_err();
    assert!(matches!(error, DirError::Symlink(_)), "dangling: {error}");
    assert!(!target.exists(), "nothing is made behind a link");
}

#[test]
fn a_file_is_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let error = open_private(&path, own(), true).unwrap_err();
    assert!(matches!(error, DirError::NotADirectory(_)), "{error}");
    assert!(!is_private(&path, own()));
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("open");
    fs::create_dir(&path).unwrap();
    for bits in [0o777, 0o770, 0o702, 0o1777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        let error = open_private(&path, own(), true).unwrap_err();
        assert!(matches!(error, DirError::Open(_, found) if found == bits), "{bits:o}: {error}");
        assert!(!is_private(&path, own()), "{bits:o}");
    }
    for bits in [0o700, 0o755, 0o2750] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        assert!(open_private(&path, own(), true).is_ok(), "{bits:o}");
        assert!(is_private(&path, own()), "{bits:o}");
    }
}

#[test]
fn a_directory_of_another_user_is_refused_with_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let other = own() + 1;
    let error = open_private(folder.path(), other, true).unwrap_err();
    let expected =
        format!("{} belongs to uid {}, not to uid {other}", folder.path().display(), own());
    assert_eq!(error.to_string(), expected);
    assert!(!is_private(folder.path(), other));
}

#[test]
fn a_directory_of_another_user_that_cannot_be_opened_is_reported_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let error = not_opened(folder.path(), own() + 1, Errno::EACCES);
    assert!(matches!(error, DirError::Foreign(_, owner, _) if owner == own()), "{error}");
    let error = not_opened(folder.path(), own(), Errno::EACCES);
    assert!(matches!(error, DirError::Io(..)), "{error}");
}
