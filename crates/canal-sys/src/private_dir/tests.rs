use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn own() -> u32 {
    crate::process::user::geteuid().as_raw()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_missing_directory_is_made_for_us_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    assert!(
        matches!(open_private(&path, own(), IfMissing::Fail), Err(DirError::Missing(p)) if p == path)
    );
    let dir = open_private(&path, own(), IfMissing::Create).unwrap();
    assert_eq!(mode(&path), 0o700);
    let opened = fstat(dir.as_fd()).unwrap();
    assert_eq!(opened.st_ino, lstat(&path).unwrap().st_ino);
    assert!(open_private(&path, own(), IfMissing::Create).is_ok(), "and found the next time");
    assert!(is_private(&path, own()));
}

#[test]
fn only_the_last_directory_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/new");
    let error = open_private(&path, own(), IfMissing::Create).unwrap_err();
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
        let error = open_private(Path::new(&path), own(), IfMissing::Create).unwrap_err();
        assert!(matches!(error, DirError::Symlink(_)), "{end}: {error}");
        assert!(!is_private(Path::new(&path), own()), "{end}");
    }
    fs::remove_dir(&target).unwrap();
    let error = open_private(&link, own(), IfMissing::Create).unwrap_err();
    assert!(matches!(error, DirError::Symlink(_)), "dangling: {error}");
    assert!(!target.exists(), "nothing is made behind a link");
}

#[test]
fn a_file_is_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let error = open_private(&path, own(), IfMissing::Create).unwrap_err();
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
        let error = open_private(&path, own(), IfMissing::Create).unwrap_err();
        assert!(matches!(error, DirError::Open(_, found) if found == bits), "{bits:o}: {error}");
        assert!(!is_private(&path, own()), "{bits:o}");
    }
    for bits in [0o700, 0o755, 0o2750] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        assert!(open_private(&path, own(), IfMissing::Create).is_ok(), "{bits:o}");
        assert!(is_private(&path, own()), "{bits:o}");
    }
}

#[test]
fn a_directory_of_another_user_is_refused_with_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let other = own() + 1;
    let error = open_private(folder.path(), other, IfMissing::Create).unwrap_err();
    let expected =
        format!("{} belongs to uid {}, not to uid {other}", folder.path().display(), own());
    assert_eq!(error.to_string(), expected);
    assert!(!is_private(folder.path(), other));
}

#[test]
fn a_directory_of_another_user_that_cannot_be_opened_is_reported_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let error = not_opened(folder.path(), own() + 1, Errno::ACCESS);
    assert!(matches!(error, DirError::Foreign(_, owner, _) if owner == own()), "{error}");
    let error = not_opened(folder.path(), own(), Errno::ACCESS);
    assert!(matches!(error, DirError::Io(..)), "{error}");
}

#[test]
fn a_directory_of_ours_is_made_private_whatever_its_mode_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("journal.0"), "").unwrap();
    for bits in [0o777, 0o1777, 0o770, 0o755, 0o500, 0o300, 0o000, 0o700] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        make_private(&path, own()).unwrap();
        assert_eq!(mode(&path), 0o700, "{bits:o}");
        assert!(is_private(&path, own()));
    }
}

#[test]
fn what_is_not_a_directory_of_ours_keeps_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let (target, link, file) =
        (folder.path().join("target"), folder.path().join("link"), folder.path().join("file"));
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&target, &link).unwrap();
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for path in [&link, &link.join("."), &file, &folder.path().join("none")] {
        make_private(path, own()).unwrap();
    }
    make_private(&target, own() + 1).unwrap();
    assert_eq!((mode(&target), mode(&file)), (0o755, 0o644));
}

#[test]
fn a_directory_in_which_others_left_something_stays_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let (elsewhere, linked) = (folder.path().join("elsewhere"), path.join("journal.0"));
    fs::write(&elsewhere, "").unwrap();
    fs::hard_link(&elsewhere, &linked).unwrap();
    for _ in 0..2 {
        let error = make_private(&path, own()).unwrap_err();
        assert!(matches!(&error, DirError::Linked(file) if *file == linked), "{error}");
        assert!(!is_private(&path, own()), "{:o}", mode(&path));
    }
    fs::remove_file(&elsewhere).unwrap();
    make_private(&path, own()).unwrap();
    assert!(is_private(&path, own()));
    if own() == 0 {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::chown(&linked, Some(12345), None).unwrap();
        for _ in 0..2 {
            let error = make_private(&path, own()).unwrap_err();
            assert!(matches!(&error, DirError::Planted(_, 12345)), "{error}");
            assert!(!is_private(&path, own()));
        }
    }
}

#[test]
fn a_file_system_that_takes_no_directories_is_not_said_to_be_missing() {
    let said = |path: &str| {
        open_private(Path::new(path), own(), IfMissing::Create).unwrap_err().to_string()
    };
    assert_eq!(
        said("/proc/nope"),
        "/proc/nope does not exist, and canal cannot create a directory in /proc"
    );
    assert_eq!(said("/proc/nope/deeper"), "/proc/nope does not exist");
}

/// An ordinary open of a FIFO that nobody writes to would wait for a writer.
#[test]
fn a_name_is_opened_without_an_end_of_its_fifo() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    make_fifo(&fifo).unwrap();
    let opened = open_path(&fifo).unwrap();
    assert_eq!(fstat(&opened).unwrap().st_ino, lstat(&fifo).unwrap().st_ino);
    let flags = OFlags::WRONLY | OFlags::NONBLOCK;
    let writer = open(&fifo, flags, Mode::empty());
    assert_eq!(writer.unwrap_err(), Errno::NXIO, "nobody has the other end open");
    let link = folder.path().join("link");
    symlink(&fifo, &link).unwrap();
    let opened = open_path(&link).unwrap();
    assert_eq!(fstat(&opened).unwrap().st_ino, lstat(&link).unwrap().st_ino);
}
