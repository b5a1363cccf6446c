//! Runs each completion script in its own shell.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::bound::BOUND;
use crate::executable::executable;
use crate::isolation;

/// A stub of canal that knows six keys.
const STUB: &str = "#!/bin/sh
echo \"$@\" >> \"$0.calls\"
for prefix; do :; done
for key in db deploy/web 'my key' web fix=2 f:1; do
    case $key in \"$prefix\"*) echo \"$key\" ;; esac
done
";

/// A folder with a stub of canal that is first in PATH.
struct Shell {
    name: &'static str,
    dir: TempDir,
}

impl Shell {
    /// Returns `None` if the shell or its requirement is not installed; then the test is skipped.
    fn new(name: &'static str, needs: Option<&str>) -> Option<Self> {
        let there = Command::new(name).arg("-c").arg("exit 0").output().is_ok();
        if !there || needs.is_some_and(|file| !Path::new(file).exists()) {
            let missing = if there { needs.unwrap_or_default() } else { name };
            isolation::skipped(&format!("{missing} is not installed: its completions"));
            return None;
        }
        let dir = TempDir::new().unwrap();
        executable(dir.path().join("canal"), STUB);
        Some(Self { name, dir })
    }

    /// A command under `timeout`, so that a shell that hangs fails the test.
    fn command(&self, script: &str) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("timeout");
        command
            .arg(BOUND.as_secs().to_string())
            .arg(self.name)
            .arg(root.join("tests/surface/shells").join(script));
        command.env("PATH", format!("{}:{path}", self.dir.path().display()));
        command.env("COMPLETIONS", root.join("completions"));
        command.env("HOME", self.dir.path());
        command.env("XDG_CONFIG_HOME", self.dir.path()).env("XDG_DATA_HOME", self.dir.path());
        command
    }

    fn offers(&self, line: &str) -> Vec<String> {
        let output = match self.name {
            "bash" => self.command("complete.bash").args(split(line)).env("LINE", line).output(),
            "zsh" => self.command("complete.zsh").arg(line).output(),
            _ => self.command("complete.fish").arg(line).output(),
        };
        words(&output.unwrap())
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.dir.path().join("canal.calls")).unwrap_or_default()
    }
}

/// Splits a line as readline does: at blanks, with `=` and `:` as separate words.
fn split(line: &str) -> Vec<String> {
    let spaced = line.replace('=', " = ").replace(':', " : ");
    let mut words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    if line.ends_with([' ', '=', ':']) {
        words.push(String::new());
    }
    words
}

fn words(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words: Vec<String> = text
        .lines()
        .map(|line| line.trim_end().to_owned())
        .filter(|word| !word.is_empty())
        .collect();
    words.sort();
    words
}

fn assert_offers(shell: &Shell, line: &str, expected: &[&str]) {
    let offered = shell.offers(line);
    assert!(
        expected.iter().all(|word| offered.iter().any(|offer| offer == word)),
        "{}: `{line}` offers {offered:?}, not all of {expected:?}",
        shell.name
    );
}

fn assert_offers_only(shell: &Shell, line: &str, expected: &[&str]) {
    assert_eq!(shell.offers(line), expected, "{}: `{line}`", shell.name);
}

fn assert_offers_none_of(shell: &Shell, line: &str, unexpected: &[&str]) {
    let offered = shell.offers(line);
    assert!(
        !unexpected.iter().any(|word| offered.iter().any(|offer| offer == word)),
        "{}: `{line}` offers {offered:?}",
        shell.name
    );
}

fn completes(shell: &Shell) {
    assert_offers(
        shell,
        "canal ",
        &["run", "acquire", "release", "renew", "status", "test", "kill", "resize", "daemon"],
    );
    assert_offers_only(shell, "canal r", &["release", "renew", "resize", "run"]);
    assert_offers(shell, "canal run --", &["--key", "--per", "--max-run", "--socket"]);
    assert_offers_none_of(shell, "canal run --", &["--pid", "--forget"]);
    assert_offers_only(shell, "canal run -k d", &["db", "deploy/web"]);
    assert_offers_only(shell, "canal acquire -n --key w", &["web"]);
    assert_offers_only(shell, "canal run --read d", &["db", "deploy/web"]);
    assert_offers_only(shell, "canal acquire --read db --write w", &["web"]);
    assert_offers(shell, "canal status --", &["--why", "--graph", "--mine", "--ended"]);
    assert_offers(shell, "canal ps --", &["--watch", "--under"]);
    assert_offers_only(shell, "canal status --under d", &["db", "deploy/web"]);
    assert_offers_only(shell, "canal test db w", &["web"]);
    assert_offers_only(shell, "canal kill d", &["db", "deploy/web"]);
    assert_offers(shell, "canal kill --", &["--yes", "--waiters", "--signal"]);
    assert_offers_only(shell, "canal status d", &["db", "deploy/web"]);
    assert_offers_only(shell, "canal resize w", &["web"]);
    for line in
        ["canal run --key-literal f", "canal run --read f", "canal release f", "canal kill f"]
    {
        assert_offers_only(shell, line, &["f:1", "fix=2"]);
    }
    for line in ["canal run -k f", "canal acquire f", "canal test f"] {
        assert_offers_none_of(shell, line, &["f:1", "fix=2"]);
    }
    assert_offers_only(shell, "canal run --signal K", &["KILL"]);
    assert_offers(shell, "canal run --wait 1", &["10s", "10m"]);
    assert_offers_only(shell, "canal completions z", &["zsh"]);
    assert_offers_only(shell, "canal help st", &["stats", "status"]);
}

/// `timeout` has long options in every shell's completion, and no subcommands.
fn hands_over(shell: &Shell) {
    assert_offers(shell, "canal run -k db -- timeo", &["timeout"]);
    assert_offers(shell, "canal run -k db timeo", &["timeout"]);
    for line in [
        "canal run -k db -- timeout --pres",
        "canal run -k db timeout --pres",
        "canal run -qk db=3x2:2 -w 10m -- timeout --pres",
        "canal run --key=db --slots=2 timeout --pres",
        "canal run --read db --write deploy/web --new-session timeout --pres",
        "canal run -c x --socket /x -k db -- timeout --pres",
    ] {
        assert_offers_only(shell, line, &["--preserve-status"]);
    }
    assert_offers_none_of(shell, "canal run -k db timeout --", &["--key", "--max-run"]);
}

fn passes_the_socket_on(shell: &Shell) {
    for line in ["canal --socket /a/b status ", "canal status --socket=/a/b "] {
        assert_offers(shell, line, &["db"]);
    }
    let calls = shell.calls().replace("--socket=", "--socket ");
    assert!(calls.lines().all(|call| call.starts_with("--socket /a/b complete keys")), "{calls}");
    assert_eq!(calls.lines().count(), 2, "{calls}");
}

#[test]
fn bash_completes_options_keys_and_the_command() {
    let needs = Some("/usr/share/bash-completion/bash_completion");
    let Some(shell) = Shell::new("bash", needs) else { return };
    passes_the_socket_on(&shell);
    completes(&shell);
    hands_over(&shell);
}

#[test]
fn zsh_completes_options_keys_and_the_command() {
    let Some(shell) = Shell::new("zsh", None) else { return };
    passes_the_socket_on(&shell);
    completes(&shell);
    hands_over(&shell);
}

#[test]
fn fish_completes_options_keys_and_the_command() {
    let Some(shell) = Shell::new("fish", None) else { return };
    passes_the_socket_on(&shell);
    completes(&shell);
    hands_over(&shell);
}
