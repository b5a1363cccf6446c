//! Background jobs: their directory, and the record and the log of each.
//!
//! A job is a `canal run` in a session of its own, with a supervisor that stays. Its number is that
//! of its first session in the table. The supervisor locks the record as long as it lives, so a
//! process that waits for the job waits for the lock.
//!
//! A record is one [`Job`], with blanks after it, so that a full disk cannot prevent the start and
//! the end from being written. A link with the number of a later session leads to the record.
//!
//! The number of a session exists once the request is queued, and is unique across hosts and
//! reboots. The record, not the history of the daemon, says how a job ended: the history drops
//! records under load, and may be off.
//!
//! Invariant: a record with a number belongs to a request that was queued or granted, and only
//! records and logs of jobs whose supervisor has ended are removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use canal_protocol::Tag;
use canal_protocol::paths::Place;
use canal_sys::clock::unix_ms;
use canal_sys::private_dir::{if_there, remove_if_there};

const RECORD: &str = "job";
const LOG: &str = "log";

/// The longest time that it takes to lock the record of a new job.
const PREPARED_WITHIN: Duration = Duration::from_secs(60);

/// The number of blanks: room for the start, the end and a later session.
const BLANKS: usize = 240;

/// The directory of a user's jobs.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// What [`Folder::prune`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// The number of jobs.
    pub jobs: u64,
    /// The size of their files in bytes.
    pub bytes: u64,
    /// The size of the files that remain in bytes.
    pub left: u64,
}

impl Folder {
    /// The directory for the jobs of this user at a daemon.
    pub fn of(place: &Place) -> Self {
        Self(place.jobs_dir())
    }

    /// Prepares a job, with its log in `named` or in the directory, which is created if it is
    /// missing.
    ///
    /// # Errors
    /// Names the file that cannot be opened.
    pub fn begin(&self, tag: Tag, named: Option<&Path>) -> io::Result<NewJob> {
        let create = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        create.map_err(|error| of(&self.0, error))?;
        let name = format!("new-{tag}");
        let named = named.map(std::path::absolute).transpose()?;
        let mut options = OpenOptions::new();
        // The command itself writes the log, because a process in between could block it or lose
        // output. So canal never truncates a log.
        options.append(true).create(true).custom_flags(libc::O_NOCTTY);
        let beside = self.log(&name);
        let path = named.as_ref().unwrap_or(&beside);
        if named.is_none() {
            options.mode(0o600);
        }
        let log = options.open(path).map_err(|error| of(path, error))?;
        let path = self.record(&name);
        let mut options = OpenOptions::new();
        let record = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let record = record.map_err(|error| of(&path, error))?;
        flock(&record, FlockOperation::LockExclusive)?;
        Ok(NewJob { folder: self.clone(), name, record, log, named })
    }

    /// The record of a job, by its number or by that of its session; `None` if there is none.
    pub fn job(&self, number: u64) -> io::Result<Option<Record>> {
        Record::read(&self.record(&number.to_string()))
    }

    /// The numbers of the jobs, the oldest first.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers: Vec<u64> = self
            .records()?
            .iter()
            // The names of later sessions are links.
            .filter(|path| !path.is_symlink())
            .filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Removes the logs and records of ended jobs, the oldest first, until the directory has at
    /// most `most` bytes in total. Logs that the user named stay.
    pub fn prune(&self, most: u64) -> io::Result<Pruned> {
        self.sweep()?;
        let names: Vec<String> = self.numbers()?.iter().map(u64::to_string).collect();
        let size = |name: &String| {
            let files = [self.log(name), self.record(name)];
            files.iter().map(|file| fs::metadata(file).map_or(0, |it| it.len())).sum::<u64>()
        };
        let mut pruned = Pruned { left: names.iter().map(size).sum(), ..Pruned::default() };
        for name in names {
            if pruned.left <= most && most > 0 {
                break;
            }
            if is_attended(&self.record(&name)) {
                continue;
            }
            let bytes = size(&name);
            remove_if_there(&self.log(&name))?;
            remove_if_there(&self.record(&name))?;
            pruned.jobs += 1;
            pruned.bytes += bytes;
            pruned.left = pruned.left.saturating_sub(bytes);
        }
        Ok(pruned)
    }

    /// Removes the files of jobs that were killed before they had a number, and the names of
    /// removed records. A job that is being prepared may not have locked its record yet.
    fn sweep(&self) -> io::Result<()> {
        for path in self.records()? {
            if path.is_symlink() && !path.exists() {
                remove_if_there(&path)?;
                continue;
            }
            let is_new =
                path.file_stem().is_some_and(|it| it.as_encoded_bytes().starts_with(b"new-"));
            let age = || fs::metadata(&path)?.modified()?.elapsed().map_err(io::Error::other);
            if is_new && age().is_ok_and(|age| age > PREPARED_WITHIN) && !is_attended(&path) {
                remove_if_there(&path.with_extension(LOG))?;
                remove_if_there(&path)?;
            }
        }
        Ok(())
    }

    fn records(&self) -> io::Result<Vec<PathBuf>> {
        let entries = if_there(fs::read_dir(&self.0))?.into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension().is_some_and(|it| it == RECORD)).collect())
    }

    fn record(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{RECORD}"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{LOG}"))
    }
}

