//! Ends the processes of holders and waiters, with the processes that they started: for `canal
//! kill`, `canal top`, and a request with `--supersede running`, which ends the commands that it
//! supersedes.
//!
//! Invariant: canal names the hold or the request to the daemon, not the process, and the daemon
//! sends no signal if that has changed. canal itself signals a process only through a pidfd that it
//! opened while the process was a descendant of the process shown, or an orphan of its group.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use itertools::Itertools as _;
use nix::sys::signal::Signal;

use crate::cli::wording::holders_and_waiters::{self, party, short_command};
use crate::cli::{Failed, Length, Result, Target, stated, stderr, user_name};
use crate::client::{Client, ClientError, OWN, is_on_demand_daemon};
use crate::protocol::{ErrorName, Kill, KillTarget, KillTargets, Tag, WouldKill};
use crate::sys::pidfd::{Pidfd, is_gone};
use crate::sys::process::{self, add_descendants, add_orphans_of_group, uid_of};

/// Fails if the caller cannot end this target.
pub(crate) fn refusal(target: &KillTarget) -> Result {
    match &target.refused {
        None => Ok(()),
        Some(refused) => Err(Failed::new(refused.as_str()).hint_if(target.hint.as_deref())),
    }
}

/// The processes that can be ended, with those that they started. Each process is signalled once.
pub(crate) fn endings<'a>(client: &mut Client, found: &'a KillTargets) -> Result<Vec<Ending<'a>>> {
    let targets = found.targets.iter().filter(|target| target.refused.is_none()).enumerate();
    // A process of another pid namespace has no pid here.
    let identity = |(at, KillTarget { party, host, .. }): &(usize, &'a KillTarget)| {
        (party.pid, host, if party.pid == 0 { *at } else { 0 })
    };
    targets.unique_by(identity).map(|(_, target)| Ending::find(client, target)).collect()
}

/// The message about a process that was signalled.
pub(crate) fn sent(target: &KillTarget, signal: Signal) -> String {
    format!("sent {} to {}", name(signal), party(&target.party))
}

/// `TERM`.
pub(crate) fn name(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

/// How often canal looks for newly started processes.
const LOOK: Duration = Duration::from_millis(500);

/// A holder or waiter, and the processes that it has started.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) target: &'a KillTarget,
    /// The processes, starting with the holder or waiter itself, whose pid is 0 if it has none
    /// here. Empty if it cannot be known.
    tree: Vec<(u32, Pidfd)>,
    /// The processes that canal may not signal, and has reported.
    refused: BTreeSet<u32>,
}

impl<'a> Ending<'a> {
    /// Finds the processes as they are now.
    pub(crate) fn find(client: &mut Client, target: &'a KillTarget) -> Result<Self> {
        let kill = kill(target, Signal::SIGTERM);
        let process = match client.process_to_kill(&kill) {
            Ok(process) => process,
            // The signal that follows reports what has changed.
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::NotHeld => None,
            Err(error) => return Err(error.into()),
        };
        let tree = process.and_then(|process| Some((process.pid()?, process)));
        let tree = tree.into_iter().collect();
        let mut ending = Self { target, tree, refused: BTreeSet::new() };
        ending.look();
        Ok(ending)
    }

    /// How many of the processes that it started are still running.
    pub(crate) fn started(&self) -> usize {
        self.tree.iter().skip(1).filter(|(_, it)| !it.has_ended()).count()
    }

    /// Signals the process. If the signal ends commands, also signals all processes that it
    /// started. Returns the errors for those that could not be signalled.
    pub(crate) fn signal(&mut self, client: &mut Client, signal: Signal) -> Result<Vec<String>> {
        // Once a process has ended, its orphans can no longer be found.
        self.look();
        client.kill(&kill(self.target, signal)).map_err(|error| match error {
            ClientError::Gone(_) => {
                Failed::new("the daemon ended before it answered; it may have sent the signal")
            }
            error => error.into(),
        })?;
        if !ends(signal) {
            return Ok(Vec::new());
        }
        let (_, refused) = self.send(1, signal);
        // A stopped process handles the signal only after it continues.
        self.tree.iter().for_each(|(_, process)| drop(process.signal(Signal::SIGCONT)));
        Ok(refused)
    }

    /// Signals the processes from index `first` on. Returns those that were signalled, and the
    /// errors that were not reported yet.
    fn send(&mut self, first: usize, signal: Signal) -> (Vec<Left>, Vec<String>) {
        let (mut sent, mut refused) = (Vec::new(), Vec::new());
        for (pid, process) in self.tree.iter().skip(first).filter(|(_, it)| !it.has_ended()) {
            // A killed process may no longer have a command line.
            let named = Left::of(*pid);
            match process.signal(signal) {
                Ok(()) => sent.push(named),
                Err(error) if !is_gone(&error) && self.refused.insert(*pid) => {
                    refused.push(not_signalled(*pid, process, &error));
                }
                Err(_) => {}
            }
        }
        (sent, refused)
    }

    fn living(&self) -> impl Iterator<Item = &(u32, Pidfd)> {
        self.tree.iter().filter(|(_, it)| !it.has_ended())
    }

    fn look(&mut self) {
        add_descendants(&mut self.tree, is_spared);
        if let Some(leader) = self.tree.first().map(|(pid, _)| *pid) {
            add_orphans_of_group(&mut self.tree, leader, is_spared);
            add_descendants(&mut self.tree, is_spared);
        }
    }
}

