//! The directory of a user's jobs.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::record::{Attended, NewJob, Record, attended};
use crate::protocol::Tag;
use crate::protocol::place::Place;

const RECORD: &str = "job";
const LOG: &str = "log";

/// How long it takes at most to lock the record of a new job.
const PREPARED_WITHIN: Duration = Duration::from_secs(60);

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
    #[must_use]
    pub fn of(place: &Place) -> Self {
        Self(place.jobs_dir())
    }

    /// Prepares a job, with its log in `named` or in the directory, which is created if it is
    /// missing.
    ///
    /// # Errors
    /// Names the file that cannot be opened.
    pub fn begin(&self, tag: Tag, named: Option<&Path>) -> io::Result<NewJob> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.0.display()))
        })?;
        NewJob::create(self.clone(), tag, named)
    }

    /// The record of a job; `None` if there is none.
    pub fn job(&self, number: u64) -> io::Result<Option<Record>> {
        Record::read(&self.record(&number.to_string()))
    }

    /// The numbers of the jobs, the oldest first.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers: Vec<u64> = self
            .records()?
            .iter()
            .filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Removes the logs and records of ended jobs, the oldest first, until the directory has at
    /// most `most` bytes in total. Logs that the user named stay.
    pub fn prune(&self, most: u64) -> io::Result<Pruned> {
        self.sweep()?;
        let numbers = self.numbers()?;
        let size = |number: &u64| {
            let name = number.to_string();
            let files = [self.log(&name), self.record(&name)];
            files.iter().map(|file| fs::metadata(file).map_or(0, |it| it.len())).sum::<u64>()
        };
        let mut pruned = Pruned { left: numbers.iter().map(size).sum(), ..Pruned::default() };
        for number in numbers {
            if pruned.left <= most && most > 0 {
                break;
            }
            let name = number.to_string();
            if is_attended(&self.record(&name)) {
                continue;
            }
            let bytes = size(&number);
            removed(&self.log(&name))?;
            removed(&self.record(&name))?;
            pruned.jobs += 1;
            pruned.bytes += bytes;
            pruned.left = pruned.left.saturating_sub(bytes);
        }
        Ok(pruned)
    }

    /// Removes what jobs left that were killed before they had a number. A job that is being
    /// prepared may not have locked its record yet.
    fn sweep(&self) -> io::Result<()> {
        for path in self.records()? {
            let is_new =
                path.file_stem().is_some_and(|it| it.as_encoded_bytes().starts_with(b"new-"));
            let age = || fs::metadata(&path)?.modified()?.elapsed().map_err(io::Error::other);
            if is_new && age().is_ok_and(|age| age > PREPARED_WITHIN) && !is_attended(&path) {
                removed(&path.with_extension(LOG))?;
                removed(&path)?;
            }
        }
        Ok(())
    }

    fn records(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let paths = entries.flatten().map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension().is_some_and(|it| it == RECORD)).collect())
    }

    pub(super) fn record(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{RECORD}"))
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.{LOG}"))
    }
}

/// Whether the supervisor of a job lives, or may live.
fn is_attended(record: &Path) -> bool {
    File::open(record).is_ok_and(|file| !matches!(attended(&file), Ok(Attended::No)))
}

fn removed(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
