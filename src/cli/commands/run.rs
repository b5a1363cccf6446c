//! `canal run`: takes the lock and becomes the command.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use itertools::Itertools as _;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::cli::lock_source::{self, Asking, Source, Witness, end_coordinator, print};
use crate::cli::wording::{lost, print_refusal};
use crate::cli::{
    Failed, Global, HowArgs, JobserverArg, Result, RunArgs, cut, stated, stderr, wrong,
};
use crate::client::command_environment::clash;
use crate::client::hold_monitor::LostHold;
use crate::client::{Fate, OWN, is_on_demand_daemon};
use crate::duration::milliseconds;
use crate::protocol::paths::Rule;
use crate::protocol::{Acquire, ErrorName, Mode, Wrapper};
use crate::run::job_files::OpenRecord;
use crate::run::nodes::{ChildEnd, LOST_HINT, Line, Purpose, Wish};
use crate::run::{
    Asked as ByCaller, ChildChannel, Command, Ended, KILL_AFTER_DEFAULT, Limits, NotBegun, NotRun,
    SupervisorHooks, become_command, makeflags, supervise,
};
use crate::sys::process::user::SignalRefused;

pub(crate) fn run(args: &RunArgs, global: &Global) -> Result<u8> {
    let mut job = Job::new(args, global)?;
    if job.limits.max_run.is_none() && job.source.nodes.is_none() {
        if let Some(failed) = job.start(None, None, None) {
            return Err(failed);
        }
        // Only an engine needs the fork and the second request. Without one, canal becomes the
        // command after a single round trip.
        job.request.wrapper = Some(Wrapper::Supervised);
        job.can_be_lost = true;
    }
    job.supervise()
}

/// Fails if variables of two keys, such as `CANAL_SLOT_GPU`, would have the same name.
fn check_variables(request: &Acquire) -> Result {
    let counted = request.items.iter().filter(|item| item.mode.is_none());
    let clash = clash(counted.map(|item| &*item.key));
    let Some((one, other, suffix)) = clash else { return Ok(()) };
    let why = format!("`{one}` and `{other}` would both set CANAL_SLOT_{suffix} for the command");
    let hint = "rename one key, or take one lock with `canal run` inside the other";
    Err(Failed::new(why).hint(hint))
}

/// The most columns of a command line that canal sends to the daemon.
const COMMAND_COLUMNS_MAX: usize = 1000;

/// Everything that is needed to take the lock and become the command.
pub(super) struct Job<'a> {
    args: &'a RunArgs,
    pub(super) source: Source,
    command: Command,
    pub(super) request: Acquire,
    pub(super) limits: Limits,
    /// Whether the daemon reported that the hold can be lost.
    can_be_lost: bool,
    /// The record of a background job, which its supervisor keeps open.
    pub(super) record: Option<OpenRecord>,
}

impl<'a> Job<'a> {
    /// Reads the command line, and finds the command.
    pub(super) fn new(args: &'a RunArgs, global: &Global) -> Result<Self> {
        let argv = argv(args)?;
        let limits = limits(&args.how)?;
        let outside = [("--log", args.how.log.is_some()), ("--json", args.how.json)];
        if let Some((option, _)) = outside.iter().find(|(_, given)| *given && !args.how.detach) {
            return Err(wrong("run", format!("{option} needs --detach")));
        }
        if args.ttl.is_some() && !args.nodes.is_given() {
            let why = "--ttl needs --on: without nodes, the lock lasts as long as the command";
            return Err(wrong("run", why));
        }
        let mut request = lock_source::request("run", &args.asked, &args.nodes)
            .map_err(|failed| key_before_command(failed, args))?;
        let shown = argv.iter().map(|word| word.to_string_lossy()).join(" ");
        request.command = cut(&shown, COMMAND_COLUMNS_MAX);
        check_jobserver(args, &request)?;
        check_variables(&request)?;
        request.with_children = limits.with_children;
        request.jobserver = args.how.jobserver.is_some();
        request.on_lost = limits.on_lost;
        request.max_run_ms = limits.max_run.map(milliseconds);
        // Without a limit, nothing needs a parent.
        let wrapper = if limits.max_run.is_some() { Wrapper::Supervised } else { Wrapper::Exec };
        request.wrapper = Some(wrapper);
        // The command is looked up before the request, so that a typing error does not wait in the
        // queue.
        let command = Command::find(argv).map_err(|not_run| not_found(not_run, args))?;
        if let Some(form) = args.how.jobserver {
            request.jobserver_fifo = match form {
                JobserverArg::Auto => makeflags::finds_fifo(&command),
                JobserverArg::Fifo => true,
                JobserverArg::Pipe => false,
            };
            warn_of_unused_jobserver(&command, &request);
        }
        let purpose = Purpose::Command(request.on_lost);
        let source = Source::of(global, &args.nodes, args.ttl, &request, purpose)?;
        let socket = &source.target.place.socket;
        request.under = args.asked.session.enclosing_leases().at_socket(socket);
        let (can_be_lost, record) = (false, None);
        Ok(Self { args, source, command, request, limits, can_be_lost, record })
    }

