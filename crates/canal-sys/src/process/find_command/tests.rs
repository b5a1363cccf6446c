use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;
use crate::rerun;

/// Writes a file. Another process does: a child of a parallel test would inherit the descriptor,
/// and the kernel executes no file that a process has open for writing.
pub(in crate::process) fn put(file: &Path, mode: u32, text: &str) {
    let script = r#"printf %s "$2" >"$0" && chmod "$1" "$0""#;
    let mut writer = Command::new("sh");
    writer.args(["-c", script]).arg(file).args([&format!("{mode:o}"), text]);
    assert!(writer.status().unwrap().success());
}

/// `one` contains an `x` that cannot be executed. `two` contains an `x` that can, and the folder
/// `y`.
fn folders() -> (tempfile::TempDir, OsString) {
    let top = tempfile::tempdir().unwrap();
    let (one, two) = (top.path().join("one"), top.path().join("two"));
    fs::create_dir(&one).unwrap();
    fs::create_dir_all(two.join("y")).unwrap();
    put(&one.join("x"), 0o644, "");
    put(&two.join("x"), 0o755, "");
    let path = [one.as_os_str(), OsStr::new(":/nowhere:"), two.as_os_str()];
    (top, path.into_iter().collect())
}

fn refused(lookup: Result<PathBuf, NotRun>) -> (PathBuf, i32) {
    let not_run = lookup.unwrap_err();
    assert!(!not_run.is_not_found(), "{not_run:?}");
    (not_run.command.into(), not_run.error.raw_os_error().unwrap())
}

#[track_caller]
fn assert_not_found(lookup: Result<PathBuf, NotRun>, name: &str) {
    assert_eq!(lookup.unwrap_err().to_string(), format!("{name}: command not found"));
}

#[test]
fn the_first_executable_file_along_path_is_found() {
    let (top, path) = folders();
    let file = lookup_along(OsStr::new("x"), Some(&path)).unwrap();
    assert_eq!(file, top.path().join("two/x"));
}

#[test]
fn a_file_that_cannot_be_executed_is_reported_if_no_other_is_found() {
    let (top, _) = folders();
    let one = top.path().join("one");
    let path = [one.as_os_str(), OsStr::new(":/nowhere")].into_iter().collect::<OsString>();
    let refused = refused(lookup_along(OsStr::new("x"), Some(&path)));
    assert_eq!(refused, (one.join("x"), libc::EACCES));
}

#[test]
fn a_folder_is_not_executable() {
    let (top, path) = folders();
    let folder = top.path().join("two/y");
    assert_eq!(refused(lookup_along(OsStr::new("y"), Some(&path))), (folder.clone(), libc::EACCES));
    assert_eq!(refused(lookup(folder.as_os_str())), (folder, libc::EACCES));
}

#[test]
fn a_missing_program_is_not_found() {
    let (top, path) = folders();
    for name in ["z", "", "./not/there", "/not/there"] {
        assert_not_found(lookup_along(OsStr::new(name), Some(&path)), name);
    }
    symlink(top.path().join("gone"), top.path().join("two/dangling")).unwrap();
    assert_not_found(lookup_along(OsStr::new("dangling"), Some(&path)), "dangling");
}

/// An ordinary user may keep root's PATH after `su` without `-`. Root can search every folder.
#[test]
fn a_folder_that_cannot_be_searched_holds_no_command() {
    const AS_ANOTHER_USER: &str = "process::find_command::tests::looks_as_another_user";
    let (top, _) = folders();
    fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(top.path().join("two"), fs::Permissions::from_mode(0o600)).unwrap();
    let status = rerun::command(AS_ANOTHER_USER, "").env("FOLDERS", top.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "a scene of the test above"]
fn looks_as_another_user() {
    if !rerun::plays("process::find_command::tests::looks_as_another_user") {
        return;
    }
    if geteuid().is_root() {
        nix::unistd::setuid(nix::unistd::Uid::from_raw(12345)).unwrap();
    }
    let top = PathBuf::from(std::env::var_os("FOLDERS").unwrap());
    let (one, two) = (top.join("one"), top.join("two"));
    let along = |folders: &[&Path]| std::env::join_paths(folders).unwrap();
    assert_not_found(lookup_along(OsStr::new("x"), Some(&along(&[&two]))), "x");
    let lookup = lookup_along(OsStr::new("x"), Some(&along(&[&two, &one])));
    assert_eq!(refused(lookup), (one.join("x"), libc::EACCES));
}

#[test]
fn a_name_with_a_slash_is_taken_as_it_is() {
    let (top, path) = folders();
    let file = top.path().join("one/../two/x");
    assert_eq!(lookup_along(file.as_os_str(), Some(&path)).unwrap(), file);
    let below = top.path().join("two/x/below");
    assert_eq!(refused(lookup(below.as_os_str())).1, libc::ENOTDIR);
}

#[test]
fn a_loop_of_symbolic_links_is_reported_as_that() {
    let (top, path) = folders();
    let circle = top.path().join("one/circle");
    symlink(&circle, &circle).unwrap();
    let lookup = lookup_along(OsStr::new("circle"), Some(&path));
    assert_eq!(refused(lookup), (circle, libc::ELOOP));
}

#[test]
fn without_path_the_usual_folders_are_looked_in() {
    let file = lookup_along(OsStr::new("sh"), None).unwrap();
    assert!(file == Path::new("/bin/sh") || file == Path::new("/usr/bin/sh"), "{file:?}");
}

#[test]
fn an_empty_element_of_path_is_the_current_folder() {
    // Tests run in the folder of Cargo.toml, which has no executable file. So the test expects a
    // file that is found and refused.
    for path in ["", ":/nowhere", "/nowhere:", "/nowhere::/nowhere"] {
        let lookup = lookup_along(OsStr::new("Cargo.toml"), Some(OsStr::new(path)));
        assert_eq!(refused(lookup), ("Cargo.toml".into(), libc::EACCES), "{path:?}");
    }
}
