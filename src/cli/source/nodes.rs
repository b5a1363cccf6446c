//! Takes a lock at several daemons that share nothing.

use std::time::Duration;

use nix::unistd::Pid;

use super::request::{Asking, NotAcquired};
use crate::cli::arguments::nodes::{NodesArgs, ttl_ms};
use crate::cli::arguments::wait::Readers;
use crate::cli::node_list::{around, listed, named, near};
use crate::cli::progress::Waiting;
use crate::cli::wording::on_nodes;
use crate::cli::{Failed, Global, Result, Target, Verbosity};
use crate::client::ClientError;
use crate::client::nodes::Node;
use crate::client::nodes::lease::{EnclosingLeases, LeaseHandle, Secret};
use crate::core::FrameId;
use crate::nodes::Require;
use crate::protocol::{Acquire, Failure, Progress, SizeNote, WireItem};
use crate::run::nodes::{
    BeforeStart, ChildEnd, Ending, Host, Line, NodesRequest, OnLease, OverNodes, Purpose, Start,
};
use crate::run::{OwnCode, Taken, TakenFromNodes};
use crate::sys::clock::boottime_ms;
use crate::sys::terminal::audience::Audience;

/// The nodes of a lock.
pub(crate) struct Nodes {
    pub(super) target: Target,
    nodes: Vec<Node>,
    require: Require,
    ttl_ms: u64,
    purpose: Purpose,
}

impl Nodes {
    /// The nodes that the options name, if they can grant the request.
    pub(super) fn of(
        global: &Global,
        args: &NodesArgs,
        ttl: Option<Duration>,
        request: &Acquire,
        purpose: Purpose,
    ) -> Result<Self> {
        let verbosity = global.verbosity();
        // No daemon remembers for all nodes how the keys were read, so each request gets the notes.
        for note in request.items.iter().filter_map(SizeNote::of_text) {
            verbosity.note(&note.message);
        }
        args.check(&request.items)?;
        let ttl_ms = ttl_ms(ttl)?;
        let target = Target::of(global)?;
        let nodes = listed(&args.on, &target)?;
        if purpose == Purpose::Lease {
            LeaseHandle::fits(&nodes).map_err(|error| {
                Failed::new(error.to_string())
                    .hint("name fewer nodes, or give them shorter addresses")
            })?;
        }
        let require = args.require();
        if nodes.len() == 2 && require == Require::Majority {
            let what = if purpose == Purpose::Lease { "the lease" } else { "the command" };
            verbosity.note(&format!(
                "a majority of 2 nodes is both of them: the loss of either ends {what}"
            ));
            verbosity.advice("name a third node, or give --require all");
        }
        Ok(Self { target, nodes, require, ttl_ms, purpose })
    }

    /// Starts a coordinator that asks the nodes. `under`: the leases that do not block the request.
    pub(crate) fn ask(
        &self,
        request: &Acquire,
        under: EnclosingLeases,
    ) -> Result<(OverNodes, ChildEnd)> {
        let target = &self.target;
        // The form in grants: `f42`.
        let frame = request.frame.as_deref().and_then(|name| name.strip_prefix('f')?.parse().ok());
        let near = match request.under_run.is_some() || frame.is_some() {
            true => near(target)?,
            false => Vec::new(),
        };
        let asked = NodesRequest {
            asked: request.clone(),
            under_frame: frame.map(FrameId),
            under,
            around: around(target, near),
            nodes: self.nodes.clone(),
            require: self.require,
            ttl_ms: self.ttl_ms,
            new_ttl_ms: None,
            asked_at: boottime_ms(),
            secret: Secret::new()?,
        };
        let engine = on_nodes::engine(self.require, self.nodes.len());
        OverNodes::begin(asked, self.purpose, &engine, on_nodes::WORDING).map_err(not_called)
    }

    /// Waits until the lock is held, in the process that becomes its command.
    pub(super) fn take(&self, asking: &Asking<'_>, end: ChildEnd) -> Result<Taken, NotAcquired> {
        let page = end.begin().map_err(not_called)?;
        let start = wait(asking, &end, None)?;
        asking.verbosity.detail(&format!(
            "acquired {} on {}",
            asking.request.keys().join(", "),
            start.nodes.join(", ")
        ));
        let taken = TakenFromNodes { start, page, end, coordinator: None };
        Ok(Taken::FromNodes(Box::new(taken)))
    }

    /// Starts a coordinator, and waits until the lease is held.
    pub(super) fn take_lease(&self, asking: &Asking<'_>) -> Result<Taken, NotAcquired> {
        let (mut coordinator, end) = self.ask(asking.request, EnclosingLeases::default())?;
        let begun = end.begin().map_err(|error| not_called(error).into());
        let taken = begun.and_then(|page| Ok((page, wait(asking, &end, Some(&mut coordinator))?)));
        match taken {
            Ok((page, start)) => {
                let taken = TakenFromNodes { start, page, end, coordinator: Some(coordinator) };
                Ok(Taken::FromNodes(Box::new(taken)))
            }
            Err(why) => {
                coordinator.finish().iter().for_each(|line| print(line, asking.verbosity));
                Err(why)
            }
        }
    }
}

/// Renews or releases an existing lease. A renewal carries the note and the TTL.
pub(crate) fn on_lease(
    what: OnLease,
    handle: &LeaseHandle,
    (note, new_ttl_ms): (Option<String>, Option<u64>),
    target: &Target,
    host: &mut dyn Host,
) -> Result<Option<Ending>> {
    let nodes = named(handle.addresses(), target)?;
    let around = around(target, Vec::new());
    let request = NodesRequest::of_lease(handle, nodes, note, new_ttl_ms, around);
    crate::run::nodes::on_lease(what, handle, &request, host).map_err(not_called)
}

