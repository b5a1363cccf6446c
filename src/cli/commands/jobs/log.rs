//! `canal log`: prints the output of a background job, and removes ended jobs.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use super::wait::may_run;
use crate::cli::arguments::definition::LogArgs;
use crate::cli::find_job::{named, numbered, unreadable};
use crate::cli::{Failed, Global, Result, Target, plural, stdout};
use crate::daemon::{job_bytes_max, written_bytes};
use crate::run::jobs::{Folder, Pruned};

/// How often to look for further output.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &LogArgs, global: &Global) -> Result {
    let target = Target::of(global)?;
    if args.prune {
        return prune(args, &target);
    }
    let mut record = named(&target, args.job.as_deref())?;
    let path = record.submitted.log.clone();
    let shown = path.display();
    let mut log = File::open(&path).map_err(|error| {
        Failed::new(format!(
            "cannot open the log of job {}: {shown}: {error}",
            record.submitted.job
        ))
    })?;
    loop {
        // Output that is written before the end is seen is printed after it.
        let goes_on = args.follow && may_run(&target, &record)?;
        match print(&mut log) {
            Ok(()) if goes_on => {}
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failed::new(format!("cannot print {shown}: {error}"))),
        }
        thread::sleep(LOOK_EVERY);
        record = numbered(&target, record.submitted.job)?;
    }
}

/// Prints the rest of the log, byte by byte as the command wrote it.
fn print(log: &mut File) -> io::Result<()> {
    let mut buffer = [0; 64 * 1024];
    let mut stdout = io::stdout().lock();
    loop {
        match log.read(&mut buffer) {
            Ok(0) => return stdout.flush(),
            Ok(count) => stdout.write_all(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `canal log --prune`.
fn prune(args: &LogArgs, target: &Target) -> Result {
    let most = if args.all { 0 } else { job_bytes_max(&target.place.stores().config)? };
    let pruned = Folder::of(&target.place).prune(most).map_err(unreadable)?;
    stdout::report(&pruned, args.json, || told(pruned) + "\n")
}

/// Makes room for another job. A configuration that cannot be read removes nothing.
pub(super) fn make_room(target: &Target) -> Result {
    let Ok(most) = job_bytes_max(&target.place.stores().config) else { return Ok(()) };
    let pruned = Folder::of(&target.place).prune(most).map_err(unreadable)?;
    if pruned.jobs > 0 {
        target.verbosity.note(&format!("{}; `jobs.max` is {}", told(pruned), written_bytes(most)));
    }
    Ok(())
}

fn told(pruned: Pruned) -> String {
    let Pruned { jobs, bytes, left } = pruned;
    let jobs = plural(jobs, "finished job", "finished jobs");
    format!("removed the records and logs of {jobs} ({bytes} bytes); {left} bytes remain")
}
