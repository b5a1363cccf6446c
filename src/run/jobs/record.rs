//! The record of one job, and its log.
//!
//! The file has three lines: the request, the start and the end. The last two are blank until they
//! are known, so that a full disk cannot prevent them from being written.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use super::folder::Folder;
use crate::protocol::Tag;
use crate::sys::clock::unix_ms;

/// The length of the lines for the start and the end, without the line feed.
const BLANK: usize = 80;

/// What was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// The number of the job.
    pub job: u64,
    /// When, in milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// The keys that it asked for.
    pub keys: Vec<String>,
    /// The command, for display.
    pub command: String,
    /// The file that gets the output.
    pub log: PathBuf,
}

/// When the command started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Started {
    started_ms: u64,
}

/// How a job ended: with an exit code, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// When, in milliseconds since 1970 UTC.
    pub ended_ms: u64,
    /// The exit code: the command's, or canal's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// The signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Whether the supervisor of a job lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// It does.
    Yes,
    /// It has ended.
    No,
}

/// A record as it was read.
#[derive(Debug)]
pub struct Record {
    file: File,
    /// What was submitted.
    pub submitted: Submitted,
    /// When the command started, in milliseconds since 1970 UTC; `None` if it has not.
    pub started_ms: Option<u64>,
    /// How the job ended, if its supervisor saw that.
    pub end: Option<JobEnd>,
}

impl Record {
    /// Reads a record; `None` if there is none.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        match File::open(path) {
            Ok(file) => Self::of_file(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of_file(file: File) -> io::Result<Self> {
        let content = content(&file)?;
        let mut lines = content.lines().map(str::trim_end);
        let submitted = serde_json::from_str(lines.next().unwrap_or_default())?;
        let started = filled(lines.next())?.map(|started: Started| started.started_ms);
        Ok(Self { file, submitted, started_ms: started, end: filled(lines.next())? })
    }

    /// Waits until the supervisor has ended, and reads the record again.
    pub fn wait(self) -> io::Result<Self> {
        retry_on_intr(|| flock(&self.file, FlockOperation::LockShared))?;
        Self::of_file(self.file)
    }

    /// Whether the supervisor lives.
    pub fn attended(&self) -> io::Result<Attended> {
        attended(&self.file)
    }
}

pub(super) fn attended(file: &File) -> io::Result<Attended> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => flock(file, FlockOperation::Unlock).map(|()| Attended::No).map_err(Into::into),
        Err(Errno::WOULDBLOCK) => Ok(Attended::Yes),
        Err(error) => Err(error.into()),
    }
}

/// A job that is about to be submitted: a locked record without content, and an open log.
#[derive(Debug)]
pub struct NewJob {
    folder: Folder,
    /// The file name of record and log while the job has no number.
    name: String,
    record: File,
    /// The log, opened to append.
    pub log: File,
    /// The file of the log if the user named one.
    named: Option<PathBuf>,
}

impl NewJob {
    /// Creates the record, and opens the log: `named`, or a file beside the record.
    pub(super) fn create(folder: Folder, tag: Tag, named: Option<&Path>) -> io::Result<Self> {
        let name = format!("new-{tag}");
        let of = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let named = named.map(std::path::absolute).transpose()?;
        let mut options = OpenOptions::new();
        options.append(true).create(true).custom_flags(libc::O_NOCTTY);
        let beside = folder.log(&name);
        let path = named.as_ref().unwrap_or(&beside);
        if named.is_none() {
            options.mode(0o600);
        }
        let log = options.open(path).map_err(|error| of(path, error))?;
        let path = folder.record(&name);
        let mut options = OpenOptions::new();
        let record = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let record = record.map_err(|error| of(&path, error))?;
        flock(&record, FlockOperation::LockExclusive)?;
        Ok(Self { folder, name, record, log, named })
    }

    /// Another handle of the same record, with the same lock.
    pub fn to_close(&self) -> io::Result<OpenRecord> {
        Ok(OpenRecord(self.record.try_clone()?))
    }

    /// Gives the job its number. Returns the file of its log.
    pub fn publish(&self, job: u64, keys: Vec<String>, command: &str) -> io::Result<PathBuf> {
        let number = job.to_string();
        let log = self.named.clone().unwrap_or_else(|| self.folder.log(&number));
        let command = command.to_owned();
        let submitted = Submitted { job, at_ms: unix_ms(), keys, command, log };
        let blank = " ".repeat(BLANK);
        let text = format!("{}\n{blank}\n{blank}\n", serde_json::to_string(&submitted)?);
        self.record.write_all_at(text.as_bytes(), 0)?;
        if self.named.is_none() {
            fs::rename(self.folder.log(&self.name), &submitted.log)?;
        }
        fs::rename(self.folder.record(&self.name), self.folder.record(&number))?;
        Ok(submitted.log)
    }

    /// Records that the command is about to start.
    pub fn started(&self) -> io::Result<()> {
        fill(&self.record, 1, &Started { started_ms: unix_ms() })
    }

    /// Removes what a job leaves that was never published.
    pub fn discard(&self) {
        // A file that stays is removed with the old jobs.
        let _ = fs::remove_file(self.folder.record(&self.name));
        if self.named.is_none() {
            let _ = fs::remove_file(self.folder.log(&self.name));
        }
    }
}

/// The record in the hands of the supervisor.
#[derive(Debug)]
pub struct OpenRecord(File);

impl OpenRecord {
    /// The number of the job, if it has one.
    #[must_use]
    pub fn job(&self) -> Option<u64> {
        let content = content(&self.0).ok()?;
        let submitted: Submitted = serde_json::from_str(content.lines().next()?).ok()?;
        Some(submitted.job)
    }

    /// Records how the job ended. Does nothing for a job without a number.
    pub fn ended(&self, exit: Option<u8>, signal: Option<i32>) -> io::Result<()> {
        if self.0.metadata()?.len() == 0 {
            return Ok(());
        }
        fill(&self.0, 2, &JobEnd { ended_ms: unix_ms(), exit, signal })
    }
}

impl AsFd for OpenRecord {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn content(file: &File) -> io::Result<String> {
    // Not from the file's position, which several processes share.
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or_default()];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn filled<T: for<'de> Deserialize<'de>>(line: Option<&str>) -> io::Result<Option<T>> {
    let line = line.filter(|line| !line.is_empty());
    Ok(line.map(serde_json::from_str).transpose()?)
}

/// Fills a blank line.
fn fill(record: &File, line: usize, value: &impl Serialize) -> io::Result<()> {
    let content = content(record)?;
    let before: usize = content.split_inclusive('\n').take(line).map(str::len).sum();
    record.write_all_at(serde_json::to_string(value)?.as_bytes(), before as u64)
}