fn not_called(error: std::io::Error) -> Failed {
    Failed::new(format!("cannot call the nodes: {error}"))
}

/// Shows the progress of a request until it is granted or refused. `coordinator` is the one that
/// this process must look after.
fn wait(
    asking: &Asking<'_>,
    end: &ChildEnd,
    mut coordinator: Option<&mut OverNodes>,
) -> Result<Start, NotAcquired> {
    let mut display = Display::new(asking);
    loop {
        match display.next(end, coordinator.as_deref())? {
            None => display.update(None),
            Some(BeforeStart::Waits { name, progress }) => display.update(Some((name, progress))),
            Some(BeforeStart::New { names, until }) => display.count_down(&names, until),
            Some(BeforeStart::Line(line)) => {
                display.make_room();
                print(&line, asking.verbosity);
            }
            Some(BeforeStart::Start(start)) => {
                display.end();
                return Ok(start);
            }
            Some(BeforeStart::End(why)) => {
                display.end();
                return Err(match why {
                    Some((name, failure)) => {
                        ClientError::Failure(Failure { name, ..failure }).into()
                    }
                    None => Failed::silent(OwnCode::Failed.number()).into(),
                });
            }
        }
        let lines = coordinator.as_mut().map(|it| it.turn(Some(Pid::this()))).unwrap_or_default();
        if !lines.is_empty() {
            display.make_room();
            lines.iter().for_each(|line| print(line, asking.verbosity));
        }
    }
}

/// The display of a wait that moves from node to node.
struct Display<'a> {
    asking: &'a Asking<'a>,
    /// The node on display, and its line.
    shown: Option<(String, Waiting)>,
    /// How long to wait before the next update; `None` until there is something new to show.
    sleep: Option<Duration>,
    /// The readers of the output; without them the wait is given up.
    audience: Option<Audience>,
}

impl<'a> Display<'a> {
    fn new(asking: &'a Asking<'a>) -> Self {
        let audience = (asking.readers == Readers::Needed).then(Audience::new);
        Self { asking, shown: None, sleep: None, audience }
    }

    /// The next message of the coordinator, if one arrives before the display or the coordinator
    /// needs attention.
    ///
    /// # Errors
    /// The request waits, and no reader of its output is left: its places are given up.
    fn next(
        &mut self,
        end: &ChildEnd,
        coordinator: Option<&OverNodes>,
    ) -> Result<Option<BeforeStart>> {
        let waits = self.shown.is_some();
        let within = self.sleep.into_iter().chain(coordinator.and_then(OverNodes::due)).min();
        let audience = self.audience.as_ref().filter(|_| waits);
        let word = end.next(within, audience, coordinator);
        let audience = self.audience.as_mut().filter(|_| waits && word.is_none());
        if audience.is_some_and(Audience::has_left) {
            self.end();
            end.abandon();
            return Err(ClientError::Abandoned.into());
        }
        Ok(word)
    }

    /// Shows that the request waits at a node, if that is new.
    fn update(&mut self, news: Option<(String, Progress)>) {
        let progress = news.map(|(name, mut progress)| {
            if self.shown.as_ref().is_none_or(|(before, _)| *before != name) {
                self.end();
                self.shown = Some((name.clone(), self.waiting(&name)));
            }
            progress.key = at(&progress.key, &name);
            progress
        });
        let again = self.shown.as_mut().and_then(|(_, waiting)| waiting.update(progress.as_ref()));
        self.sleep = again.map(|again| again.max(Duration::from_millis(1)));
    }

    /// Shows how long new nodes grant nothing yet.
    fn count_down(&mut self, names: &[String], until: u64) {
        if self.shown.as_ref().is_none_or(|(_, waiting)| !waiting.counts_down()) {
            self.end();
            self.shown = Some((String::new(), self.waiting("")));
        }
        if let Some((_, waiting)) = &mut self.shown {
            waiting.count_down(names, until);
        }
        self.update(None);
    }

    /// Removes the display from the terminal, to print a line. A countdown comes back after it.
    fn make_room(&mut self) {
        match &mut self.shown {
            Some((_, waiting)) if waiting.counts_down() => waiting.end(),
            _ => self.end(),
        }
    }

    fn waiting(&self, name: &str) -> Waiting {
        let Asking { request, progress, verbosity, .. } = *self.asking;
        let items = request.items.iter();
        let items = items.map(|item| WireItem { key: at(&item.key, name).into(), ..item.clone() });
        Waiting::new(verbosity, progress, &items.collect::<Vec<_>>())
    }

    /// Removes the display from the terminal.
    fn end(&mut self) {
        if let Some((_, mut waiting)) = self.shown.take() {
            waiting.end();
        }
    }
}

/// `deploy at web1`.
fn at(key: &str, name: &str) -> String {
    format!("{key} on {name}")
}

/// Prints a line of a coordinator.
pub(crate) fn print(line: &Line, verbosity: Verbosity) {
    let (say, advise) = match line.is_note {
        true => (Verbosity::note as fn(Verbosity, &str), Verbosity::advice as fn(Verbosity, &str)),
        false => (Verbosity::message as _, Verbosity::hint as _),
    };
    say(verbosity, &line.text);
    if let Some(hint) = &line.hint {
        advise(verbosity, hint);
    }
}
