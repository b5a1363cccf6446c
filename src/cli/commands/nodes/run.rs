//! `canal run --on`: takes the lock at several daemons that share nothing, and runs the command
//! under it.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;

use crate::cli::arguments::definition::{Global, RunArgs};
use crate::cli::arguments::nodes::ttl_ms;
use crate::cli::arguments::wait::{Readers, WaitArgs};
use crate::cli::connect::{self, Target};
use crate::cli::failed::Failed;
use crate::cli::node_list::{listed, near};
use crate::cli::output::stderr::Verbosity;
use crate::cli::progress::Waiting;
use crate::cli::wording::{deadlock, hold_lost, not_acquired, over_nodes};
use crate::client::nodes::list::Node;
use crate::client::nodes::pins::Pins;
use crate::client::{ClientError, OWN, is_on_demand_daemon};
use crate::core::FrameId;
use crate::nodes::Require;
use crate::protocol::place::{Place, Rule};
use crate::protocol::{Acquire, Progress, WireItem};
use crate::run::environment::variables_over_nodes;
use crate::run::nodes::{
    BeforeStart, ChildEnd, EnclosingLeases, LeaseHandle, Line, NodesRequest, NotHeld, OverNodes,
    Secret, Start,
};
use crate::run::{
    ChildChannel, Command, Ended, Fate, Limits, LostHold, NotBegun, OwnCode, SupervisorHooks,
    become_command_over_nodes, supervise,
};
use crate::sys::clock::boottime_ms;
use crate::sys::signals::SignalRefused;
use crate::sys::terminal::audience::Audience;

/// How long the child sleeps if its display does not change earlier.
const SLEEP: Duration = Duration::from_secs(5);

/// Takes the lock and runs the command. `request` and `limits` are those for a lock of this
/// machine.
pub(in crate::cli) fn run(
    args: &RunArgs,
    global: &Global,
    verbosity: Verbosity,
    request: &Acquire,
    command: &Command,
    limits: &Limits,
) -> Result<Ended, Failed> {
    args.nodes.check(&request.items)?;
    let ttl_ms = ttl_ms(args.ttl)?;
    let target = Target::of(global)?;
    let nodes = listed(&args.nodes.on, &target)?;
    note_of_two(args.nodes.require(), nodes.len(), "the command", verbosity);
    let require = args.nodes.require();
    let engine = over_nodes::engine(require, nodes.len());
    let on_lost = request.on_lost;
    let socket = (target.place.rule == Rule::Given).then(|| target.place.socket.clone());
    let under = args.session.enclosing_leases();
    let lease =
        Lease { around: under.clone(), nodes: nodes.clone(), ttl_ms, place: target.place.clone() };
    let asked = over(request, &target, nodes, (require, ttl_ms), under)?;
    let secret = asked.secret;
    let failed = |error: std::io::Error| Failed::new(format!("cannot start the command: {error}"));
    let (over_nodes, child_end) =
        OverNodes::begin(asked, &engine, on_lost, over_nodes::line, over_nodes::not_held)
            .map_err(failed)?;
    let keys: Vec<&str> = request.items.iter().map(|item| &*item.key).collect();
    let child = Child {
        secret,
        lease,
        keys: &keys,
        wait: &args.wait,
        verbosity,
        command,
        items: &request.items,
        socket: socket.as_deref(),
        require,
    };
    let mut hooks = Hooks { over_nodes, verbosity, keys: &keys };
    let ended = supervise(limits, &mut hooks, move |channel| child.run(&child_end, channel));
    for line in hooks.over_nodes.finish() {
        print(&line, verbosity);
    }
    ended.map_err(failed)
}

/// The request to the nodes. `under`: the leases that do not block it.
pub(in crate::cli) fn over(
    request: &Acquire,
    target: &Target,
    nodes: Vec<Node>,
    (require, ttl_ms): (Require, u64),
    under: EnclosingLeases,
) -> Result<NodesRequest, Failed> {
    // The form in grants: `f42`.
    let frame = request.frame.as_deref().and_then(|name| name.strip_prefix('f')?.parse().ok());
    let near = match request.under_run.is_some() || frame.is_some() {
        true => near(target)?,
        false => Vec::new(),
    };
    Ok(NodesRequest {
        under_run: request.under_run,
        under_frame: frame.map(FrameId),
        under,
        near,
        nodes,
        require,
        ttl_ms,
        new_ttl_ms: None,
        items: request.items.clone(),
        wait_ms: request.wait_ms,
        asked_at: boottime_ms(),
        priority: request.priority,
        max_waiting: request.max_waiting,
        command: request.command.clone(),
        note: request.note.clone(),
        secret: Secret::new().map_err(connect::failed)?,
        here: target.place.clone(),
        options: target.options(),
        pins: Pins::of(&target.place),
    })
}