    /// Like [`Self::start`], in the child of a supervisor. Returns the exit code.
    pub(super) fn start_in_child(
        &self,
        child_channel: ChildChannel,
        end: Option<ChildEnd>,
        witness: Option<Witness<'_>>,
    ) -> u8 {
        let failed = self.start(Some(child_channel), end, witness);
        let unseen = || Failed::new("the daemon cannot see the command's supervisor");
        stderr::failure(&failed.unwrap_or_else(unseen))
    }

    /// Takes the lock and becomes the command; returns only if that fails, with the reason. `None`
    /// if the daemon requires a supervisor, and has not considered the request yet. `end` belongs
    /// to a coordinator. A background job has a witness.
    fn start(
        &self,
        child_channel: Option<ChildChannel>,
        end: Option<ChildEnd>,
        witness: Option<Witness<'_>>,
    ) -> Option<Failed> {
        let (request, wait, target) = (&self.request, &self.args.asked.wait, &self.source.target);
        let asking = Asking { request, owner: None, wait };
        let taken = match self.source.take(&asking, end, witness) {
            Ok(taken) => taken,
            Err(failed) => match &failed.failure {
                Some(why) if why.name == ErrorName::SupervisorRequired => return None,
                Some(why) if why.name == ErrorName::Refused => {
                    return Some(print_refusal::report(why, wait, self.args.how.json));
                }
                _ => return Some(failed),
            },
        };
        let place = &target.place;
        let socket = (place.rule == Rule::Given).then_some(place.socket.as_path());
        let (tag, new_session) = (request.tag, self.args.asked.session.new_session);
        let record = self.record.as_ref();
        let asked = ByCaller { tag, socket, new_session, record };
        Some(match become_command(&self.command, taken, asked, child_channel) {
            NotBegun::NotRun(not_run) => not_run.into(),
            NotBegun::Lost(lost) => lost::not_begun(&lost, &request.keys()),
            NotBegun::Failed(why) => Failed::new(why),
        })
    }

    /// Lets a child take the lock, and stays as its parent.
    fn supervise(&self) -> Result<u8> {
        let Source { target, nodes } = &self.source;
        let under = self.args.asked.session.enclosing_leases();
        let asked = nodes.as_ref().map(|nodes| nodes.ask(target, &self.request, under));
        let (mut coordinator, end) = asked.transpose()?.unzip();
        let child = |channel| self.start_in_child(channel, end, None);
        let ended = supervise(&self.limits, self, coordinator.as_mut(), child);
        end_coordinator(coordinator, Wish::Stop);
        let failed = |error| Failed::new(format!("cannot start the command: {error}"));
        Ok(self.conclude(ended.map_err(failed)?))
    }

    /// Prints why canal ended the command, if it did, and passes on how the command ended.
    pub(super) fn conclude(&self, ended: Ended) -> u8 {
        if let Ended::TimeOver(signal) = ended {
            let after = self.limits.max_run.map(stated).unwrap_or_default();
            stderr::message(&format!("ended the command with {signal} after {after} (--max-run)"));
        }
        ended.pass_on()
    }
}

