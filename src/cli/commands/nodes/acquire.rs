//! `canal acquire --on`: takes a lease at several daemons that share nothing.
//!
//! A coordinator in a separate process takes it. If this process ends before it has printed the
//! handle, the coordinator releases everything.

use std::time::Duration;

use nix::unistd::Pid;
use serde::Serialize;

use crate::cli::arguments::definition::{AcquireArgs, Global};
use crate::cli::arguments::duration::stated;
use crate::cli::arguments::nodes::ttl_ms;
use crate::cli::commands::nodes::run::{Display, not_held, note_of_two, over, print};
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::node_list::listed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::wording::over_nodes;
use crate::client::nodes::list::Node;
use crate::nodes::Require;
use crate::protocol::{Acquire, CycleStepInfo, GrantedKey, SizeNote, WireItem};
use crate::run::nodes::{
    BeforeStart, ChildEnd, EnclosingLeases, Held, LeaseHandle, NotHeld, OverNodes, Secret,
};
use crate::run::{OwnCode, SUCCESS};
use crate::sys::clock::boottime_ms;
use crate::sys::deadline::Reader;

/// How often to check on the coordinator while the request waits.
const LOOK: Duration = Duration::from_millis(500);

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Taken<'a> {
    keys: Vec<GrantedKey>,
    token: Option<u64>,
    handle: &'a str,
    ttl_ms: u64,
    /// How many nodes must hold it.
    need: usize,
    nodes: Vec<TakenAt<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<SizeNote>,
}

/// A node that was asked.
#[derive(Debug, Serialize)]
struct TakenAt<'a> {
    name: &'a str,
    held: bool,
}

/// The output of `--json` for a refusal.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    refused: &'a str,
    message: &'a str,
    holders: [(); 0],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cycle: &'a [CycleStepInfo],
}

/// Takes the lease and prints its handle. `request` is the one for a lock of this machine.
pub(in crate::cli) fn run(
    args: &AcquireArgs,
    global: &Global,
    verbosity: Verbosity,
    request: &Acquire,
    ttl: Duration,
) -> Result<u8, Failed> {
    args.nodes.check(&request.items)?;
    let ttl_ms = ttl_ms(Some(ttl))?;
    let target = Target::of(global)?;
    let nodes = listed(&args.nodes.on, &target)?;
    LeaseHandle::fits(&nodes).map_err(|error| {
        Failed::new(error.to_string()).hint("name fewer nodes, or give them shorter addresses")
    })?;
    let require = args.nodes.require();
    note_of_two(require, nodes.len(), "the lease", verbosity);
    let asked =
        over(request, &target, nodes.clone(), (require, ttl_ms), EnclosingLeases::default())?;
    let secret = asked.secret;
    let engine = over_nodes::engine(require, nodes.len());
    let failed = |error: std::io::Error| Failed::new(format!("cannot call the nodes: {error}"));
    let (mut coordinator, end) =
        OverNodes::begin_lease(asked, &engine, over_nodes::lease_line, over_nodes::not_held)
            .map_err(failed)?;
    let asking = Asking { args, verbosity, items: &request.items };
    let taken = end.begin().map_err(failed).and_then(|page| {
        let held = asking.wait(&mut coordinator, &end)?;
        let items = &request.items;
        Lease { held: &held, secret, ttl_ms, nodes: &nodes, require, items }.tell(args.json, &page)
    });
    let lines = match taken {
        Ok(_) => coordinator.leave(),
        Err(_) => coordinator.finish(),
    };
    lines.iter().for_each(|line| print(line, verbosity));
    taken?;
    verbosity.detail(&format!(
        "a lease of {}: extend it with `canal renew`, end it with `canal release --handle`",
        stated(ttl)
    ));
    Ok(SUCCESS)
}

/// A request that waits for its nodes.
struct Asking<'a> {
    args: &'a AcquireArgs,
    verbosity: Verbosity,
    items: &'a [WireItem],
}