/// A process that still runs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Left {
    pid: u32,
    command: Option<String>,
}

impl Left {
    fn of(pid: u32) -> Self {
        Self { pid, command: process::command_line(pid) }
    }

    /// `pid 812 `make test``.
    fn shown(&self) -> String {
        match &self.command {
            Some(command) => format!("pid {} `{}`", self.pid, short_command(command)),
            None => holders_and_waiters::process(self.pid),
        }
    }
}

/// Waits until all these processes have ended, or until the time is over. Returns whether they have
/// ended.
fn wait(endings: &mut [Ending<'_>], time: Option<Duration>) -> bool {
    let until = time.and_then(|time| Instant::now().checked_add(time));
    loop {
        // One of them is enough, because the next round examines the others.
        let Some((_, first)) = endings.iter().flat_map(Ending::living).next() else { return true };
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return false;
        }
        first.wait_end(until.map_or(LOOK, |until| (until - now).min(LOOK)));
        endings.iter_mut().for_each(Ending::look);
    }
}

/// Whether users normally end a command with this signal. Other signals (HUP, USR1, STOP …) only
/// have a meaning for the process itself: sent to all descendants, they would end those that do not
/// expect them.
pub(crate) fn ends(signal: Signal) -> bool {
    use Signal::{SIGABRT, SIGINT, SIGKILL, SIGQUIT, SIGTERM};
    matches!(signal, SIGTERM | SIGINT | SIGQUIT | SIGABRT | SIGKILL)
}

fn not_signalled(pid: u32, process: &Pidfd, error: &io::Error) -> String {
    let shown = Left::of(pid).shown();
    match uid_of(process).filter(|_| error.kind() == io::ErrorKind::PermissionDenied) {
        Some(uid) => format!("cannot signal {shown}: it runs as {}", user_name::name(uid)),
        None => format!("cannot signal {shown}: {error}"),
    }
}

/// Whether the process is this one, which may run under the lock, or a daemon, which also serves
/// other clients.
fn is_spared(pid: u32) -> bool {
    pid == std::process::id() || is_on_demand_daemon(pid, Some(Path::new(OWN)))
}

fn kill(target: &KillTarget, signal: Signal) -> Kill {
    Kill { token: target.token, request: target.request, signal: signal as i32 }
}

/// How long canal waits for processes to end after a signal, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// Ends the commands that the request with this tag supersedes, once it has its place in the queue
/// or its grant. Sends SIGTERM, and SIGKILL to those that still run after 10 s. Returns once all
/// have ended.
pub(crate) fn end_superseded(target: &Target, tag: Tag) -> Result {
    // The client of the request waits on its connection.
    let mut client = target.connect()?;
    let asked = WouldKill { superseded_by: Some(tag), ..WouldKill::default() };
    let found = client.would_kill(&asked)?;
    found.targets.iter().try_for_each(refusal)?;
    let mut endings = endings(&mut client, &found)?;
    for ending in &mut endings {
        let refused = ending.signal(&mut client, Signal::SIGTERM)?;
        stderr::note(&format!("{}: superseded", sent(ending.target, Signal::SIGTERM)));
        refused.iter().for_each(|line| stderr::message(line));
    }
    match wait_for(&mut endings, Signal::SIGTERM, Some(Some(GRACE))).as_slice() {
        [] => Ok(()),
        [left, ..] => Err(Failed::new(format!("{} cannot be ended", left.shown()))),
    }
}

/// Waits for the end of the signalled processes, and kills them after `kill_after`. Gives up those
/// that still run [`GRACE`] after the last signal, and reports them.
pub(crate) fn wait_for(
    endings: &mut [Ending<'_>],
    signal: Signal,
    kill_after: Option<Length>,
) -> Vec<Left> {
    let time = kill_after.unwrap_or(Some(GRACE));
    if wait(endings, time) {
        return Vec::new();
    }
    let time = stated(time.unwrap_or_default());
    let mut since = format!("{time} after {}", name(signal));
    if kill_after.is_some() {
        let mut is_any_killed = false;
        for ending in endings.iter_mut() {
            ending.look();
            let (killed, refused) = ending.send(0, Signal::SIGKILL);
            killed.iter().for_each(|it| stderr::note(&format!("killed {}, {since}", it.shown())));
            refused.iter().for_each(|line| stderr::message(line));
            is_any_killed |= !killed.is_empty();
        }
        if is_any_killed && wait(endings, Some(GRACE)) {
            return Vec::new();
        }
        since = format!("{} after KILL", stated(GRACE));
    }
    let mut all_left = Vec::new();
    let mut is_deaf = false;
    for ending in endings.iter() {
        for (pid, _) in ending.living() {
            let left = Left::of(*pid);
            // canal has already reported why it cannot end some processes.
            let is_refused = ending.refused.contains(pid);
            let since = if is_refused { String::new() } else { format!(", {since}") };
            stderr::message(&format!("{} is still running{since}", left.shown()));
            is_deaf |= !is_refused;
            all_left.push(left);
        }
    }
    if is_deaf && kill_after.is_none() && signal != Signal::SIGKILL {
        stderr::hint(
            "kill the remaining processes with `--kill-after 10s`, or kill immediately with \
             `--signal KILL`",
        );
    }
    all_left
}
