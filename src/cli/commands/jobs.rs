//! Background jobs.
//!
//! `canal run --detach` submits a job, and returns once its request is queued. The job is an
//! ordinary `canal run` with a supervisor, in its own session. Until its request is queued, its
//! messages go to the caller's stderr; from then on they go to its log.
//!
//! `canal wait` waits for jobs, and exits as they did. The supervisor of a job records its end. If
//! the supervisor was killed, the command may still run, and then only the daemon learns of its
//! end.
//!
//! `canal log` prints the output of a job, and removes ended jobs. `canal priority` changes the
//! priority of a job that waits.
//!
//! Invariant: either the caller learns the number of the job, or there is no job.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};

use crate::cli::arguments::definition::{JobWaitArgs, LogArgs, PriorityArgs, RunArgs};
use crate::cli::commands::run;
use crate::cli::find_job::{named, numbered, session, unreadable};
use crate::cli::{Failed, Global, Result, Target, plural, stdout, wrong};
use crate::client::Watch;
use crate::daemon::{job_bytes_max, written_bytes};
use crate::protocol::{HistoryQuery, HistoryRecord, Prioritize, Prioritized, StatusQuery, Wrapper};
use crate::run::jobs::{Folder, Job, NewJob, Pruned, Record};
use crate::run::{OwnCode, SUCCESS, supervise};
use crate::sys::clock::unix_ms;
use crate::sys::process::child::fork_apart;
use crate::sys::{fds, signals};

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

pub(crate) fn submit(args: &RunArgs, global: &Global) -> Result<u8> {
    if args.nodes.is_given() {
        let why = "--detach cannot be used with --on: a background job belongs to one daemon";
        return Err(wrong("run", why));
    }
    let mut job = run::Job::new(args, global)?;
    job.request.wrapper = Some(Wrapper::Supervised);
    let (request, target) = (&job.request, &job.source.target);
    make_room(target)?;
    let folder = Folder::of(&target.place);
    let log = args.how.log.as_deref();
    let prepared = folder.begin(request.tag, log).and_then(|new| Ok((new, fds::pipe()?)));
    let (new, (reader, writer)) =
        prepared.map_err(|error| Failed::new(format!("cannot prepare the job: {error}")))?;
    let keys = request.items.iter().map(|it| it.key.to_string()).collect();
    let verbosity = job.verbosity;
    let cannot_start = |error: io::Error| Failed::new(format!("cannot start the job: {error}"));
    match fork_apart() {
        Ok(true) => {
            drop(reader);
            let reporter =
                Reporter { new, keys, pipe: Some(writer.into()), published: None, stderr: None };
            let failed = |error| verbosity.failure(&cannot_start(error));
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
        Ok(Report::Queued(queued)) => {
            stdout::print_or_fail(&match args.how.json {
                true => stdout::json(&queued)?,
                false => format!("{} {} {}\n", queued.job, queued.position, queued.log.display()),
            })?;
            Ok(SUCCESS)
        }
        Ok(Report::Ended(code)) => Ok(code),
        Err(_) => Err(Failed::new("the job was ended before its request was queued")),
    }
}

/// The process of the job: lets a child take the lock and become the command, and records its end.
fn background(mut job: run::Job<'_>, mut reporter: Reporter) -> io::Result<u8> {
    let verbosity = job.verbosity;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(&reporter.new.log)?;
    reporter.stderr = Some(io::stderr().as_fd().try_clone_to_owned()?);
    dup2_stderr(&reporter.new.log)?;
    job.record = Some(reporter.new.to_close()?);
    let job = &job;
    let child = move |channel| {
        if let Some(stderr) = &reporter.stderr {
            // Otherwise the messages are in the log.
            let _ = dup2_stderr(stderr);
        }
        let code = job.start_in_child(
            channel,
            None,
            Some(&mut |session, position| reporter.queued(session, position)),
        );
        reporter.ended(code);
        code
    };
    let mut hooks = job;
    let ended = supervise(&job.limits, &mut hooks, None, child)?;
    let code = ended.code();
    if let Some(Err(error)) = job.record.as_ref().map(|record| record.ended(code.ok(), code.err()))
    {
        verbosity.message(&format!("cannot record how the job ended: {error}"));
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
    /// The caller's stderr.
    stderr: Option<OwnedFd>,
}

impl Reporter {
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
        let log = self.new.publish(job, keys).map_err(failed)?;
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

fn send(pipe: &mut File, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    pipe.write_all(&line)
}

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

pub(crate) fn wait(args: &JobWaitArgs, global: &Global) -> Result<u8> {
    let target = Target::of(global)?;
    // A wrong number is reported before the wait.
    let records = args.jobs.iter().map(|number| numbered(&target, *number));
    let records = records.collect::<Result<Vec<_>, _>>()?;
    let mut failure = None;
    for record in records {
        let end = end_of(&target, record)?;
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
fn end_of(target: &Target, record: Record) -> Result<End> {
    let job = record.wait().map_err(unreadable)?;
    let number = job.number;
    Ok(match (job.started_ms, job.end) {
        (Some(_), Some(end)) => End::of(number, end.exit, end.signal),
        // The child of a supervisor that is killed ends with it, unless its command has started.
        (None, end) => {
            let exit = end.and_then(|end| end.exit).unwrap_or(OwnCode::NotAcquired.number());
            End { job: number, how: How::NeverRan, exit: Some(exit), signal: None }
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
            let found = client.history(&query).map(|page| page.records).unwrap_or_default();
            let how = |record: &HistoryRecord| (record.exit, record.signal.map(i32::from));
            let (exit, signal) = found.first().map_or((None, None), how);
            End::of(number, exit, signal)
        }
    })
}

/// Whether a job may still write output.
fn may_run(target: &Target, record: &Record) -> Result<bool> {
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

/// How often to look for further output.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn log(args: &LogArgs, global: &Global) -> Result {
    let target = Target::of(global)?;
    if args.prune {
        return prune(args, &target);
    }
    let mut record = named(&target, args.job.as_deref())?;
    let path = record.job.log.clone();
    let shown = path.display();
    let mut log = File::open(&path).map_err(|error| {
        Failed::new(format!("cannot open the log of job {}: {shown}: {error}", record.job.number))
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
        record = numbered(&target, record.job.number)?;
    }
}

/// Prints the rest of the log, byte by byte as the command wrote it.
fn print(log: &mut File) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    io::copy(log, &mut stdout)?;
    stdout.flush()
}

/// `canal log --prune`.
fn prune(args: &LogArgs, target: &Target) -> Result {
    let most = if args.all { 0 } else { job_bytes_max(&target.place.stores().config)? };
    let pruned = Folder::of(&target.place).prune(most).map_err(unreadable)?;
    stdout::report(&pruned, args.json, || told(pruned) + "\n")
}

/// Makes room for another job. A configuration that cannot be read removes nothing.
fn make_room(target: &Target) -> Result {
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

/// The `--json` output of `canal priority`.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    job: u64,
    #[serde(flatten)]
    changed: &'a Prioritized,
}

pub(crate) fn priority(args: &PriorityArgs, global: &Global) -> Result {
    let job = args.job;
    let target = Target::of(global)?;
    let asked = Prioritize { session: session(&target, job)?, priority: args.priority };
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
