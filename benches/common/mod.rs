//! Shared parts of the benchmarks: a private daemon, and figures.

#![expect(dead_code, reason = "each bench uses a part of it")]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

pub(crate) mod load;
pub(crate) mod servers;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program to measure: `CANAL=PATH` in the environment, otherwise the current build.
pub(crate) fn canal() -> OsString {
    std::env::var_os("CANAL").unwrap_or_else(|| env!("CARGO_BIN_EXE_canal").into())
}

/// Copies a program, as an installation does. A linker writes a file into the page cache page by
/// page; such a file starts about 7 % slower than a file written in one go.
pub(crate) fn install(program: &Path, folder: &Path, name: &str) -> io::Result<PathBuf> {
    let copy = folder.join(name);
    std::fs::copy(program, &copy)?;
    Ok(copy)
}

/// The number of waiters for a key, and of its held slots.
pub(crate) fn queue(daemon: &Daemon, key: &str) -> io::Result<(u64, u64)> {
    let output = daemon.canal(&["status", "--json", key]).output()?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let key = &status["keys"][0];
    Ok((key["waiting"].as_u64().unwrap_or(0), key["held"].as_u64().unwrap_or(0)))
}

/// A daemon in its own folder. It ends with this value.
pub(crate) struct Daemon {
    process: Child,
    program: PathBuf,
    options: Vec<String>,
    pub(crate) folder: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a daemon with additional options.
    pub(crate) fn start_with(options: &[&str]) -> io::Result<Self> {
        Self::start_in(Self::folder()?, Path::new(&canal()), options)
    }

    /// A daemon of another build.
    pub(crate) fn of_build(program: &Path) -> io::Result<Self> {
        Self::start_in(Self::folder()?, program, &[])
    }

    /// A daemon with this configuration. The configuration is next to the socket, like all files of
    /// the daemon.
    pub(crate) fn configured(config: &str) -> io::Result<Self> {
        let folder = Self::folder()?;
        std::fs::write(folder.path().join("canal.toml"), config)?;
        Self::start_in(folder, Path::new(&canal()), &[])
    }

    fn folder() -> io::Result<tempfile::TempDir> {
        tempfile::Builder::new().prefix("canal-bench-").tempdir()
    }

    fn start_in(folder: tempfile::TempDir, program: &Path, options: &[&str]) -> io::Result<Self> {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let program = install(program, folder.path(), "canal")?;
        let process = Self::spawn(&program, &folder.path().join("canal.sock"), &options)?;
        Ok(Self { process, program, options, folder })
    }

    fn spawn(program: &Path, socket: &Path, options: &[String]) -> io::Result<Child> {
        let process = Command::new(program)
            .args(["daemon", "--socket"])
            .arg(socket)
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        wait_until("the daemon listens", || connects(socket));
        Ok(process)
    }

    /// Kills the daemon and starts another one. Returns how long that one took until it listened.
    pub(crate) fn restart(&mut self) -> io::Result<Duration> {
        self.process.kill()?;
        self.process.wait()?;
        let begun = Instant::now();
        self.process = Self::spawn(&self.program, &self.socket(), &self.options)?;
        Ok(begun.elapsed())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("canal.sock")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// `canal ARGS` at this daemon.
    pub(crate) fn canal(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
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

/// Whether a program listens at a socket.
pub(crate) fn connects(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

/// Whether a program listens at a TCP address.
pub(crate) fn connects_tcp(address: std::net::SocketAddr) -> bool {
    std::net::TcpStream::connect(address).is_ok()
}

/// Waits until `condition` holds, for at most two minutes.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waited in vain until {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The median of some durations, and their 90 % quantile, in microseconds.
pub(crate) fn median_and_p90(durations: &mut [Duration]) -> (f64, f64) {
    durations.sort_unstable();
    let at = |part: usize| durations[(durations.len() - 1) * part / 10].as_secs_f64() * 1e6;
    (at(5), at(9))
}

/// The median of some figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Prints a row of the table: the subject, canal's figure, the other program's figure, their ratio
/// and the goal.
pub(crate) fn row(what: &str, ours: &str, theirs: &str, ratio: &str, goal: &str) {
    println!("| {what} | {ours} | {theirs} | {ratio} | {goal} |");
}

/// The private memory of a process, in KiB. Pages of its program do not count: whether they are
/// private changes with the number of other processes that run it.
pub(crate) fn private_kib(pid: u32) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let of = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    Ok(text.lines().filter(|line| line.starts_with("Anonymous:")).filter_map(of).sum())
}

/// Child processes that do not outlive the benchmark.
pub(crate) struct Children(pub(crate) Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a program is in PATH.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
