use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;
use crate::rerun;

/// Writes a file. Another process does: a child of a parallel test would inherit the descriptor,
/// and the kernel executes no file that a process has open for writing.
fn put(file: &Path, mode: u32, text: &str) {
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
    const AS_ANOTHER_USER: &str = "process::exec::tests::looks_as_another_user";
    let (top, _) = folders();
    fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(top.path().join("two"), fs::Permissions::from_mode(0o600)).unwrap();
    let status = rerun::command(AS_ANOTHER_USER, "").env("FOLDERS", top.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "a scene of the test above"]
fn looks_as_another_user() {
    if !rerun::plays("process::exec::tests::looks_as_another_user") {
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

const BECOMES: &str = "process::exec::tests::becomes";

/// Plays `becomes`, which does what `WHAT` names. Returns what the new program wrote to its stdout.
fn become_what(what: &str, file: &Path) -> Vec<u8> {
    let mut command = rerun::command(BECOMES, "");
    let output = command.env("WHAT", what).env("FILE", file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = output.stdout;
    let start = text.windows(6).position(|window| window == b"START\n");
    text[start.expect("the scene began") + 6..].to_vec()
}

#[test]
#[ignore = "a scene of the tests below"]
fn becomes() {
    if !rerun::plays(BECOMES) {
        return;
    }
    let file = PathBuf::from(std::env::var_os("FILE").unwrap());
    let cat = |argv0: &str| [argv0.into(), "/proc/self/environ".into()];
    let odd = ["B\u{7}=2", "A=1", "NOTHING", "=odd", "CANAL_KEY=old", "", "A=again"];
    println!("START");
    let error = match std::env::var("WHAT").unwrap().as_str() {
        // First runs this scene again in an odd environment, then cat, which shows the environment
        // that remains.
        "environment" => {
            let program = std::env::current_exe().unwrap();
            let mut set: Vec<_> = odd.iter().map(|entry| CString::new(*entry).unwrap()).collect();
            set.push(CString::new(*b"BYTES\xff=\xfe").unwrap());
            set.push(c"CANAL_SLOT=7".into());
            set.push(c"CANAL_KEY=twice".into());
            set.push(entry(OsStr::new("CANAL_TEST_SCENE"), OsStr::new(BECOMES)).unwrap());
            set.push(c"TEST_APART=yes".into());
            set.push(c"WHAT=cat".into());
            set.push(c"FILE=/bin/cat".into());
            let argv = ["x", "--ignored", "--exact", "--nocapture", BECOMES].map(OsString::from);
            Prepared::new(&program, &argv, set).unwrap().exec().into()
        }
        "cat" => {
            let ours =
                [("CANAL_KEY", Some("new".into())), ("CANAL_SLOT", None), ("CANAL_NEW", None)];
            exec(&file, &cat("cat"), &ours.map(|(name, value)| (name.into(), value)))
        }
        "script" => {
            let argv = [b"name".as_slice(), b"a b", b"\xff", b""];
            let argv = argv.map(|argument| OsStr::from_bytes(argument).to_owned());
            exec(&file, &argv, &[])
        }
        _ => exec(&file, &["x".into()], &[]),
    };
    println!("{:?}", error.raw_os_error());
}

#[test]
fn the_environment_is_passed_on_byte_for_byte_and_in_order() {
    let shown = become_what("environment", Path::new(""));
    // The second START belongs to the inner scene.
    let start = shown.windows(6).position(|window| window == b"START\n").unwrap();
    let expected = b"B\x07=2\0A=1\0NOTHING\0=odd\0\0A=again\0BYTES\xff=\xfe\0\
        CANAL_TEST_SCENE=process::exec::tests::becomes\0TEST_APART=yes\0WHAT=cat\0\
        FILE=/bin/cat\0CANAL_KEY=new\0";
    let shown = &shown[start + 6..];
    assert_eq!(shown, expected, "{}", shown.escape_ascii());
}

#[test]
fn a_script_without_a_first_line_that_names_its_shell_is_run_by_sh() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    put(&script, 0o755, "printf '%s|' \"$0\" \"$@\"\n");
    let mut expected = script.as_os_str().as_bytes().to_vec();
    expected.extend(b"|a b|\xff||");
    assert_eq!(become_what("script", &script), expected);
}

#[test]
fn a_file_that_cannot_be_executed_is_an_error_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let starts_with = |file: &Path, errno: i32| {
        let shown = become_what("", file);
        let expected = format!("Some({errno})\n");
        assert!(shown.starts_with(expected.as_bytes()), "{}", shown.escape_ascii());
    };
    starts_with(&folder.path().join("none"), libc::ENOENT);
    put(&folder.path().join("text"), 0o644, "");
    starts_with(&folder.path().join("text"), libc::EACCES);
    put(&folder.path().join("lost"), 0o755, "#!/not/there\n");
    starts_with(&folder.path().join("lost"), libc::ENOENT);
}

#[test]
fn an_argument_with_a_nul_is_refused() {
    let error = exec(Path::new("/bin/true"), &["a\0b".into()], &[]);
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_name_of_an_entry_is_a_whole_one() {
    for (entry, name) in [(c"A=b", "A"), (c"A=", "A"), (c"A", "A"), (c"AB=c=d", "AB"), (c"", "")] {
        assert_eq!(name_of(entry), name.as_bytes(), "{entry:?}");
    }
}
