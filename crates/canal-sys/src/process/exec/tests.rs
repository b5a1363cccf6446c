use std::path::PathBuf;

use super::*;
use crate::process::find_command::tests::put;
use crate::rerun;

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
