//! `canal priority`: changes the priority of a job that waits.

use serde::Serialize;

use crate::cli::find_job::session;
use crate::cli::{PriorityArgs, Result, Target, stdout};
use crate::protocol::{Prioritize, Prioritized};

/// The `--json` output of `canal priority`.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    job: u64,
    #[serde(flatten)]
    changed: &'a Prioritized,
}

pub(crate) fn priority(args: &PriorityArgs, target: &Target) -> Result {
    let job = args.job;
    let asked = Prioritize { session: session(target, job)?, priority: args.priority };
    let mut client = target.connect()?;
    let changed = client.prioritize(&asked)?;
    stdout::report(&Changed { job, changed: &changed }, args.json, || {
        let Prioritized { before, priority, position, .. } = changed;
        let place = match position {
            0 => "running".to_owned(),
            1 => "next in line".to_owned(),
            _ => format!("position {position}"),
        };
        format!("job {job}: priority {priority} (previously {before}); {place}\n")
    })
}
