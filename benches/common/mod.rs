//! What the benches share: a daemon of their own, and figures.

#![expect(dead_code, reason = "each bench uses a part of it")]

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program to measure: `CANAL=PATH` in the environment, else the one that was just built.
pub(crate) fn canal() -> OsString {
    std::env::var_os("CANAL").unwrap_or_else(|| env!("CARGO_BIN_EXE_canal").into())
}

/// A daemon in a folder of its own; ends with this value.
pub(crate) struct Daemon {
    process: Child,
    pub(crate) folder: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("canal-bench-").tempdir()?;
        let socket = folder.path().join("canal.sock");
        let process = Command::new(canal())
            .args(["daemon", "--socket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let daemon = Self { process, folder };
        wait_until("the daemon listens", || connects(&socket));
        Ok(daemon)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("canal.sock")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// `canal ARGS` at this daemon.
    pub(crate) fn canal(&self, args: &[&str]) -> Command {
        let mut command = Command::new(canal());
        command.args(args).env("CANAL_SOCKET", self.socket()).stdin(Stdio::null());
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether somebody listens at a socket.
pub(crate) fn connects(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

/// Waits until `condition` holds, for two minutes at most.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The middle one of some durations, and that below which nine of ten lie; in microseconds.
pub(crate) fn median_and_p90(durations: &mut [Duration]) -> (f64, f64) {
    durations.sort_unstable();
    let at = |part: usize| durations[(durations.len() - 1) * part / 10].as_secs_f64() * 1e6;
    (at(5), at(9))
}

/// Whether a program is in PATH.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
