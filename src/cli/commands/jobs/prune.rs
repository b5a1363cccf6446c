//! Removes ended jobs to keep within the size that the configuration allows.

use crate::cli::arguments::definition::LogArgs;
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::find_job::unreadable;
use crate::cli::output::stdout;
use crate::daemon::{job_bytes_max, written_bytes};
use crate::run::jobs::{Folder, Pruned};

/// `canal log --prune`.
pub(super) fn run(args: &LogArgs, target: &Target) -> Result<u8, Failed> {
    let most = if args.all { 0 } else { job_bytes_max(&target.place.stores().config)? };
    let pruned = Folder::of(&target.place).prune(most).map_err(unreadable)?;
    stdout::report(&pruned, args.json, || told(pruned) + "\n")
}

/// Makes room for another job. A configuration that cannot be read removes nothing.
pub(super) fn make_room(target: &Target) -> Result<(), Failed> {
    let Ok(most) = job_bytes_max(&target.place.stores().config) else { return Ok(()) };
    let pruned = Folder::of(&target.place).prune(most).map_err(unreadable)?;
    if pruned.jobs > 0 {
        target.verbosity.note(&format!("{}; `jobs.max` is {}", told(pruned), written_bytes(most)));
    }
    Ok(())
}

fn told(pruned: Pruned) -> String {
    let Pruned { jobs, bytes, left } = pruned;
    let noun = if jobs == 1 { "job" } else { "jobs" };
    format!(
        "removed the records and logs of {jobs} finished {noun} ({bytes} bytes); {left} bytes \
         remain"
    )
}
