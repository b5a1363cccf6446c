//! `canal submit` and `canal run --detach`: submits a job, and returns once its request is queued.
//! The job is an ordinary `canal run` with a supervisor, in its own session. Until its request is
//! queued, its output goes to the caller; from then on it goes to its log.
//!
//! Invariant: either the caller learns the number of the job, or there is no job.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};

use crate::cli::commands::jobs::log::told;
use crate::cli::commands::run;
use crate::cli::find_job::unreadable;
use crate::cli::{Failed, Global, Result, RunArgs, stderr, stdout, wrong};
use crate::daemon::{job_bytes_max, written_bytes};
use crate::protocol::Wrapper;
use crate::run::job_files::{Folder, NewJob};
use crate::run::{SUCCESS, supervise};
use crate::sys::fds;
use crate::sys::process::child::fork_apart;
use crate::sys::process::startup;

/// What the job reports to the command that submits it: that its request is queued or granted, or
/// that it has ended with this exit code, and has printed why.
type Report = Result<Queued, u8>;

/// A job whose request is queued; the `--json` output.
#[derive(Debug, Deserialize, Serialize)]
struct Queued {
    job: u64,
    session: String,
    /// Its place in the queue; 0 if it was granted at once.
    position: u64,
    log: PathBuf,
}

pub(crate) fn submit(args: &RunArgs, global: &Global) -> Result<u8> {
    if args.nodes.is_given() {
        let why = "--detach cannot be used with --on: a background job belongs to one daemon";
        return Err(wrong("run", why));
    }
    let mut job = run::Job::new(args, global)?;
    job.request.wrapper = Some(Wrapper::Supervised);
    let (request, target) = (&job.request, &job.source.target);
    let folder = Folder::of(&target.place);
    // A configuration that cannot be read makes no room.
    if let Ok(most) = job_bytes_max(&target.place.stores().config) {
        let pruned = folder.prune(most).map_err(unreadable)?;
        if pruned.jobs > 0 {
            stderr::note(&format!("{}; `jobs.max` is {}", told(pruned), written_bytes(most)));
        }
    }
    let log = args.how.log.as_deref();
    let prepared = folder.begin(request.tag, log).and_then(|new| Ok((new, fds::pipe()?)));
    let (new, (reader, writer)) =
        prepared.map_err(|error| Failed::new(format!("cannot prepare the job: {error}")))?;
    let keys = request.items.iter().map(|it| it.key.to_string()).collect();
    let cannot_start = |error: io::Error| Failed::new(format!("cannot start the job: {error}"));
    match fork_apart() {
        Ok(true) => {
            drop(reader);
            let reporter =
                Reporter { new, keys, pipe: Some(writer.into()), published: None, caller: None };
            let failed = |error| stderr::failure(&cannot_start(error));
            std::process::exit(background(job, reporter).unwrap_or_else(failed).into())
        }
        Ok(false) => drop((writer, new)),
        Err(error) => {
            new.discard();
            return Err(cannot_start(error));
        }
    }
    let mut line = String::new();
    BufReader::new(File::from(reader)).read_line(&mut line).map_err(cannot_start)?;
    match serde_json::from_str::<Report>(&line) {
        Ok(Ok(queued)) => {
            stdout::print_or_fail(&match args.how.json {
                true => stdout::json(&queued)?,
                false => format!("{} {} {}\n", queued.job, queued.position, queued.log.display()),
            })?;
            Ok(SUCCESS)
        }
        Ok(Err(code)) => Ok(code),
        Err(_) => Err(Failed::new("the job was ended before its request was queued")),
    }
}

/// The process of the job: lets a child take the lock and become the command, and records its end.
fn background(mut job: run::Job<'_>, mut reporter: Reporter) -> io::Result<u8> {
    let pipe = reporter.pipe.as_ref().map(AsFd::as_fd);
    let kept: Vec<_> = reporter.new.descriptors().into_iter().chain(pipe).collect();
    // A pipe or a file lock of the caller must not stay open for as long as the job waits or runs.
    // The descriptors that keep an enclosing hold (--with-children) belong to the caller as well: a
    // job has a session of its own.
    fds::close_except(&kept);
    dup2_stdin(File::open("/dev/null")?)?;
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    reporter.caller = Some((stdout, io::stderr().as_fd().try_clone_to_owned()?));
    write_to(&reporter.new.log, &reporter.new.log)?;
    startup::standard_descriptors_opened();
    job.record = Some(reporter.new.to_close()?);
    let job = &job;
    let child = move |channel| {
        if let Some((stdout, stderr)) = &reporter.caller {
            // Otherwise the output is in the log.
            let _ = write_to(stdout, stderr);
        }
        let mut queued = |session: &str, position| reporter.queued(session, position);
        let code = job.start_in_child(channel, None, Some(&mut queued));
        reporter.ended(code);
        code
    };
    let ended = supervise(&job.limits, job, None, child)?;
    let code = ended.code();
    let recorded = job.record.as_ref().map(|record| record.ended(code.ok(), code.err()));
    if let Some(Err(error)) = recorded {
        stderr::message(&format!("cannot record how the job ended: {error}"));
    }
    Ok(job.conclude(ended))
}

/// Reports to the command that submits the job, in the process that becomes the job's command.
struct Reporter {
    new: NewJob,
    keys: Vec<String>,
    /// `None` once it has reported.
    pipe: Option<File>,
    /// The number of the job, and that of its session, once it has reported.
    published: Option<(u64, u64)>,
    /// The caller's stdout and stderr.
    caller: Option<(OwnedFd, OwnedFd)>,
}

impl Reporter {
    /// Gives the job its number, and reports it once. From then on, follows its session.
    fn queued(&mut self, session: &str, position: u64) -> Result {
        let number = session.strip_prefix('s').and_then(|digits| digits.parse().ok());
        let missing = || Failed::new("the daemon did not give the request a job number");
        let number = number.ok_or_else(missing)?;
        let failed = |error| Failed::new(format!("cannot record the job: {error}"));
        if let Some((job, known)) = &mut self.published {
            if *known != number {
                self.new.moved(*job, number).map_err(failed)?;
                *known = number;
            }
            return Ok(());
        }
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let (job, session) = (number, session.to_owned());
        let keys = std::mem::take(&mut self.keys);
        let log = self.new.publish(job, keys).map_err(failed)?;
        let sent = send(pipe, &Ok(Queued { job, session, position, log }));
        sent.map_err(|_| Failed::new("the command that submits the job has ended"))?;
        let _ = write_to(&self.new.log, &self.new.log);
        (self.pipe, self.caller, self.published) = (None, None, Some((job, job)));
        Ok(())
    }

    /// Reports the end of a job that was not queued.
    fn ended(&mut self, code: u8) {
        if let Some(mut pipe) = self.pipe.take() {
            self.new.discard();
            // If the caller has ended, the report has no reader.
            let _ = send(&mut pipe, &Err(code));
        }
    }
}

/// Lets this process write its standard output and its messages to these files.
fn write_to(stdout: &impl AsFd, stderr: &impl AsFd) -> io::Result<()> {
    dup2_stdout(stdout)?;
    Ok(dup2_stderr(stderr)?)
}

fn send(pipe: &mut File, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    pipe.write_all(&line)
}
