//! `canal release` of a lease over nodes: releases it at all of them.

use nix::poll::PollFd;
use serde::Serialize;

use crate::cli::arguments::definition::Global;
use crate::cli::commands::nodes::lost::{self, PartReport};
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::node_list::named;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::source::print;
use crate::cli::wording::over_nodes::line;
use crate::nodes::{Change, Deadline, Millis, Standing};
use crate::protocol::ReleasedHold;
use crate::run::SUCCESS;
use crate::run::nodes::{
    Host, LeaseHandle, Named, NodesRequest, PartAnswer, PartSaid, Purpose, Started, Wish, Word,
    give_back_lease,
};

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct ReleasedOverNodes<'a> {
    released: Vec<&'a ReleasedHold>,
    nodes: Vec<PartReport<'a>>,
}

pub(in crate::cli) fn run(
    handle: &LeaseHandle,
    json: bool,
    global: &Global,
    verbosity: Verbosity,
) -> Result<u8, Failed> {
    let target = Target::of(global)?;
    let nodes = named(handle.addresses(), &target)?;
    let request =
        NodesRequest::of_lease(handle, nodes, None, None, target.place.clone(), target.options());
    let failed = |error: std::io::Error| Failed::new(format!("cannot call the nodes: {error}"));
    let ending = give_back_lease(handle, &request, &mut GivingBack { verbosity });
    let Some(ending) = ending.map_err(failed)? else { return Ok(SUCCESS) };
    let answers = &ending.answers;
    let count = |which: fn(&PartAnswer) -> bool| answers.iter().filter(|it| which(it)).count();
    let lost = count(|answer| matches!(answer.said, Some(PartSaid::Lost(_))));
    if answers.len() - lost < handle.need() {
        return Err(lost::explain(handle, answers, &[], json, verbosity)?);
    }
    if count(|answer| answer.said.is_some()) == 0 {
        return Err(lost::unreached(handle, &ending));
    }
    if json {
        let released = lost::released(answers).map(|(_, released)| released).collect();
        let nodes = lost::reports(handle, answers);
        stdout::print(&stdout::json(&ReleasedOverNodes { released, nodes })?)?;
    }
    for (name, one) in lost::released(answers) {
        verbosity.detail(&format!("released {} at {name}", one.keys.join(", ")));
    }
    for line in lost::missing(handle, answers) {
        verbosity.note(&line);
    }
    if count(|answer| answer.said.is_none()) > 0 {
        verbosity.advice("wait for nodes that are away: the lease ends there when its TTL expires");
    }
    Ok(SUCCESS)
}

/// The host of a driver that releases a lease.
struct GivingBack {
    verbosity: Verbosity,
}

impl Host for GivingBack {
    fn keep(&mut self, _nodes: &[Named], _standing: &Standing) {}

    fn publish(&mut self, _deadline: Deadline) {}

    fn start(&mut self, _started: &Started) -> bool {
        true
    }

    fn kill_now(&mut self) {}

    fn say(&mut self, word: &Word<'_>) {
        // The result names the nodes that are away.
        if !matches!(word, Word::Change { change: Change::Away { .. }, .. })
            && let Some(line) = line(word, Purpose::Lease)
        {
            print(&line, self.verbosity);
        }
    }

    fn polled(&self) -> Vec<PollFd<'_>> {
        Vec::new()
    }

    fn turn(&mut self, _now: Millis) -> Wish {
        Wish::GoOn
    }

    fn due(&self) -> Option<Millis> {
        None
    }
}
