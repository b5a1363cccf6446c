//! `canal run --detach`: submits a job, and returns once its request is queued.
//!
//! The job is an ordinary `canal run` with a supervisor, in its own session. Until its request is
//! queued, its messages go to the caller's stderr; from then on they go to its log.
//!
//! Invariant: either the caller learns the number of the job, or there is no job.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};

use super::log::make_room;
use crate::cli::arguments::definition::RunArgs;
use crate::cli::commands::run::{self, Job, RunHooks};
use crate::cli::source::Witness;
use crate::cli::{Failed, Global, Result, Target, stdout, wrong};
use crate::protocol::{Grant, Progress, Wrapper};
use crate::run::jobs::{Folder, NewJob};
use crate::run::{Ended, OwnCode, SUCCESS, supervise};
use crate::sys::fds;
use crate::sys::process::child::fork_apart;

/// What the job reports to the command that submits it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Report {
    /// Its request is queued or granted.
    Queued(Queued),
    /// It has ended with this exit code, and has printed why.
    Ended(u8),
}

/// A job whose request is queued; the `--json` output.
#[derive(Debug, Deserialize, Serialize)]
struct Queued {
    job: u64,
    session: String,
    /// Its place in the queue; 0 if it was granted at once.
    position: u64,
    log: PathBuf,
}

pub(crate) fn run(args: &RunArgs, global: &Global) -> Result<u8> {
    if args.nodes.is_given() {
        let why = "--detach cannot be used with --on: a background job belongs to one daemon";
        return Err(wrong("run", why));
    }
    let mut asked = run::asked(args, global.verbosity())?;
    let request = &mut asked.request;
    request.wrapper = Some(Wrapper::Supervised);
    let target = Target::of(global)?;
    make_room(&target)?;
    let folder = Folder::of(&target.place);
    let log = args.background.log.as_deref();
    let prepared = folder.begin(request.tag, log).and_then(|new| Ok((new, fds::pipe()?)));
    let (new, (reader, writer)) =
        prepared.map_err(|error| Failed::new(format!("cannot prepare the job: {error}")))?;
    let (keys, shown) =
        (request.items.iter().map(|it| it.key.to_string()).collect(), request.command.clone());
    let job = Job::new(args, global, asked)?;
    let cannot_start = |error: io::Error| Failed::new(format!("cannot start the job: {error}"));
    match fork_apart() {
        Ok(true) => {
            drop(reader);
            let reporter = Reporter {
                new,
                keys,
                shown,
                pipe: Some(writer.into()),
                published: None,
                stderr: None,
            };
            let failed = |error| target.verbosity.failure(&cannot_start(error));
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
    match serde_json::from_str(&line) {
        Ok(Report::Queued(queued)) if args.background.json => {
            stdout::print_or_fail(&stdout::json(&queued)?)?;
            Ok(SUCCESS)
        }
        Ok(Report::Queued(Queued { job, position, log, .. })) => {
            stdout::print_or_fail(&format!("{job} {position} {}\n", log.display()))?;
            Ok(SUCCESS)
        }
        Ok(Report::Ended(code)) => Ok(code),
        Err(_) => Err(Failed::new("the job was ended before its request was queued")),
    }
}

/// The process of the job: lets a child take the lock and become the command, and records its end.
fn background(mut job: Job<'_>, mut reporter: Reporter) -> io::Result<u8> {
    let verbosity = job.verbosity;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(&reporter.new.log)?;
    reporter.stderr = Some(io::stderr().as_fd().try_clone_to_owned()?);
    dup2_stderr(&reporter.new.log)?;
    job.record = Some(reporter.new.to_close()?);
    let job = &job;
    let child = move |channel| {
        reporter.talk_to_caller();
        let code = job.start_in_child(channel, None, Some(&mut reporter));
        reporter.ended(code);
        code
    };
    let ended = supervise(&job.limits, &mut RunHooks { job, coordinator: None }, child)?;
    let (exit, signal) = match &ended {
        Ended::Exited(code) => (Some(*code), None),
        Ended::Signaled(signal) => (None, Some(*signal)),
        Ended::TimeOver(_) => (Some(OwnCode::TimeOver.number()), None),
        Ended::LockLost(_) => (Some(OwnCode::LockLost.number()), None),
    };
    if let Some(Err(error)) = job.record.as_ref().map(|record| record.ended(exit, signal)) {
        verbosity.message(&format!("cannot record how the job ended: {error}"));
    }
    Ok(job.conclude(ended))
}

/// Reports to the command that submits the job, in the process that becomes the job's command.
struct Reporter {
    new: NewJob,
    keys: Vec<String>,
    shown: String,
    /// `None` once it has reported.
    pipe: Option<File>,
    /// The number of the job, and that of its session, once it has reported.
    published: Option<(u64, u64)>,
    /// The caller's stderr.
    stderr: Option<OwnedFd>,
}

impl Reporter {
    /// Sends messages to the caller's stderr.
    fn talk_to_caller(&self) {
        if let Some(stderr) = &self.stderr {
            // Otherwise the messages are in the log.
            let _ = dup2_stderr(stderr);
        }
    }

    /// Gives the job its number, and reports it once. From then on, follows its session.
    fn queued(&mut self, session: &str, position: u64) -> Result {
        let number = session.strip_prefix('s').and_then(|digits| digits.parse().ok());
        let number = number
            .ok_or_else(|| Failed::new("the daemon did not give the request a job number"))?;
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
        let log = self.new.publish(job, keys, &self.shown).map_err(failed)?;
        let sent = send(pipe, &Report::Queued(Queued { job, session, position, log }));
        sent.map_err(|_| Failed::new("the command that submits the job has ended"))?;
        let _ = dup2_stderr(&self.new.log);
        (self.pipe, self.stderr, self.published) = (None, None, Some((job, job)));
        Ok(())
    }

    /// Reports the end of a job that was not queued.
    fn ended(&mut self, code: u8) {
        if let Some(mut pipe) = self.pipe.take() {
            self.new.discard();
            // If the caller has ended, the report has no reader.
            let _ = send(&mut pipe, &Report::Ended(code));
        }
    }
}

impl Witness for Reporter {
    fn waits(&mut self, progress: &Progress) -> Result {
        match &progress.session {
            Some(session) => self.queued(session, progress.position),
            // The request is not in the table yet.
            None => Ok(()),
        }
    }

    fn granted(&mut self, grant: &Grant) -> Result {
        self.queued(&grant.session, 0)
    }
}

fn send(pipe: &mut File, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    pipe.write_all(&line)
}
