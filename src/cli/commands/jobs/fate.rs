//! Waits for the end of a job, and finds out how it ended.
//!
//! The supervisor of a job records its end. If the supervisor was killed, the command may still
//! run, and then only the daemon learns of its end.

use serde::Serialize;

use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::find_job::unreadable;
use crate::client::Next;
use crate::protocol::{HistoryQuery, HistoryRecord, Status, StatusQuery};
use crate::run::OwnCode;
use crate::run::jobs::{Attended, Record};
use crate::sys::clock::unix_ms;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    Exited,
    Killed,
    /// Its command never ran.
    NeverRan,
    /// Neither the supervisor nor the daemon saw how.
    Unknown,
}

/// The end of a job; the `--json` output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct End {
    pub(super) job: u64,
    pub(super) how: How,
    pub(super) exit: Option<u8>,
    pub(super) signal: Option<i32>,
}

impl End {
    fn new(job: u64, how: How, exit: Option<u8>, signal: Option<i32>) -> Self {
        Self { job, how, exit, signal }
    }

    fn of(job: u64, exit: Option<u8>, signal: Option<i32>) -> Self {
        let how = match (exit, signal) {
            (Some(_), _) => How::Exited,
            (None, Some(_)) => How::Killed,
            (None, None) => How::Unknown,
        };
        Self::new(job, how, exit, signal)
    }
}

/// Waits until a job has ended.
pub(super) fn wait(target: &Target, record: Record) -> Result<End, Failed> {
    let record = record.wait().map_err(unreadable)?;
    let job = record.submitted.job;
    Ok(match (record.started_ms, record.end) {
        (Some(_), Some(end)) => End::of(job, end.exit, end.signal),
        (None, Some(end)) => {
            let exit = end.exit.unwrap_or(OwnCode::NotAcquired.number());
            End::new(job, How::NeverRan, Some(exit), None)
        }
        // The child of a supervisor that is killed ends with it, unless its command has started.
        (None, None) => End::new(job, How::NeverRan, Some(OwnCode::NotAcquired.number()), None),
        (Some(_), None) => {
            let mut client = target.connect()?;
            let gone = &mut |status: Option<Status>| match status {
                Some(status) if status.keys.is_empty() => Next::Never,
                _ => Next::AtChange,
            };
            client.watch(&in_table(&record), gone)?;
            let query = HistoryQuery {
                session: Some(record.session()),
                since_ms: Some(unix_ms().saturating_sub(record.submitted.at_ms)),
                limit: Some(1),
                ..HistoryQuery::default()
            };
            let found = client.history(&query).map(|page| page.records).unwrap_or_default();
            let how = |record: &HistoryRecord| (record.exit, record.signal.map(i32::from));
            let (exit, signal) = found.first().map_or((None, None), how);
            End::of(job, exit, signal)
        }
    })
}

/// Whether a job may still write output.
pub(super) fn may_run(target: &Target, record: &Record) -> Result<bool, Failed> {
    if record.attended().map_err(unreadable)? == Attended::Yes {
        return Ok(true);
    }
    if record.started_ms.is_none() || record.end.is_some() {
        return Ok(false);
    }
    let status = target.connect()?.status(&in_table(record));
    Ok(!status?.keys.is_empty())
}

fn in_table(record: &Record) -> StatusQuery {
    StatusQuery { session: Some(record.session()), ..StatusQuery::default() }
}