/// The note that a majority of two is both. `what` is lost with either node.
pub(in crate::cli) fn note_of_two(
    require: Require,
    nodes: usize,
    what: &str,
    verbosity: Verbosity,
) {
    if nodes == 2 && matches!(require, Require::Majority) {
        verbosity.note(&format!(
            "a majority of 2 nodes is both of them: the loss of either ends {what}"
        ));
        verbosity.advice("name a third node, or give --require all");
    }
}

/// The child's state while it waits for the lock and becomes the command.
struct Child<'a> {
    secret: Secret,
    lease: Lease,
    keys: &'a [&'a str],
    wait: &'a WaitArgs,
    verbosity: Verbosity,
    command: &'a Command,
    items: &'a [WireItem],
    socket: Option<&'a Path>,
    require: Require,
}

impl Child<'_> {
    fn run(&self, end: &ChildEnd, channel: ChildChannel) -> u8 {
        let failed = match self.become_command(end, channel) {
            Ok(not_begun) => self.not_begun(not_begun),
            Err(failed) => failed,
        };
        self.verbosity.failure(&failed)
    }

    fn become_command(&self, end: &ChildEnd, channel: ChildChannel) -> Result<NotBegun, Failed> {
        let failed =
            |error: std::io::Error| Failed::new(format!("cannot wait for the nodes: {error}"));
        let page = end.begin().map_err(failed)?;
        let start = self.wait_for_start(end)?;
        let under = self.lease.handed_down(self.secret, &start, self.require).reveal();
        let Start { token, nodes, grant, .. } = start;
        // Slots of several nodes do not form one list.
        let single = grant.as_ref().filter(|_| self.require == Require::Any);
        let variables = variables_over_nodes(
            self.secret.run(),
            self.keys,
            &nodes,
            token,
            single,
            self.socket,
            &under,
        );
        let token = token.unwrap_or(0);
        self.verbosity.detail(&format!(
            "acquired {} at {}",
            self.keys.join(", "),
            nodes.join(", ")
        ));
        Ok(become_command_over_nodes(self.command, &variables, &page, token, channel))
    }

    fn wait_for_start(&self, end: &ChildEnd) -> Result<Start, Failed> {
        let mut display = Display::new(self.wait, self.items, self.verbosity);
        loop {
            match display.next(end, Duration::MAX)? {
                None => display.update(None),
                Some(BeforeStart::Waits { name, progress }) => {
                    display.update(Some((name, progress)));
                }
                Some(BeforeStart::New { names, until }) => display.count_down(&names, until),
                Some(BeforeStart::Line(line)) => {
                    display.make_room();
                    print(&line, self.verbosity);
                }
                Some(BeforeStart::Start(start)) => {
                    display.end();
                    return Ok(start);
                }
                // This is only for a lease.
                Some(BeforeStart::Held(_)) => {}
                Some(BeforeStart::End(why)) => {
                    display.end();
                    return Err(not_held(why, self.wait, self.verbosity));
                }
            }
        }
    }

    fn not_begun(&self, why: NotBegun) -> Failed {
        match why {
            NotBegun::NotRun(not_run) => not_run.into(),
            NotBegun::Lost(lost) => hold_lost::not_begun(&lost, self.keys),
            NotBegun::Alone => Failed::new("the supervisor of the command has ended"),
        }
    }
}

/// The values passed on to the command, besides those of the grant.
struct Lease {
    around: EnclosingLeases,
    nodes: Vec<Node>,
    ttl_ms: u64,
    place: Place,
}

impl Lease {
    fn handed_down(&self, secret: Secret, start: &Start, require: Require) -> EnclosingLeases {
        let need = require.as_asked().least(self.nodes.len());
        let lease = |nodes: &[Node]| {
            LeaseHandle::new(secret, start.token, self.ttl_ms, need, nodes, &start.parts)
        };
        self.around.clone().with(lease, &self.nodes, &self.place.socket)
    }
}

/// The display of a wait that moves from node to node.
pub(in crate::cli) struct Display<'a> {
    wait: &'a WaitArgs,
    items: &'a [WireItem],
    verbosity: Verbosity,
    /// The node on display, and its line.
    shown: Option<(String, Waiting)>,
    /// How long to wait before the next update.
    sleep: Duration,
    /// The readers of the output; without them the wait is given up.
    audience: Option<Audience>,
}

impl<'a> Display<'a> {
    pub(in crate::cli) fn new(
        wait: &'a WaitArgs,
        items: &'a [WireItem],
        verbosity: Verbosity,
    ) -> Self {
        let audience = (wait.readers() == Readers::Needed).then(Audience::new);
        Self { wait, items, verbosity, shown: None, sleep: SLEEP, audience }
    }

    /// The next message of the coordinator, if one arrives within this time or before the display
    /// needs an update.
    ///
    /// # Errors
    /// The request waits, and no reader of its output is left: its places are given up.
    pub(in crate::cli) fn next(
        &mut self,
        end: &ChildEnd,
        within: Duration,
    ) -> Result<Option<BeforeStart>, Failed> {
        let waits = self.shown.is_some();
        let word = end.next(self.sleep.min(within), self.audience.as_ref().filter(|_| waits));
        let audience = self.audience.as_mut().filter(|_| waits && word.is_none());
        if audience.is_some_and(Audience::has_left) {
            self.end();
            end.abandon();
            return Err(connect::failed(ClientError::Abandoned));
        }
        Ok(word)
    }

