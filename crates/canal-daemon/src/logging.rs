//! The daemon's log: one line for each event that an operator may want to know about.
//!
//! Invariant: a line that cannot be written immediately is dropped and counted. The log neither
//! ends nor blocks the daemon.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use anyhow::Context;
use jiff::Timestamp;
use nix::errno::Errno;
use nix::poll::PollFlags;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use canal_protocol::SettingSource;
use canal_sys::fds::events_now;
use canal_text::plural;
use canal_text::safe_text::sanitize;

/// The size at which the log of a daemon that was started on demand is rotated.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// The most bytes written at once: a writable pipe takes this many without blocking (PIPE_BUF).
const PIECE_BYTES: usize = 4096;

/// The number of lines dropped since this daemon started.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Starts to log to stderr, or to `file` in a daemon that was started on demand.
///
/// # Errors
/// `CANAL_LOG` or the configuration contains an invalid filter.
pub(crate) fn begin(verbose: u8, config: Option<&str>, file: Option<&Path>) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(verbose, config)?);
    let write: Write = match file.map(LogFile::open) {
        Some(mut file) => Box::new(move |text| file.write(text)),
        None => Box::new(|text| write_now(io::stderr().as_fd(), text)),
    };
    // The system's journal adds a time to each line.
    let timed = std::env::var_os("JOURNAL_STREAM").is_none();
    let log = tracing_subscriber::fmt()
        // The filter decides which levels are logged.
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .log_internal_errors(false)
        .with_writer(Mutex::new(Lines::new(write, timed)))
        .finish();
    // An existing logger stays.
    if log.with(filter).try_init().is_ok() {
        let _ = REPLACE.set(Box::new(move |filter| handle.reload(filter).is_ok()));
    }
    Ok(())
}

/// Replaces the filter of the logger that [`begin`] set up.
static REPLACE: OnceLock<Box<dyn Fn(Targets) -> bool + Send + Sync>> = OnceLock::new();

/// Applies the filter of a changed configuration, unless the command line or `CANAL_LOG` takes
/// precedence.
pub(crate) fn follow(verbose: u8, config: Option<&str>) {
    let Some(replace) = REPLACE.get() else { return };
    match filter(verbose, config) {
        Ok(filter) => {
            if !replace(filter) {
                tracing::warn!("cannot replace the log filter");
            }
        }
        Err(error) => tracing::warn!("{error:#}"),
    }
}

/// Checks that a text is a filter of the log.
///
/// # Errors
/// It is not. The error describes the mistake.
pub(crate) fn check(text: &str) -> Result<(), String> {
    targets(text).map(drop).map_err(|error| format!("`{text}` is not a log filter: {error}"))
}

/// A note for operators if lines were dropped.
pub(crate) fn note() -> Option<String> {
    let lost = LOST.load(Ordering::Relaxed);
    (lost > 0).then(|| format!("it lost {} of its log", plural(lost, "line", "lines")))
}

/// The filter, its source, and the name of the source for people. The command line takes precedence
/// over `CANAL_LOG`, and `CANAL_LOG` over the configuration.
pub(crate) fn chosen(verbose: u8, config: Option<&str>) -> (String, SettingSource, &'static str) {
    use SettingSource::{CommandLine, Default, Environment, File};
    let variable = std::env::var("CANAL_LOG").ok().filter(|text| !text.is_empty());
    match (verbose, variable, config) {
        (0, Some(text), _) => (text, Environment, "CANAL_LOG"),
        (0, None, Some(text)) => (text.to_owned(), File, "`log` in the configuration"),
        (0, None, None) => ("info".to_owned(), Default, "the default"),
        (1, ..) => ("debug".to_owned(), CommandLine, "-v"),
        _ => ("trace".to_owned(), CommandLine, "-v"),
    }
}

fn filter(verbose: u8, config: Option<&str>) -> anyhow::Result<Targets> {
    let (text, _, whose) = chosen(verbose, config);
    targets(&text).with_context(|| format!("cannot use {whose} (`{text}`)"))
}

fn targets(text: &str) -> Result<Targets, <Targets as FromStr>::Err> {
    // A bare level applies to canal only: its dependencies log too much below `info`.
    let bare = matches!(text, "debug" | "trace").then(|| format!("info,canal={text}"));
    Targets::from_str(bare.as_deref().unwrap_or(text))
}

/// Writes as much as possible without blocking. If that is not all, the error is the number of
/// bytes written.
type Write = Box<dyn FnMut(&[u8]) -> Result<(), usize> + Send>;

/// The target of the log, and the number of lines dropped since the last written line.
struct Lines {
    write: Write,
    /// Whether lines begin with a time.
    timed: bool,
    lost: u64,
    /// Whether only a part of the last line was written.
    torn: bool,
}

impl Lines {
    fn new(write: Write, timed: bool) -> Self {
        Self { write, timed, lost: 0, torn: false }
    }
}

