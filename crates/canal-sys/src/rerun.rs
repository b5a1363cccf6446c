//! For tests: runs this test program again as a separate process, so that a test can start it in
//! odd circumstances or let it execute another program.
//!
//! The new process runs a test marked `#[ignore]`, a *scene*. A scene does nothing unless it was
//! started from here, so that `cargo test -- --ignored` does not run it.
#![expect(clippy::unwrap_used, reason = "a test says so by failing")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Names the scene to play.
const SCENE: &str = "CANAL_TEST_SCENE";

/// Runs the scene (for example `fds::tests::scene`) after the shell has executed `before` (for
/// example `ulimit -n 64;`).
pub fn command(scene: &str, before: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    let program = std::env::current_exe().unwrap();
    let script = format!(
        r#"set -e; {before} exec "$0" --ignored --exact --nocapture --test-threads=1 "$@""#
    );
    command.arg("-c").arg(script).arg(program).arg(scene).env(SCENE, scene);
    command
}

/// Runs [`command`] and waits for it; it must succeed.
pub fn run(scene: &str, before: &str) -> Output {
    let output = command(scene, before).output().unwrap();
    assert!(output.status.success(), "{scene}: {output:?}");
    output
}

/// Whether this is the scene that the parent named.
pub fn plays(scene: &str) -> bool {
    std::env::var(SCENE).is_ok_and(|asked| asked == scene)
}

/// How long a test waits before it gives up: far longer than a slow and busy machine needs.
pub const BOUND: Duration = Duration::from_millis(BOUND_MS as u64);
/// [`BOUND`] in milliseconds.
pub const BOUND_MS: u16 = 60_000;

/// Waits until a condition is true, for at most [`BOUND`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until there is a value, for at most [`BOUND`].
///
/// Tests also wait for what a closed descriptor ends: a lock, a listener, the last writer of a
/// file. A process that a parallel test starts keeps a copy of it until it executes its program.
pub fn wait_for<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    wait_until(what, || {
        found = value();
        found.is_some()
    });
    found.unwrap()
}

/// Reads a file that another process writes, once it has `lines` whole lines.
pub fn wait_for_lines(path: &Path, lines: usize) -> String {
    let mut text = String::new();
    wait_until("the file is written", || {
        text = std::fs::read_to_string(path).unwrap_or_default();
        text.matches('\n').count() >= lines
    });
    text
}