    /// Shows that the request waits at a node, if that is new.
    pub(in crate::cli) fn update(&mut self, news: Option<(String, Progress)>) {
        let progress = news.map(|(name, mut progress)| {
            if self.shown.as_ref().is_none_or(|(before, _)| *before != name) {
                self.end();
                self.shown = Some((name.clone(), self.waiting(&name)));
            }
            progress.key = at(&progress.key, &name);
            progress
        });
        let again = self.shown.as_mut().and_then(|(_, waiting)| waiting.update(progress.as_ref()));
        self.sleep = again.unwrap_or(SLEEP).clamp(Duration::from_millis(1), SLEEP);
    }

    /// Shows how long new nodes grant nothing yet.
    pub(in crate::cli) fn count_down(&mut self, names: &[String], until: u64) {
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
    pub(in crate::cli) fn make_room(&mut self) {
        match &mut self.shown {
            Some((_, waiting)) if waiting.counts_down() => waiting.end(),
            _ => self.end(),
        }
    }

    fn waiting(&self, name: &str) -> Waiting {
        let items = self
            .items
            .iter()
            .map(|item| WireItem { key: at(&item.key, name).into(), ..item.clone() });
        let choice = self.wait.progress.unwrap_or_default();
        Waiting::new(self.verbosity, choice, &items.collect::<Vec<_>>())
    }

    /// Removes the display from the terminal.
    pub(in crate::cli) fn end(&mut self) {
        if let Some((_, mut waiting)) = self.shown.take() {
            waiting.end();
        }
    }
}

/// `deploy at web1`.
fn at(key: &str, name: &str) -> String {
    format!("{key} at {name}")
}

/// The end of a request that was not granted.
pub(in crate::cli) fn not_held(why: NotHeld, wait: &WaitArgs, verbosity: Verbosity) -> Failed {
    match why {
        NotHeld::Refused { reason, message, hint, cycle } => {
            let is_deadlock = reason == "deadlock";
            let code = match is_deadlock {
                true => OwnCode::NotAcquired.number(),
                false => wait.conflict_code(),
            };
            if code != 0 && (verbosity > Verbosity::Quiet || is_deadlock) {
                verbosity.message(&message);
                deadlock::lines(&cycle).iter().for_each(|line| verbosity.message(line));
                match hint {
                    Some(hint) => verbosity.hint(&hint),
                    None if !cycle.is_empty() => verbosity.hint(not_acquired::AGAIN),
                    None => {}
                }
            }
            Failed::silent(code)
        }
        NotHeld::Failed { message, hint } => {
            let failed = Failed::new(message);
            match hint {
                Some(hint) => failed.hint(hint),
                None => failed,
            }
        }
        NotHeld::Lost { message } => {
            Failed::with_code(OwnCode::LockLost.number(), message).hint(hold_lost::HINT)
        }
        NotHeld::GivenBack => Failed::silent(OwnCode::Failed.number()),
    }
}

pub(in crate::cli) fn print(line: &Line, verbosity: Verbosity) {
    let (say, advise) = match line.is_note {
        true => (Verbosity::note as fn(Verbosity, &str), Verbosity::advice as fn(Verbosity, &str)),
        false => (Verbosity::message as _, Verbosity::hint as _),
    };
    say(verbosity, &line.text);
    if let Some(hint) = &line.hint {
        advise(verbosity, hint);
    }
}

/// The supervisor's output and decisions while the command runs.
struct Hooks<'a> {
    over_nodes: OverNodes,
    verbosity: Verbosity,
    keys: &'a [&'a str],
}

impl SupervisorHooks for Hooks<'_> {
    fn can_be_lost(&self) -> bool {
        true
    }

    fn lost(&mut self, lost: &LostHold) {
        self.verbosity.message(&hold_lost::message(lost, self.keys));
        self.verbosity.hint(hold_lost::HINT);
    }

    fn refused(&mut self, refused: &SignalRefused) {
        let verbosity = self.verbosity;
        verbosity.message(&refused.to_string());
        verbosity.hint(hold_lost::REFUSED_HINT);
    }

    fn is_daemon(&self, pid: Pid) -> bool {
        self.over_nodes.is_part(pid)
            || is_on_demand_daemon(pid.as_raw().unsigned_abs(), Some(Path::new(OWN)))
    }

    fn ask(&self, _token: u64) -> Option<Fate> {
        // The page belongs to this process, so it never loses its writer.
        None
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.over_nodes.kept().collect()
    }

    fn polled(&self) -> Option<BorrowedFd<'_>> {
        self.over_nodes.polled()
    }

    fn due(&self) -> Option<Duration> {
        self.over_nodes.due()
    }

    fn turn(&mut self, command: Option<Pid>) {
        for line in self.over_nodes.turn(command) {
            print(&line, self.verbosity);
        }
    }
}
