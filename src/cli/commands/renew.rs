//! `canal renew`: renews a lease, once or while a process lives.
//!
//! A lease over nodes counts until the k-th latest of the times at which its nodes may end their
//! parts, each counted from the time before its renewal was sent.

use std::cmp::Ordering;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde::Serialize;

use crate::cli::arguments::nodes::ttl_ms;
use crate::cli::arguments::request::GivenHandle;
use crate::cli::lock_source::on_lease;
use crate::cli::owner::Owner;
use crate::cli::wording::lost::{self, PartReport, Parts};
use crate::cli::wording::time::{Now, clock_of, time_of};
use crate::cli::{
    Failed, Global, RenewArgs, Result, Target, millis, stated_ms, stderr, stdout, wrong,
};
use crate::client::nodes::lease::LeaseHandle;
use crate::client::{Client, ClientError};
use crate::nodes::{Millis, Outcome, Task};
use crate::protocol::{ErrorName, Handle, LeaseInfo, Renew, Renewed};
use crate::run::nodes::{Host, News, PartAnswer, PartSaid, Start, Wish};
use crate::run::{OwnCode, SUCCESS};
use crate::sys::clock::{boottime_ms, boottime_ms_after};
use crate::sys::deadline_page::Deadline;
use crate::sys::pidfd::Pidfd;

/// The longest single sleep. The clock of the sleep stands still while the machine is suspended,
/// but that of the lease does not.
const SLEEP_MS_MAX: u64 = 30_000;

/// The output of `--json` for a lease over nodes.
#[derive(Debug, Serialize)]
struct RenewedOverNodes<'a> {
    keys: &'a [String],
    token: Option<u64>,
    lease: LeaseInfo,
    /// How many nodes must hold it.
    need: usize,
    nodes: Vec<PartReport<'a>>,
}

pub(crate) fn run(args: &RenewArgs, global: &Global) -> Result {
    let Some(handle) = args.which.read()? else {
        return Err(wrong("renew", "no lease given; give --handle, or set CANAL_HANDLE"));
    };
    let note = args.note.of_renewal()?;
    let ttl_ms = match (&handle, args.ttl) {
        (GivenHandle::OverNodes(_), Some(ttl)) => Some(ttl_ms(Some(ttl))?),
        (_, ttl) => ttl.map(millis),
    };
    let process = args.while_lives.map(|pid| Owner::find(Some(pid))).transpose()?;
    let process = process.as_ref().map(|process| &process.pidfd);
    let target = Target::of(global)?;
    let renewal = Renewal { ttl_ms, process, json: args.json };
    match handle {
        GivenHandle::OfDaemon(handle) => renewal.at_daemon(handle, note, &target),
        GivenHandle::OverNodes(handle) => renewal.at_nodes(&handle, note, &target),
    }
}

/// How to renew a lease.
#[derive(Clone, Copy)]
struct Renewal<'a> {
    /// The new TTL of the lease.
    ttl_ms: Option<u64>,
    /// The lease is kept while this process lives.
    process: Option<&'a Pidfd>,
    json: bool,
}

