//! `canal wait`: waits for jobs, and exits as they did. The supervisor of a job records its end. If
//! the supervisor was killed, the command may still run, and then only the daemon learns of its
//! end.

use itertools::Itertools as _;
use serde::Serialize;

use crate::cli::find_job::{numbered, unreadable};
use crate::cli::{JobWaitArgs, Result, Target, stderr, stdout};
use crate::client::Watch;
use crate::protocol::{HistoryQuery, HistoryRecord, StatusQuery};
use crate::run::job_files::{Job, Record};
use crate::run::{OwnCode, SUCCESS};
use crate::sys::clock::unix_ms;
use crate::sys::signals;

/// The end of a job; the `--json` output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct End {
    job: u64,
    /// `exited`, `killed`, `never-ran` if its command never ran, or `unknown` if neither the
    /// supervisor nor the daemon saw how.
    how: &'static str,
    exit: Option<u8>,
    signal: Option<i32>,
}

pub(crate) fn wait(args: &JobWaitArgs, target: &Target) -> Result<u8> {
    // A wrong number is reported before the wait.
    let records: Vec<_> = args.jobs.iter().map(|number| numbered(target, *number)).try_collect()?;
    let mut failure = None;
    for record in records {
        let end = end_of(target, record)?;
        if args.json {
            stdout::print_or_fail(&stdout::json(&end)?)?;
        }
        if end.exit != Some(SUCCESS) {
            failure.get_or_insert(end);
        }
    }
    let Some(End { job, exit, signal, .. }) = failure else { return Ok(SUCCESS) };
    Ok(match (exit, signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => signals::die_by(signal),
        (None, None) => {
            stderr::message(&format!(
                "job {job} has ended, but its supervisor was killed, and the daemon does not know its exit status"
            ));
            OwnCode::Failed.number()
        }
    })
}

/// Waits until a job has ended.
fn end_of(target: &Target, record: Record) -> Result<End> {
    let job = record.wait().map_err(unreadable)?;
    let (exit, signal) = match (job.started_ms, job.end) {
        (Some(_), Some(end)) => (end.exit, end.signal),
        // The child of a supervisor that is killed ends with it, unless its command has started.
        (None, end) => {
            let exit = end.and_then(|end| end.exit).unwrap_or(OwnCode::NotAcquired.number());
            return Ok(End { job: job.number, how: "never-ran", exit: Some(exit), signal: None });
        }
        (Some(_), None) => {
            let mut client = target.connect()?;
            let mut watch = Watch::new(in_table(&job));
            while watch.next(&mut client, None)?.is_some_and(|status| !status.keys.is_empty()) {}
            let query = HistoryQuery {
                session: Some(job.session()),
                since_ms: Some(unix_ms().saturating_sub(job.at_ms)),
                limit: Some(1),
                ..HistoryQuery::default()
            };
            let found = client.history(&query).ok().and_then(|it| it.records.into_iter().next());
            let how = |record: HistoryRecord| (record.exit, record.signal.map(i32::from));
            found.map(how).unwrap_or_default()
        }
    };
    let how = match (exit, signal) {
        (Some(_), _) => "exited",
        (None, Some(_)) => "killed",
        (None, None) => "unknown",
    };
    Ok(End { job: job.number, how, exit, signal })
}

/// Whether a job may still write output.
pub(super) fn may_run(target: &Target, record: &Record) -> Result<bool> {
    if record.is_attended().map_err(unreadable)? {
        return Ok(true);
    }
    if record.job.started_ms.is_none() || record.job.end.is_some() {
        return Ok(false);
    }
    let status = target.connect()?.status(&in_table(&record.job));
    Ok(!status?.keys.is_empty())
}

fn in_table(job: &Job) -> StatusQuery {
    StatusQuery { session: Some(job.session()), ..StatusQuery::default() }
}
