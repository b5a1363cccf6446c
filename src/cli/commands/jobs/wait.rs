//! `canal wait`: waits for background jobs, and exits as they did.

use super::fate::{End, How, wait};
use crate::cli::arguments::definition::{Global, JobWaitArgs};
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::find_job::numbered;
use crate::cli::output::stdout;
use crate::run::{OwnCode, SUCCESS};
use crate::sys::signals;

pub(crate) fn run(args: &JobWaitArgs, global: &Global) -> Result<u8, Failed> {
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