/// An error that names its file.
fn of(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Whether the supervisor of a job lives, or may live.
fn is_attended(record: &Path) -> bool {
    File::open(record).is_ok_and(|file| attended(&file).unwrap_or(true))
}

/// A job, as its record describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub number: u64,
    /// When it was submitted, in milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// The keys that it asked for.
    pub keys: Vec<String>,
    /// The file that gets the output.
    pub log: PathBuf,
    /// The number of the session that its request has.
    session: u64,
    /// When the command started, in milliseconds since 1970 UTC; `None` if it has not.
    pub started_ms: Option<u64>,
    /// How the job ended, if its supervisor saw that.
    pub end: Option<JobEnd>,
}

impl Job {
    /// The name of the session that its request has. A host that loses its membership of a shared
    /// table asks for its waiters again, which gives them other sessions.
    pub fn session(&self) -> String {
        format!("s{}", self.session)
    }
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

/// A record as it was read.
#[derive(Debug)]
pub struct Record {
    file: File,
    /// The job.
    pub job: Job,
}

impl Record {
    /// Reads a record; `None` if there is none.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let file = if_there(File::open(path))?;
        file.map(|file| Ok(Self { job: read(&file)?, file })).transpose()
    }

    /// Waits until the supervisor has ended, and reads the record again.
    pub fn wait(self) -> io::Result<Job> {
        retry_on_intr(|| flock(&self.file, FlockOperation::LockShared))?;
        read(&self.file)
    }

    /// Whether the supervisor lives.
    pub fn is_attended(&self) -> io::Result<bool> {
        attended(&self.file)
    }
}

fn attended(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => flock(file, FlockOperation::Unlock).map(|()| false).map_err(Into::into),
        Err(Errno::WOULDBLOCK) => Ok(true),
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
    /// The descriptors that its process needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.record.as_fd(), self.log.as_fd()]
    }

    /// Another handle of the same record, with the same lock.
    pub fn to_close(&self) -> io::Result<OpenRecord> {
        Ok(OpenRecord(self.record.try_clone()?))
    }

    /// Gives the job its number. Returns the file of its log.
    pub fn publish(&self, number: u64, keys: Vec<String>) -> io::Result<PathBuf> {
        let name = number.to_string();
        let log = self.named.clone().unwrap_or_else(|| self.folder.log(&name));
        let (session, started_ms, end) = (number, None, None);
        let job = Job { number, at_ms: unix_ms(), keys, log, session, started_ms, end };
        write(&self.record, &job, BLANKS)?;
        if self.named.is_none() {
            fs::rename(self.folder.log(&self.name), &job.log)?;
        }
        fs::rename(self.folder.record(&self.name), self.folder.record(&name))?;
        Ok(job.log)
    }

    /// Records that the request of the published job has another session now.
    pub fn moved(&self, number: u64, session: u64) -> io::Result<()> {
        update(&self.record, |job| job.session = session)?;
        let name = self.folder.record(&session.to_string());
        remove_if_there(&name)?;
        symlink(format!("{number}.{RECORD}"), name)
    }

    /// Removes the files of a job that was never published.
    pub fn discard(&self) {
        // A file that stays is removed with the old jobs.
        let _ = fs::remove_file(self.folder.record(&self.name));
        if self.named.is_none() {
            let _ = fs::remove_file(self.folder.log(&self.name));
        }
    }
}

/// The record of a job, open in its supervisor.
#[derive(Debug)]
pub struct OpenRecord(File);

impl OpenRecord {
    /// The name of the job's session, if the job has a number.
    pub fn session(&self) -> Option<String> {
        read(&self.0).ok().map(|job| job.session())
    }

    /// Records that the command is about to start, and that the end of the supervisor no longer
    /// prevents it.
    pub fn started(&self) -> io::Result<()> {
        update(&self.0, |job| job.started_ms = Some(unix_ms()))
    }

    /// Records how the job ended. Does nothing for a job without a number.
    pub fn ended(&self, exit: Option<u8>, signal: Option<i32>) -> io::Result<()> {
        if self.0.metadata()?.len() == 0 {
            return Ok(());
        }
        update(&self.0, |job| job.end = Some(JobEnd { ended_ms: unix_ms(), exit, signal }))
    }
}

impl AsFd for OpenRecord {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn read(record: &File) -> io::Result<Job> {
    // Not from the file's position, which several processes share.
    let mut bytes = vec![0; usize::try_from(record.metadata()?.len()).unwrap_or_default()];
    let count = record.read_at(&mut bytes, 0)?;
    Ok(serde_json::from_slice(&bytes[..count])?)
}

/// Changes the job within the space that its record has.
fn update(record: &File, change: impl FnOnce(&mut Job)) -> io::Result<()> {
    let mut job = read(record)?;
    change(&mut job);
    write(record, &job, 0)
}

/// Writes the job over the record, with at least this many blanks after it.
fn write(record: &File, job: &Job, blanks: usize) -> io::Result<()> {
    let mut text = serde_json::to_vec(job)?;
    let length = usize::try_from(record.metadata()?.len()).unwrap_or_default();
    text.resize(length.max(text.len() + blanks), b' ');
    record.write_all_at(&text, 0)
}