impl SupervisorHooks for Job<'_> {
    fn can_be_lost(&self) -> bool {
        self.can_be_lost
    }

    fn lost(&self, lost: &LostHold) {
        stderr::message(&lost::of_hold(lost, &self.request.keys()));
        stderr::hint(LOST_HINT);
    }

    fn refused(&self, refused: &SignalRefused) {
        stderr::message(&refused.to_string());
        stderr::hint(lost::REFUSED_HINT);
    }

    fn is_daemon(&self, pid: Pid) -> bool {
        is_on_demand_daemon(pid.as_raw().unsigned_abs(), Some(Path::new(OWN)))
    }

    fn overrun(&self) {
        // Nodes have only the lease of the coordinator, which releases it.
        if self.source.nodes.is_none() {
            self.source.target.report_overrun(self.request.tag);
        }
    }

    fn ended(&self) {
        if let Some(session) = self.record.as_ref().and_then(OpenRecord::session) {
            self.source.target.until_recorded(session);
        }
    }

    fn ask(&self, token: u64) -> Option<Fate> {
        // With nodes, the page belongs to this process, so it never loses its writer.
        let Source { target, nodes } = &self.source;
        let ask = || Fate::ask(&target.place, target.options.clone(), self.request.tag, token);
        nodes.is_none().then(ask).flatten()
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.record.iter().map(AsFd::as_fd).collect()
    }

    fn say(&self, line: &Line) {
        print(line);
    }
}

fn argv(args: &RunArgs) -> Result<Vec<OsString>> {
    match (&args.how.shell, args.command.as_slice()) {
        (Some(text), []) => Ok(vec!["sh".into(), "-c".into(), text.clone()]),
        (Some(_), [first, ..]) => {
            let first = first.to_string_lossy();
            Err(wrong("run", format!("-c takes the whole command, but `{first}` follows it")))
        }
        (None, []) => Err(Failed::new("no command given; give it after the options")
            .hint("canal run --key x -- COMMAND…, or a string for sh with -c STRING")),
        (None, command) => Ok(command.to_vec()),
    }
}

/// Characters in a word that only a shell interprets.
const SHELL_ONLY: &[char] = &[' ', '\t', '\n', '|', '&', ';', '<', '>', '(', ')', '$', '`', '*'];

/// Commands that are built into a shell.
const BUILTINS: &[&str] = &[
    "cd", "export", "source", ".", "eval", "exec", "set", "ulimit", "umask", "if", "for", "while",
];

/// The failure for a command that does not exist. A command line for the shell needs `-c`.
fn not_found(not_run: NotRun, args: &RunArgs) -> Failed {
    let name = not_run.command.to_string_lossy().into_owned();
    let line = args.command.len() == 1 && name.contains(SHELL_ONLY);
    // A long line cannot be a file name.
    let too_long = line && not_run.error.raw_os_error() == Some(libc::ENAMETOOLONG);
    let is_for_shell = (not_run.is_not_found() || too_long)
        && args.how.shell.is_none()
        && (line || BUILTINS.contains(&name.as_str()));
    let is_shown = line && !name.contains('\'') && name.len() <= HINT_COLUMNS;
    let shown = if is_shown { format!("'{name}'") } else { "STRING".to_owned() };
    let hint = format!("give a command line for the shell after -c: -c {shown}");
    Failed::from(not_run).hint_if(is_for_shell.then_some(hint))
}

/// The most columns of a command line that a hint repeats.
const HINT_COLUMNS: usize = 60;

/// If no option names a key, the word before `--` was probably meant as one: `canal run nightly --
/// ./x`.
fn key_before_command(failed: Failed, args: &RunArgs) -> Failed {
    match args.command.as_slice() {
        [key, dashes, ..] if args.asked.lock.names_none() && dashes == "--" => {
            let key = cut(&key.to_string_lossy(), HINT_COLUMNS);
            failed.hint(format!("give the key with an option: canal run --key {key} -- COMMAND"))
        }
        _ => failed,
    }
}

