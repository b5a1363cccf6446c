//! `canal renew` of a lease over nodes: once, or while a process lives.
//!
//! The lease counts until the k-th latest of the times at which its nodes may end their parts, each
//! counted from the time before its renewal was sent.

use std::cmp::Ordering;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use serde::Serialize;

use crate::cli::arguments::definition::{Global, RenewArgs};
use crate::cli::arguments::duration::stated;
use crate::cli::arguments::nodes::ttl_ms;
use crate::cli::commands::nodes::lost::{self, PartReport};
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::node_list::named;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::source::print;
use crate::cli::owner::Owner;
use crate::cli::wording::over_nodes::{clock_of, line, time_of};
use crate::nodes::{Change, Deadline, Millis, Outcome, Standing};
use crate::protocol::{LeaseInfo, Renewed};
use crate::run::SUCCESS;
use crate::run::nodes::{
    Host, LeaseHandle, Named, NodesRequest, PartAnswer, PartSaid, Purpose, Started, Wish, Word, renew_lease,
};
use crate::sys::clock::boottime_ms;
use crate::sys::pidfd::Pidfd;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct RenewedOverNodes<'a> {
    keys: &'a [String],
    token: Option<u64>,
    lease: LeaseInfo,
    /// How many nodes must hold it.
    need: usize,
    nodes: Vec<PartReport<'a>>,
}

pub(in crate::cli) fn run(
    args: &RenewArgs,
    global: &Global,
    verbosity: Verbosity,
    handle: &LeaseHandle,
) -> Result<u8, Failed> {
    let note = args.note.of_renewal()?;
    let new_ttl_ms = args.ttl.map(|ttl| ttl_ms(Some(ttl))).transpose()?;
    let process = args.while_lives.map(|pid| Owner::find(Some(pid))).transpose()?;
    let target = Target::of(global)?;
    let nodes = named(handle.addresses(), &target)?;
    let request = NodesRequest::of_lease(
        handle,
        nodes,
        note,
        new_ttl_ms,
        target.place.clone(),
        target.options(),
    );
    let mut renewal = Renewal {
        handle,
        new_ttl_ms,
        process: process.as_ref().map(|process| &process.pidfd),
        json: args.json,
        verbosity,
        deadline: Deadline::default(),
        is_lost: false,
        failed: None,
    };
    let failed = |error: std::io::Error| Failed::new(format!("cannot call the nodes: {error}"));
    let ending = renew_lease(handle, &request, &mut renewal).map_err(failed)?;
    if let Some(failed) = renewal.failed {
        return Err(failed);
    }
    let Some(ending) = ending else { return Ok(SUCCESS) };
    match &ending.outcome {
        Outcome::Lost { nodes } => {
            Err(lost::explain(handle, &ending.answers, nodes, args.json, verbosity)?)
        }
        _ => Err(lost::unreached(handle, &ending)),
    }
}

/// The host of a driver that renews a lease.
struct Renewal<'a> {
    handle: &'a LeaseHandle,
    /// Its new TTL, if that changes.
    new_ttl_ms: Option<u64>,
    /// The lease is kept while this process lives.
    process: Option<&'a Pidfd>,
    json: bool,
    verbosity: Verbosity,
    deadline: Deadline,
    is_lost: bool,
    /// Why the result could not be printed.
    failed: Option<Failed>,
}

impl Renewal<'_> {
    fn report(&self, answers: &[PartAnswer]) -> Result<(), Failed> {
        let renewed: Vec<&Renewed> = answers.iter().filter_map(renewed).collect();
        let keys = renewed.first().map(|renewed| renewed.keys.as_slice()).unwrap_or_default();
        if self.json {
            let left = self.deadline.kill_at.saturating_sub(boottime_ms());
            let lease = LeaseInfo {
                ttl_ms: renewed.iter().map(|renewed| renewed.lease.ttl_ms).min().unwrap_or(0),
                left_ms: Some(left),
                expires: time_of(self.deadline.kill_at),
                renewals: renewed.iter().map(|renewed| renewed.lease.renewals).max().unwrap_or(0),
            };
            stdout::print(&stdout::json(&RenewedOverNodes {
                keys,
                token: self.handle.token(),
                lease,
                need: self.handle.need(),
                nodes: lost::reports(self.handle, answers),
            })?)?;
        }
        let lines = match self.process {
            None => lost::missing(self.handle, answers),
            // The next report tells since when a node is away, and what follows from that.
            Some(_) => lost::gone(self.handle, answers),
        };
        lines.iter().for_each(|line| self.verbosity.note(line));
        answers.iter().filter_map(|it| self.other_ttl(it)).for_each(|it| self.verbosity.note(&it));
        let token = self.handle.token().map(|token| format!(", token {token}"));
        self.verbosity.detail(&format!(
            "renewed {} until {} at {} of {} nodes{}",
            keys.join(", "),
            clock_of(self.deadline.kill_at),
            renewed.len(),
            answers.len(),
            token.unwrap_or_default()
        ));
        Ok(())
    }
}

impl Renewal<'_> {
    /// The warning that a node has another TTL in force than the requested one.
    fn other_ttl(&self, answer: &PartAnswer) -> Option<String> {
        let (wanted, is) = (self.new_ttl_ms?, renewed(answer)?.lease.ttl_ms);
        let is_text = stated(Duration::from_millis(is));
        let why = match is.cmp(&wanted) {
            Ordering::Equal => return None,
            Ordering::Greater => "another process may rely on it",
            Ordering::Less => "its `longest_ttl` does not allow a longer one",
        };
        Some(format!("{} keeps the TTL of {is_text}: {why}", answer.name))
    }
}

fn renewed(answer: &PartAnswer) -> Option<&Renewed> {
    match &answer.said {
        Some(PartSaid::Renewed(renewed)) => Some(renewed),
        _ => None,
    }
}

impl Host for Renewal<'_> {
    fn keep(&mut self, _nodes: &[Named], _standing: &Standing) {}

    fn publish(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    fn start(&mut self, started: &Started) -> bool {
        self.failed = self.report(&started.answers).err();
        self.process.is_some() && self.failed.is_none()
    }

    fn kill_now(&mut self) {
        self.is_lost = true;
    }

    fn say(&mut self, word: &Word<'_>) {
        let is_away = matches!(word, Word::Change { change: Change::Away { .. }, .. });
        // Without a process, the result names the nodes that are away.
        if is_away && self.process.is_none() {
            return;
        }
        if let Some(line) = line(word, Purpose::Lease) {
            print(&line, self.verbosity);
        }
    }

    fn polled(&self) -> Vec<PollFd<'_>> {
        self.process.iter().map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)).collect()
    }

    fn turn(&mut self, _now: Millis) -> Wish {
        if self.process.is_some_and(Pidfd::has_ended) {
            return Wish::Leave;
        }
        match self.is_lost {
            true => Wish::Stop,
            false => Wish::GoOn,
        }
    }

    fn due(&self) -> Option<Millis> {
        None
    }
}