impl Asking<'_> {
    /// Waits until the lease is held.
    fn wait(&self, coordinator: &mut OverNodes, end: &ChildEnd) -> Result<Held, Failed> {
        let mut display = Display::new(&self.args.wait, self.items, self.verbosity);
        loop {
            match display.next(end, LOOK)? {
                None => display.update(None),
                Some(BeforeStart::Waits { name, progress }) => {
                    display.update(Some((name, progress)));
                }
                Some(BeforeStart::New { names, until }) => display.count_down(&names, until),
                Some(BeforeStart::Line(line)) => {
                    display.make_room();
                    print(&line, self.verbosity);
                }
                Some(BeforeStart::Held(held)) => {
                    display.end();
                    return Ok(held);
                }
                // This is only for a command.
                Some(BeforeStart::Start(_)) => {}
                Some(BeforeStart::End(why)) => {
                    display.end();
                    return Err(self.not_taken(why)?);
                }
            }
            let lines = coordinator.turn(Some(Pid::this()));
            if !lines.is_empty() {
                display.make_room();
                lines.iter().for_each(|line| print(line, self.verbosity));
            }
        }
    }

    fn not_taken(&self, why: NotHeld) -> Result<Failed, Failed> {
        let report = match &why {
            NotHeld::Refused { reason, message, cycle, .. } if self.args.json => {
                Some(stdout::json(&Refused { refused: reason, message, holders: [], cycle })?)
            }
            _ => None,
        };
        let failed = not_held(why, &self.args.wait, self.verbosity);
        if let Some(report) = report {
            stdout::print(&report)?;
        }
        Ok(failed)
    }
}

/// A lease that is held.
struct Lease<'a> {
    held: &'a Held,
    secret: Secret,
    ttl_ms: u64,
    nodes: &'a [Node],
    require: Require,
    items: &'a [WireItem],
}

impl Lease<'_> {
    /// Prints the output for its owner, unless the lease is already lost.
    fn tell(&self, json: bool, page: &Reader) -> Result<(), Failed> {
        let Held { start, need, parts } = self.held;
        let handle =
            LeaseHandle::new(self.secret, start.token, self.ttl_ms, *need, self.nodes, parts);
        let handle = handle.reveal();
        let text = match json {
            true => stdout::json(&self.taken(&handle))?,
            false => self.variables(&handle),
        };
        // If this process was stopped meanwhile, it notices the loss here.
        if page.state().is_over(boottime_ms()) {
            let message = "the lease was lost before its handle could be printed";
            return Err(Failed::with_code(OwnCode::LockLost.number(), message));
        }
        stdout::print_or_fail(&text)
    }

    fn taken<'a>(&'a self, handle: &'a str) -> Taken<'a> {
        let parts = self.held.parts.iter().filter_map(|part| {
            Some(TakenAt { name: &self.nodes.get(part.at)?.name, held: part.held })
        });
        Taken {
            keys: self.keys(),
            token: self.held.start.token,
            handle,
            ttl_ms: self.ttl_ms,
            need: self.held.need,
            nodes: parts.collect(),
            notes: self.items.iter().filter_map(SizeNote::of_text).collect(),
        }
    }

    /// The granted keys. Slots of several nodes do not form one list.
    fn keys(&self) -> Vec<GrantedKey> {
        let mut keys =
            self.held.start.grant.iter().flat_map(|it| it.keys.clone()).collect::<Vec<_>>();
        if self.require != Require::Any {
            keys.iter_mut().for_each(|key| key.slots.clear());
        }
        keys
    }

    /// The variables for later steps, as lines that a shell and the environment files of CI
    /// services accept.
    fn variables(&self, handle: &str) -> String {
        let mut lines = format!("CANAL_HANDLE={handle}\n");
        let mut line = |name: &str, value: &str| lines += &format!("{name}={value}\n");
        if let Some(token) = self.held.start.token {
            line("CANAL_TOKEN", &token.to_string());
        }
        let names = self.held.start.nodes.join(",");
        // An address may contain a space, and would then be two words.
        if !names.contains(char::is_whitespace) {
            line("CANAL_NODES", &names);
            if self.require == Require::Any {
                line("CANAL_NODE", &names);
            }
        }
        let slots = self.keys();
        let slots = slots.iter().flat_map(|key| &key.slots).map(|slot| slot.slot.to_string());
        let slots: Vec<String> = slots.collect();
        if !slots.is_empty() {
            line("CANAL_SLOTS", &slots.join(","));
        }
        lines
    }
}
