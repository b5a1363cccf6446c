//! The input that the command line accepts and refuses, before it calls a daemon.

use assert_cmd::cargo::cargo_bin_cmd;
use assert_cmd::{Command, assert::Assert};
use tempfile::TempDir;

use crate::world::process::BOUND;

/// Runs canal with a socket where no daemon is running and none can start.
fn canal(dir: &TempDir, args: &[&str]) -> Assert {
    let mut canal: Command = cargo_bin_cmd!("canal");
    canal.arg("--no-start").arg("--socket").arg(dir.path().join("s")).args(args);
    canal.timeout(BOUND);
    canal.assert()
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

#[test]
fn a_wrong_command_line_is_125_one_line_and_a_hint() {
    let dir = TempDir::new().unwrap();
    for (args, message) in [
        (&[][..], "no command given; use one such as run, acquire, release or status"),
        (&["run", "-k", "x"], "no command given; give it after the options"),
        (&["run", "--", "true"], "no lock given; give --key KEY"),
        (&["acquire"], "no lock given; give --key KEY"),
        (&["run", "-k", "x", "--bogus", "true"], "unknown option `--bogus`"),
        (&["run", "-k", "x", "--per", "0", "true"], "--per 0: must be at least 1"),
        (
            &["run", "-k", "x", "--per", "1", "--buckets", "-1", "true"],
            "--buckets -1: must not be negative",
        ),
        (&["run", "-k", "x", "--slots", "0", "true"], "--slots 0: must be at least 1"),
        (&["run", "-k", "x", "--count", "0", "true"], "--count 0: must be at least 1"),
        (&["run", "-k", "x", "--buckets", "2", "true"], "--buckets needs --per"),
        (&["run", "-k", "x", "-k", "x", "true"], "--key x is given twice"),
        (&["run", "--read", "x", "--read", "x", "true"], "--read x is given twice"),
        (&["run", "-k", "x", "--write", "x", "true"], "`x` is given with --key and with --write"),
        (
            &["acquire", "--write", "x", "--slots", "2"],
            "--per, --buckets, --slots and --count need a --key",
        ),
        (
            &["run", "--key-literal", "/fix=2"],
            "--key-literal /fix=2: a key cannot begin with `/`; use `fix=2`",
        ),
        (&["run", "--read", "x/", "true"], "--read x/: a key cannot end with `/`; use `x`"),
        (
            &["status", "--why", "make"],
            "--why make: neither a process number nor a session such as s17",
        ),
        (&["status", "--why", "5", "db"], "--why and KEY cannot be given together"),
        (&["status", "--graph", "--watch"], "--graph and --watch cannot be given together"),
        (&["run", "-k", "/x", "true"], "--key /x: a key cannot begin with `/`; use `x`"),
        (
            &["run", "-k", "x", "-c", "true", "more"],
            "-c takes the whole command, but `more` follows it",
        ),
        (&["run", "-k", "x", "--timeout", "3", "true"], "unknown option `--timeout`"),
        (&["run", "-k", "x", "--signal", "INT", "true"], "--signal needs --max-run"),
        (&["acquire", "-k", "x", "y"], "`y` cannot follow options that name keys"),
        (&["acquire", "-k", "x", "-E", "0"], "-E 0 would let the script continue without the lock"),
        (&["acquire", "-k", "x", "--pid", "0"], "--pid 0: there is no process 0"),
        (&["acquire", "-k", "x", "--pid", "4194305"], "there is no process 4194305"),
        (&["release"], "no lock given; give its KEY, --all, or --handle"),
        (&["release", "--force"], "--force needs KEY or --token"),
        (
            &["resize", "x"],
            "no size given; give --per P --buckets B, --slots N, --forget, --pause, --resume, \
             --without N or --with N",
        ),
        (&["resize", "x", "--pause", "--resume"], "--pause and --resume cannot be given together"),
        (
            &["resize", "x", "--pause", "--slots", "2"],
            "--pause and --slots cannot be given together",
        ),
        (&["status", "a//b"], "KEY a//b: a key cannot have an empty component; `//` is at byte 1"),
    ] {
        let assert = canal(&dir, args).code(125).stdout("");
        let said = stderr(&assert);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], format!("canal: {message}"), "{args:?}");
        assert!(lines.len() <= 2 && lines[1..].iter().all(|l| l.starts_with("hint: ")), "{said}");
    }
}

