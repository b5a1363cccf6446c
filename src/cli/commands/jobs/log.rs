//! `canal log`: prints the output of a job, and removes ended jobs.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::thread;
use std::time::Duration;

use crate::cli::commands::jobs::wait::may_run;
use crate::cli::find_job::{named, numbered, unreadable};
use crate::cli::{Failed, LogArgs, Result, Target, plural, stdout};
use crate::daemon::job_bytes_max;
use crate::run::job_files::{Folder, Pruned};

/// How often to look for further output.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn log(args: &LogArgs, target: &Target) -> Result {
    if args.prune {
        return prune(args, target);
    }
    let mut record = named(target, args.job.as_deref())?;
    let path = record.job.log.clone();
    let shown = path.display();
    let mut log = File::open(&path).map_err(|error| {
        Failed::new(format!("cannot open the log of job {}: {shown}: {error}", record.job.number))
    })?;
    loop {
        // Output that is written before the end is seen is printed after it.
        let goes_on = args.follow && may_run(target, &record)?;
        let mut stdout = io::stdout().lock();
        // The rest of the log, byte by byte as the command wrote it.
        match io::copy(&mut log, &mut stdout).and_then(|_| stdout.flush()) {
            Ok(()) if goes_on => {}
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failed::new(format!("cannot print {shown}: {error}"))),
        }
        thread::sleep(LOOK_EVERY);
        record = numbered(target, record.job.number)?;
    }
}

/// `canal log --prune`.
fn prune(args: &LogArgs, target: &Target) -> Result {
    let most = if args.all { 0 } else { job_bytes_max(&target.place.stores().config)? };
    let pruned = Folder::of(&target.place).prune(most).map_err(unreadable)?;
    stdout::report(&pruned, args.json, || told(pruned) + "\n")
}

pub(super) fn told(pruned: Pruned) -> String {
    let Pruned { jobs, bytes, left } = pruned;
    let jobs = plural(jobs, "finished job", "finished jobs");
    format!("removed the records and logs of {jobs} ({bytes} bytes); {left} bytes remain")
}