impl Renewal<'_> {
    fn at_daemon(&self, handle: Handle, note: Option<String>, target: &Target) -> Result {
        let mut client = target.connect()?;
        let mut renewed_at = boottime_ms();
        let renewed = self.renew(&mut client, handle, note)??;
        stdout::json_if(self.json, &renewed)?;
        stderr::detail(&message(&renewed, &Now::here()));
        let mut ttl_ms = renewed.lease.ttl_ms;
        if self.ttl_ms.is_some_and(|asked| asked != ttl_ms) {
            let ttl = stated_ms(ttl_ms);
            stderr::message(&format!("the lease keeps its TTL of {ttl}"));
        }
        let Some(process) = self.process else { return Ok(()) };
        // Renews the lease every third of its TTL, until the process ends. After a failure, tries
        // again soon. After a whole TTL without a renewal, the lease counts as lost.
        let mut failing = false;
        loop {
            let pause = if failing { ttl_ms / 20 } else { ttl_ms / 3 };
            if ends_within(process, pause) {
                return Ok(());
            }
            let asked_at = boottime_ms();
            match self.renew(&mut client, handle, None)? {
                Ok(renewed) => {
                    if failing {
                        stderr::note("renewed the lease again");
                    }
                    stderr::detail(&message(&renewed, &Now::here()));
                    (renewed_at, failing) = (asked_at, false);
                    // Another client may have changed the TTL.
                    ttl_ms = renewed.lease.ttl_ms;
                }
                Err(error) if process.has_ended() => {
                    stderr::detail(&error.to_string());
                    return Ok(());
                }
                Err(error) => {
                    if boottime_ms().saturating_sub(renewed_at) > ttl_ms {
                        let message = format!(
                            "canal has been unable to renew the lease for the last {}, so it \
                             counts as lost: {error}",
                            stated_ms(ttl_ms)
                        );
                        let lost = Failed::with_code(OwnCode::LockLost.number(), message);
                        let hint = "run `canal renew` once the daemon answers, to see whether the \
                                    lease has ended";
                        return Err(lost.hint(hint));
                    }
                    if !failing {
                        stderr::message(&format!("cannot renew the lease; trying again: {error}"));
                    }
                    failing = true;
                }
            }
        }
    }

    fn at_nodes(&self, handle: &LeaseHandle, note: Option<String>, target: &Target) -> Result {
        let (renewal, deadline) = (*self, Deadline::default());
        let mut host = RenewalHost { renewal, handle, deadline, is_lost: false, failed: None };
        let ending = on_lease(Task::Renew, handle, (note, self.ttl_ms), target, &mut host)?;
        if let Some(failed) = host.failed {
            return Err(failed);
        }
        let Some(ending) = ending else { return Ok(()) };
        let parts = Parts { handle, answers: &ending.answers };
        Err(match &ending.outcome {
            Outcome::Lost(nodes) => parts.lost(nodes, self.json)?,
            outcome => parts.unreached(outcome.hint()),
        })
    }

    /// Renews the lease once, with a new note if there is one. The outer error ends the command:
    /// the lease is lost, or its owner has released it.
    fn renew(
        &self,
        client: &mut Client,
        handle: Handle,
        note: Option<String>,
    ) -> Result<Result<Renewed, ClientError>> {
        match client.renew(&Renew { handle, note, ttl_ms: self.ttl_ms }) {
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
                // A script releases its lease while its renewals run in parallel. Nothing is lost.
                if self.process.is_some() && failure.reason.as_deref() == Some("released") {
                    stderr::detail("the lease was released; nothing is left to renew");
                    return Err(Failed::silent(SUCCESS));
                }
                Err(lost::explain(&failure, self.json)?)
            }
            result => Ok(result),
        }
    }
}

/// The host of a driver that renews a lease.
struct RenewalHost<'a> {
    renewal: Renewal<'a>,
    handle: &'a LeaseHandle,
    deadline: Deadline,
    is_lost: bool,
    /// Why the result could not be printed.
    failed: Option<Failed>,
}