#[test]
fn long_and_odd_keys_are_refused_with_their_fault() {
    let dir = TempDir::new().unwrap();
    let long = "x".repeat(2048);
    for (key, fault) in [
        (long.as_str(), "a key can have at most 1024 bytes; this one has 2048"),
        ("a\nb", "this one has U+000A at byte 1"),
        ("a//b", "a key cannot have an empty component"),
        ("", "a key cannot be empty"),
    ] {
        let assert = canal(&dir, &["run", "-k", key, "true"]).code(125);
        let said = stderr(&assert);
        assert!(said.contains(fault), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
    }
}

#[test]
fn a_command_that_cannot_run_is_an_error_before_a_daemon_is_called() {
    let dir = TempDir::new().unwrap();
    let missing = canal(&dir, &["run", "-k", "x", "no-such-command"]).code(127);
    assert_eq!(stderr(&missing), "canal: no-such-command: command not found\n");
    canal(&dir, &["run", "-k", "x", ""]).code(127);
    let denied = canal(&dir, &["run", "-k", "x", "/etc/passwd"]).code(126);
    assert_eq!(stderr(&denied), "canal: /etc/passwd: cannot be executed: Permission denied\n");
}

#[test]
fn what_only_a_shell_understands_is_pointed_to_c() {
    let dir = TempDir::new().unwrap();
    let hint = |args: &[&str]| {
        let said = stderr(&canal(&dir, args).failure());
        said.lines().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(
        hint(&["run", "-k", "x", "echo hi && ls"]),
        "hint: give a command line for the shell after -c: -c 'echo hi && ls'"
    );
    let string = "hint: give a command line for the shell after -c: -c STRING";
    assert_eq!(hint(&["run", "-k", "x", "echo 'hi' | cat"]), string);
    assert_eq!(hint(&["run", "-k", "x", &"x && ".repeat(99)]), string);
    assert_eq!(hint(&["run", "-k", "x", "cd", "/tmp"]), string);
    assert_eq!(hint(&["run", "-k", "x", "no-such-command", "a && b"]), "");
}

#[test]
fn a_key_before_the_dashes_is_pointed_to_its_option() {
    let dir = TempDir::new().unwrap();
    let said = stderr(&canal(&dir, &["run", "nightly", "--", "./x.sh"]).code(125));
    assert_eq!(
        said,
        "canal: no lock given; give --key KEY\n\
         hint: give the key with an option: canal run --key nightly -- COMMAND\n"
    );
}

#[test]
fn help_shows_examples_and_alternatives() {
    let dir = TempDir::new().unwrap();
    for verb in ["run", "acquire"] {
        let assert = canal(&dir, &[verb, "-h"]).code(0);
        let shown = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
        for part in ["-k KEY | --read KEY | --write KEY", "-j N | --per P [--buckets B]", "-n | -w"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(shown.contains(&format!("Examples:\n  canal {verb} ")), "{shown}");
    }
}

#[test]
fn without_a_daemon_and_with_no_start_canal_fails_with_a_hint() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("s");
    for args in [
        &["run", "-k", "x", "true"][..],
        &["acquire", "-k", "x"],
        &["acquire", "x=2:1", "-n"],
        &["release", "x"],
        &["status"],
        &["resize", "x", "--slots", "3"],
    ] {
        let said = stderr(&canal(&dir, args).code(125).stdout(""));
        assert!(
            said.starts_with(&format!("canal: no daemon is running at {}\n", socket.display())),
            "{said}"
        );
        assert!(said.contains("hint: "), "{said}");
    }
    // `-q` suppresses waits and notes, but not failures.
    let said = stderr(&canal(&dir, &["-q", "status"]).code(125));
    assert!(said.starts_with("canal: no daemon is running at "), "{said}");
    canal(&dir, &["-qq", "status"]).code(125).stderr("");
    canal(&dir, &["status", "-q", "-q"]).code(125).stderr("");
    let said = stderr(&canal(&dir, &["-q", "run", "--bogus"]).code(125));
    assert!(said.starts_with("canal: unknown option `--bogus`\n"), "{said}");
    canal(&dir, &["-qq", "run", "--bogus"]).code(125).stderr("");
}

#[test]
fn help_and_version_are_no_failures() {
    let dir = TempDir::new().unwrap();
    for args in [
        &["--help"][..],
        &["help"],
        &["help", "run"],
        &["run", "--help"],
        &["run", "-h"],
        &["help", "acquire"],
        &["status", "--help"],
    ] {
        let assert = canal(&dir, args).code(0).stderr("");
        let shown = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
        assert!(shown.contains("Usage: canal"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    }
    canal(&dir, &["--version"]).code(0).stdout(concat!("canal ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn help_after_the_command_belongs_to_the_command() {
    let dir = TempDir::new().unwrap();
    // After the first operand `--help` belongs to the command, so canal proceeds to look for a
    // daemon.
    canal(&dir, &["run", "-k", "x", "true", "--help"]).code(125).stdout("");
}

#[test]
fn completing_is_quick_and_silent_without_a_daemon() {
    let dir = TempDir::new().unwrap();
    canal(&dir, &["complete", "keys", "--", "x"]).code(0).stdout("").stderr("");
    canal(&dir, &["complete", "keys"]).code(0).stdout("").stderr("");
    // An impossible place: the path is too long for a socket.
    let mut canal: Command = cargo_bin_cmd!("canal");
    canal.env("CANAL_SOCKET", "/x".repeat(100)).args(["complete", "keys"]);
    canal.assert().code(0).stdout("").stderr("");
}

#[test]
fn man_writes_every_page() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_str().unwrap();
    canal(&dir, &["man", path]).code(0).stdout("").stderr("");
    for page in ["canal.1", "canal-run.1", "canal-daemon.1", "canal.toml.5", "canal-json.7"] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    canal(&dir, &["man", "/no/such/place"]).code(125);
}

#[test]
fn completions_are_the_files_of_the_sources() {
    let dir = TempDir::new().unwrap();
    for (shell, file) in [("bash", "canal.bash"), ("zsh", "_canal"), ("fish", "canal.fish")] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("completions").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        canal(&dir, &["completions", shell]).code(0).stdout(text).stderr("");
    }
}

#[test]
fn a_full_stdout_is_an_error_and_a_closed_pipe_is_none() {
    let dir = TempDir::new().unwrap();
    let canal = assert_cmd::cargo::cargo_bin!("canal");
    let run = |script: &str| {
        let mut sh = std::process::Command::new("sh");
        sh.arg("-c").arg(script).arg(canal).current_dir(dir.path()).output().unwrap()
    };
    let full = run("\"$0\" completions bash > /dev/full");
    assert_eq!(full.status.code(), Some(125));
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!(said, "canal: cannot write to stdout: No space left on device\n");
    // A reader that closes the pipe early is no error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut canal = std::process::Command::new(canal);
    let gone = canal.args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!((gone.status.code(), gone.stderr.as_slice()), (Some(0), &b""[..]));
}