impl io::Write for Lines {
    /// Accepts a whole line; never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut text = Vec::new();
        if self.torn {
            text.push(b'\n');
        }
        let time = if self.timed { format!("{:.3} ", Timestamp::now()) } else { String::new() };
        if self.lost > 0 {
            let lost = plural(self.lost, "line", "lines");
            // Writing to memory does not fail.
            let _ = writeln!(text, "{time} WARN lost {lost} of this log");
        }
        // An entry is one line, even if it contains text from a client.
        let words = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        text.extend_from_slice((time + &sanitize(&words)).as_bytes());
        text.push(b'\n');
        match (self.write)(&text) {
            Ok(()) => (self.lost, self.torn) = (0, false),
            Err(written) => {
                self.torn |= written > 0;
                self.lost += 1;
                LOST.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_now(fd: BorrowedFd<'_>, text: &[u8]) -> Result<(), usize> {
    let mut written = 0;
    for piece in text.chunks(PIECE_BYTES) {
        let mut rest = piece;
        while !rest.is_empty() {
            if events_now(fd, PollFlags::POLLOUT).is_empty() {
                return Err(written);
            }
            match nix::unistd::write(fd, rest) {
                Ok(count @ 1..) => {
                    written += count;
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(Errno::EINTR) => {}
                _ => return Err(written),
            }
        }
    }
    Ok(())
}

/// A log file of limited size. One previous file of the same size is kept.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    /// `None` if opening it has failed so far.
    file: Option<File>,
    bytes: u64,
}

impl LogFile {
    fn open(path: &Path) -> Self {
        let mut log = Self { path: path.to_owned(), file: None, bytes: 0 };
        log.reopen();
        log
    }

    fn reopen(&mut self) {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        // If the path is a FIFO without a reader, opening it must not block.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        if let Ok(file) = options.open(&self.path) {
            self.bytes = file.metadata().map_or(0, |found| found.len());
            self.file = Some(file);
        }
    }

    fn rotate(&mut self) {
        let mut before = self.path.clone().into_os_string();
        before.push(".1");
        if std::fs::rename(&self.path, before).is_err() {
            // There is nothing to rotate, for example because the file was removed.
            self.bytes = 0;
        }
        self.reopen();
        if let Some(file) = &self.file {
            // stderr follows to the new file, because the runtime writes its own messages there.
            let _ = nix::unistd::dup2_stderr(file);
        }
    }

    fn write(&mut self, text: &[u8]) -> Result<(), usize> {
        if self.bytes.saturating_add(text.len() as u64) > LOG_BYTES_MAX {
            self.rotate();
        }
        if self.file.is_none() {
            self.reopen();
        }
        let Some(file) = &self.file else { return Err(0) };
        let written = write_now(file.as_fd(), text);
        self.bytes += written.err().unwrap_or(text.len()) as u64;
        written
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::{Read, Write as _};

    use super::*;

    #[test]
    fn an_invalid_log_filter_names_its_source() {
        let error = filter(0, Some("info=loud=x")).unwrap_err();
        assert!(format!("{error:#}").contains("`log` in the configuration"), "{error:#}");
        assert!(filter(2, Some("info=loud=x")).is_ok());
    }

    #[test]
    fn log_lines_without_a_reader_are_dropped_and_the_next_line_counts_them() {
        let (read_end, write_end) = io::pipe().unwrap();
        let mut read_end = File::from(std::os::fd::OwnedFd::from(read_end));
        let write_end = std::os::fd::OwnedFd::from(write_end);
        let same_end = write_end.try_clone().unwrap();
        let write = Box::new(move |text: &[u8]| write_now(write_end.as_fd(), text));
        let log = RefCell::new(Lines::new(write, false));
        let line = [b"x".repeat(9_999), b"\n".to_vec()].concat();
        let write = || log.borrow_mut().write_all(&line).unwrap();
        let lost = || log.borrow().lost;
        let mut whole = 0;
        while lost() == 0 {
            write();
            whole += 1;
        }
        whole -= 1;
        // Nothing reads the pipe, and the writes do not block.
        (0..3).for_each(|_| write());
        assert_eq!(lost(), 4);
        let mut piece = vec![0; 256 * 1024];
        let count = read_end.read(&mut piece).unwrap();
        let mut text = String::from_utf8(piece[..count].to_vec()).unwrap();
        log.borrow_mut().write_all(b"again\n").unwrap();
        let count = read_end.read(&mut piece).unwrap();
        text += std::str::from_utf8(&piece[..count]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.iter().filter(|line| line.len() == 9_999).count(), whole);
        assert_eq!(lines[lines.len() - 2..], [" WARN lost 4 lines of this log", "again"]);
        drop(read_end);
        canal_sys::rerun::wait_until("nothing can read", || {
            events_now(same_end.as_fd(), PollFlags::empty()).contains(PollFlags::POLLERR)
        });
        write();
        assert_eq!(lost(), 1, "a reader that is gone is no failure either");
        assert!(note().unwrap().ends_with("of its log"));
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_tried_again_with_each_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        std::fs::create_dir(&path).unwrap();
        let mut file = LogFile::open(&path);
        let mut log = Lines::new(Box::new(move |text| file.write(text)), false);
        log.write_all(b"one\n").unwrap();
        std::fs::remove_dir(&path).unwrap();
        log.write_all(b"two\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, " WARN lost 1 line of this log\ntwo\n");
    }
}