impl RenewalHost<'_> {
    fn report(&self, answers: &[PartAnswer]) -> Result {
        let Renewal { process, json, .. } = self.renewal;
        let parts = Parts { handle: self.handle, answers };
        let renewed: Vec<&Renewed> = answers.iter().filter_map(renewed).collect();
        let keys = renewed.first().map(|renewed| renewed.keys.as_slice()).unwrap_or_default();
        if json {
            let LeaseHandle { token, need, .. } = *self.handle;
            let lease = LeaseInfo {
                ttl_ms: renewed.iter().map(|renewed| renewed.lease.ttl_ms).min().unwrap_or(0),
                left_ms: Some(self.deadline.kill_at.saturating_sub(boottime_ms())),
                expires: Some(time_of(self.deadline.kill_at)),
                renewals: renewed.iter().map(|renewed| renewed.lease.renewals).max().unwrap_or(0),
            };
            let nodes = parts.reports();
            stdout::print_json(&RenewedOverNodes { keys, token, lease, need, nodes })?;
        }
        // With a process, the next report states since when a node has been away, and the
        // consequence.
        let lines = if process.is_some() { parts.gone() } else { parts.missing() };
        lines.iter().for_each(|line| stderr::note(line));
        answers.iter().filter_map(|it| self.other_ttl(it)).for_each(|it| stderr::note(&it));
        let token = self.handle.token.map(|token| format!(", token {token}")).unwrap_or_default();
        let (keys, until) = (keys.join(", "), clock_of(self.deadline.kill_at));
        let (on, all) = (renewed.len(), answers.len());
        stderr::detail(&format!("renewed {keys} until {until} on {on} of {all} nodes{token}"));
        Ok(())
    }

    /// The warning that a node has another TTL in force than the requested one.
    fn other_ttl(&self, answer: &PartAnswer) -> Option<String> {
        let (wanted, is) = (self.renewal.ttl_ms?, renewed(answer)?.lease.ttl_ms);
        let why = match is.cmp(&wanted) {
            Ordering::Equal => return None,
            Ordering::Greater => "another process may rely on it",
            Ordering::Less => "its `longest_ttl` does not allow a longer one",
        };
        Some(format!("{} keeps the TTL of {}: {why}", answer.name, stated_ms(is)))
    }
}

/// The renewal of a node's part.
fn renewed(answer: &PartAnswer) -> Option<&Renewed> {
    if let Some(PartSaid::Renewed(renewed)) = &answer.said { Some(renewed) } else { None }
}

impl Host for RenewalHost<'_> {
    fn publish(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    fn start(&mut self, _start: Start, answers: &[PartAnswer]) -> bool {
        self.failed = self.report(answers).err();
        self.renewal.process.is_some() && self.failed.is_none()
    }

    fn kill_now(&mut self) {
        self.is_lost = true;
    }

    fn say(&mut self, news: News) {
        // Without a process, the result names the nodes that are away.
        let is_in_result = matches!(news, News::Away(_)) && self.renewal.process.is_none();
        let note = if is_in_result { None } else { news.note() };
        note.iter().for_each(|note| stderr::note(note));
    }

    fn polled(&self) -> Vec<BorrowedFd<'_>> {
        self.renewal.process.iter().map(AsFd::as_fd).collect()
    }

    fn turn(&mut self, _now: Millis) -> Wish {
        match self.renewal.process.is_some_and(Pidfd::has_ended) {
            true => Wish::Leave,
            false if self.is_lost => Wish::Stop,
            false => Wish::GoOn,
        }
    }
}

/// Whether the process ends within this time, by a clock that keeps running during suspend.
fn ends_within(process: &Pidfd, time_ms: u64) -> bool {
    let until = boottime_ms_after(time_ms);
    loop {
        let left = until.saturating_sub(boottime_ms());
        if process.wait_end(Duration::from_millis(left.min(SLEEP_MS_MAX))) {
            return true;
        }
        if left == 0 {
            return false;
        }
    }
}

/// `renewed db until 14:06:23, token 77`.
fn message(renewed: &Renewed, now: &Now) -> String {
    let until = renewed.lease.expires.as_deref().map(|at| format!(" until {}", now.clock(at)));
    let keys = renewed.keys.join(", ");
    format!("renewed {keys}{}, token {}", until.unwrap_or_default(), renewed.token)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_process_ends_the_pause() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Pidfd::open(cat.id()).unwrap();
        assert!(!ends_within(&process, 0));
        assert!(!ends_within(&process, 20));
        drop(cat.stdin.take());
        assert!(ends_within(&process, 10 * SLEEP_MS_MAX));
        cat.wait().unwrap();
    }
}
