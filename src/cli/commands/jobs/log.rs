//! `canal log`: prints the output of a background job.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use super::fate::may_run;
use super::prune;
use crate::cli::arguments::definition::{Global, LogArgs};
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::find_job::{named, numbered};
use crate::run::SUCCESS;

/// How often to look for further output.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &LogArgs, global: &Global) -> Result<u8, Failed> {
    let target = Target::of(global)?;
    if args.prune {
        return prune::run(args, &target);
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
            Ok(()) => return Ok(SUCCESS),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(SUCCESS),
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
