//! `canal wait`: waits for background jobs, and exits as they did.
//!
//! The supervisor of a job records its end. If the supervisor was killed, the command may still
//! run, and then only the daemon learns of its end.

use serde::Serialize;

use crate::cli::arguments::definition::JobWaitArgs;
use crate::cli::find_job::{numbered, unreadable};
use crate::cli::{Global, Result, Target, stdout};
use crate::client::Next;
use crate::protocol::{HistoryQuery, HistoryRecord, Status, StatusQuery};
use crate::run::jobs::Record;
use crate::run::{OwnCode, SUCCESS};
use crate::sys::clock::unix_ms;
use crate::sys::signals;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum How {
    Exited,
    Killed,
    /// Its command never ran.
    NeverRan,
    /// Neither the supervisor nor the daemon saw how.
    Unknown,
}

/// The end of a job; the `--json` output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct End {
    job: u64,
    how: How,
    exit: Option<u8>,
    signal: Option<i32>,
}

impl End {
    fn of(job: u64, exit: Option<u8>, signal: Option<i32>) -> Self {
        let how = match (exit, signal) {
            (Some(_), _) => How::Exited,
            (None, Some(_)) => How::Killed,
            (None, None) => How::Unknown,
        };
        Self { job, how, exit, signal }
    }
}

pub(crate) fn run(args: &JobWaitArgs, global: &Global) -> Result<u8> {
    let target = Target::of(global)?;
    // A wrong number is reported before the wait.
    let records = args.jobs.iter().map(|number| numbered(&target, *number));
    let records = records.collect::<Result<Vec<_>, _>>()?;
    let mut failure = None;
    for record in records {
        let end = wait(&target, record)?;
        if args.json {
            stdout::print_or_fail(&stdout::json(&end)?)?;
        }
        if end.exit != Some(SUCCESS) {
            failure.get_or_insert(end);
        }
    }
    let Some(End { job, how, exit, signal }) = failure else { return Ok(SUCCESS) };
    if how == How::Unknown {
        target.verbosity.message(&format!(
            "job {job} has ended, but its supervisor was killed, and the daemon does not know its exit status"
        ));
    }
    Ok(match (exit, signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => signals::die_by(signal),
        (None, None) => OwnCode::Failed.number(),
    })
}

/// Waits until a job has ended.
fn wait(target: &Target, record: Record) -> Result<End> {
    let record = record.wait().map_err(unreadable)?;
    let job = record.submitted.job;
    Ok(match (record.started_ms, record.end) {
        (Some(_), Some(end)) => End::of(job, end.exit, end.signal),
        // The child of a supervisor that is killed ends with it, unless its command has started.
        (None, end) => {
            let exit = end.and_then(|end| end.exit).unwrap_or(OwnCode::NotAcquired.number());
            End { job, how: How::NeverRan, exit: Some(exit), signal: None }
        }
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
pub(super) fn may_run(target: &Target, record: &Record) -> Result<bool> {
    if record.is_attended().map_err(unreadable)? {
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