/// Checks that the request is possible with `--jobserver`.
fn check_jobserver(args: &RunArgs, request: &Acquire) -> Result {
    if args.how.jobserver.is_none() {
        return Ok(());
    }
    let is_one_slot = matches!(request.items.as_slice(), [item]
        if matches!(item.mode, None | Some(Mode::Counted)) && item.count.unwrap_or(1) == 1);
    let wrong = |why: &str| Err(wrong("run", format!("--jobserver {why}")));
    if args.nodes.is_given() {
        return wrong("cannot be combined with --on, because its slots belong to one daemon");
    }
    let one = "takes one slot of one --key for each job: leave out other keys, --read, --write \
               and --count";
    if is_one_slot { Ok(()) } else { wrong(one) }
}

/// Warns of a build that will probably not use its jobserver.
fn warn_of_unused_jobserver(command: &Command, request: &Acquire) {
    let key = request.items.first().map_or("", |item| &item.key);
    let untaken = format!("its jobs do not take slots of `{key}`");
    if let Some((tool, jobs)) = makeflags::number_of_jobs(&command.argv) {
        stderr::message(&format!("`{jobs}` makes {tool} ignore the jobserver: {untaken}"));
        stderr::hint(&format!("leave out `{jobs}`: the slots of the key limit the jobs"));
    }
    if makeflags::removes_variable(command) {
        let why = "sudo removes MAKEFLAGS, by which a build finds the jobserver";
        stderr::message(&format!("{why}: {untaken}"));
        stderr::hint("keep it with `sudo --preserve-env=MAKEFLAGS`");
    } else if let Some(closes) = makeflags::closes_descriptors(command)
        && !request.jobserver_fifo
    {
        stderr::message(&format!(
            "{closes} closes the descriptors of the jobserver: a make older than 4.4 then runs \
             one job at a time, and jobs of ninja and cargo do not take slots of `{key}`"
        ));
        stderr::hint(
            "put GNU make 4.4 first in the PATH, because it finds the jobserver by name; for \
             ninja and cargo, use --jobserver=fifo; in Python, pass close_fds=False to subprocess",
        );
    }
}

/// The limits of the command.
fn limits(how: &HowArgs) -> Result<Limits> {
    let given = [("--kill-after", how.kill_after.is_some()), ("--signal", how.signal.is_some())];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given && how.max_run.is_none()) {
        return Err(wrong("run", format!("{option} needs --max-run")));
    }
    Ok(Limits {
        max_run: how.max_run.flatten(),
        kill_after: how.kill_after.unwrap_or(Some(KILL_AFTER_DEFAULT)),
        signal: how.signal.unwrap_or(Signal::SIGTERM),
        with_children: how.with_children || how.jobserver.is_some(),
        on_lost: how.on_lost.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::Length;

    const HOW: HowArgs = HowArgs {
        shell: None,
        max_run: None,
        kill_after: None,
        signal: None,
        with_children: false,
        jobserver: None,
        on_lost: None,
        detach: false,
        log: None,
        json: false,
    };

    fn seconds(n: u64) -> Option<Length> {
        Some(Some(Duration::from_secs(n)))
    }

    #[test]
    fn only_a_bound_on_the_run_needs_a_parent() {
        let max_run = |how: HowArgs| limits(&how).unwrap().max_run;
        assert_eq!(max_run(HowArgs { with_children: true, ..HOW }), None);
        assert_eq!(max_run(HowArgs { max_run: Some(None), ..HOW }), None);
        let limits = limits(&HowArgs { max_run: seconds(3), ..HOW }).unwrap();
        assert_eq!(limits.max_run, Some(Duration::from_secs(3)));
        assert_eq!(limits.kill_after, Some(KILL_AFTER_DEFAULT));
        assert_eq!(limits.signal, Signal::SIGTERM);
    }

    #[test]
    fn how_to_end_the_command_means_nothing_without_when() {
        let error = |how| limits(&how).unwrap_err().message;
        assert_eq!(
            error(HowArgs { kill_after: seconds(1), ..HOW }),
            "--kill-after needs --max-run"
        );
        let signal = Some(Signal::SIGINT);
        assert_eq!(error(HowArgs { signal, ..HOW }), "--signal needs --max-run");
    }
}
