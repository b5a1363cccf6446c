//! Takes locks for `canal run` and `canal acquire`: from a daemon, or from several nodes.

use std::mem::take;
use std::time::Duration;

use itertools::Itertools as _;
use nix::unistd::Pid;

use crate::cli::arguments::nodes::{NodesArgs, ttl_ms};
use crate::cli::arguments::request::{
    ProgressArg, RequestArgs, WaitArgs, inherited, not_believed, not_new,
};
use crate::cli::kill_and_supersede::end_superseded;
use crate::cli::node_list::{around, listed, near, of_lease};
use crate::cli::progress::Waiting;
use crate::cli::wording::holders_and_waiters;
use crate::cli::{Failed, Global, Result, Target, Verbosity, stderr, wrong};
use crate::client::deadlock_search::WaitWithin;
use crate::client::nodes::lease::{EnclosingLeases, LeaseHandle, Secret};
use crate::client::{self, ClientError};
use crate::core::FrameId;
use crate::nodes::{Require, Task};
use crate::protocol::{
    Acquire, ErrorName, Failure, Grant, GrantedKey, Mode, Node, Progress, SizeNote, Superseded,
    WireItem,
};
use crate::run::nodes::{
    BeforeStart, ChildEnd, Ending, Host, Line, News, NodesRequest, OverNodes, Purpose, Start, Wish,
    unread,
};
use crate::run::{OwnCode, Taken};
use crate::sys::clock::boottime_ms;
use crate::sys::pidfd::Pidfd;
use crate::sys::terminal::output::OutputReaders;

/// Where a lock is taken: from a daemon, or from several nodes.
pub(crate) struct Source {
    /// The daemon of this place, and how to start it.
    pub(crate) target: Target,
    pub(crate) nodes: Option<Nodes>,
}

impl Source {
    /// The source that the options name, for a lock with this purpose, if it can grant the request.
    pub(crate) fn of(
        global: &Global,
        args: &NodesArgs,
        ttl: Option<Duration>,
        request: &Acquire,
        purpose: Purpose,
    ) -> Result<Self> {
        if !args.is_given() {
            return Ok(Self { target: Target::of(global)?, nodes: None });
        }
        // No daemon remembers for all nodes how the keys were read, so each request gets the notes.
        let notes = request.items.iter().filter_map(SizeNote::of_text);
        notes.for_each(|note| stderr::note(&note.message));
        args.check(&request.items)?;
        let ttl_ms = ttl_ms(ttl)?;
        let target = Target::of(global)?;
        let nodes = listed(&args.on, &target)?;
        if purpose == Purpose::Lease {
            LeaseHandle::fits(&nodes).map_err(|error| {
                Failed::new(error).hint("name fewer nodes, or give them shorter addresses")
            })?;
        }
        let require = args.require();
        if nodes.len() == 2 && require == Require::Majority {
            let what = if purpose == Purpose::Lease { "the lease" } else { "the command" };
            let both = "a majority of 2 nodes is both of them";
            stderr::note(&format!("{both}: the loss of either ends {what}"));
            stderr::advice("name a third node, or give --require all");
        }
        Ok(Self { target, nodes: Some(Nodes { nodes, require, ttl_ms, purpose }) })
    }

    /// Sends the request and shows its progress until it is granted or refused. `end` belongs to a
    /// coordinator that already asks nodes; without one, a lease at nodes gets its own.
    pub(crate) fn take(
        &self,
        asking: &Asking<'_>,
        end: Option<ChildEnd>,
        mut witness: Option<Witness<'_>>,
    ) -> Result<Taken> {
        if let Some(nodes) = &self.nodes {
            return nodes.take(&self.target, asking, end);
        }
        let Asking { request, owner, wait } = *asking;
        // A background job has no terminal, and nobody waits for it.
        let (choice, unattended) = match witness {
            Some(_) => (ProgressArg::None, true),
            None => (wait.progress.unwrap_or_default(), wait.unattended),
        };
        let mut client = self.target.connect_for(request.wait_ms)?;
        client.readers = (!unattended).then(OutputReaders::default);
        let mut waiting = Waiting::new(stderr::verbosity(), choice, &request.items);
        let mut within = WaitWithin::new(&client, request);
        let mut supersedes = request.supersede == Some(Superseded::Running);
        let mut end_them = || match take(&mut supersedes) {
            true => end_superseded(&self.target, request.tag),
            false => Ok(()),
        };
        let result = client.acquire(request, owner, &mut |progress| {
            if let Some(Progress { session, position, .. }) = progress {
                // Without a session, the request is not in the table yet.
                let told = match (&mut witness, session) {
                    (Some(witness), Some(session)) => witness(session, *position),
                    _ => Ok(()),
                };
                // Before it has a position, the request may not be in the log.
                let told = told.and_then(|()| if *position > 0 { end_them() } else { Ok(()) });
                told.map_err(|Failed { message, hint, .. }| {
                    let hint = hint.map(String::into_boxed_str);
                    Box::new(Failure { hint, ..Failure::new(ErrorName::Fault, message) })
                })?;
            }
            let again = within.turn(waiting.update(progress));
            if let Some(nodes) = within.unread.take() {
                waiting.note(&unread(&nodes));
            }
            again
        });
        waiting.end();
        let acquired = result.inspect_err(|error| {
            if let ClientError::Failure(failure) = error {
                size_notes(failure.notes());
            }
        })?;
        size_notes(&acquired.grant.notes);
        if stderr::shows(Verbosity::Verbose) {
            let Grant { keys, token, .. } = &acquired.grant;
            stderr::detail(&format!("acquired {}, token {token}", keys_granted(keys)));
        }
        not_believed(request, &acquired.grant).iter().for_each(|it| stderr::detail(it));
        not_new(request, &acquired.grant, inherited()).iter().for_each(|it| stderr::note(it));
        end_them()?;
        if let Some(witness) = witness {
            witness(&acquired.grant.session, 0)?;
        }
        Ok(Taken::FromDaemon { client, acquired })
    }
}

/// The request that the options of `canal VERB` describe, under a new tag.
pub(crate) fn request(verb: &str, asked: &RequestArgs, nodes: &NodesArgs) -> Result<Acquire> {
    let RequestArgs { lock, session, wait, note } = asked;
    let mut request = Acquire {
        tag: client::tag()?,
        items: lock.items()?,
        wait_ms: wait.wait_ms(),
        priority: wait.priority.unwrap_or(0),
        max_waiting: wait.max_waiting,
        group: wait.group.clone(),
        note: note.of_request()?,
        supersede: wait.supersede,
        ..Acquire::default()
    };
    if nodes.is_given() && (wait.supersede.is_some() || wait.group.is_some()) {
        let why = "--supersede and --group cannot be used with --on: independent nodes have no \
                   common queue";
        return Err(wrong(verb, why));
    }
    if wait.supersede == Some(Superseded::Running) && wait.wait_ms() == Some(0) {
        let why =
            "--supersede running waits until the command has ended, so it cannot be used with -n";
        return Err(wrong(verb, why));
    }
    session.join(&mut request);
    Ok(request)
}

/// A request, and how to show its wait.
pub(crate) struct Asking<'a> {
    pub(crate) request: &'a Acquire,
    /// The owner of the lock, if that is not this process.
    pub(crate) owner: Option<&'a Pidfd>,
    pub(crate) wait: &'a WaitArgs,
}

/// Learns the session of a request at a daemon, and its position in the queue, which is 0 once it
/// is granted. An error withdraws the request, or makes the caller end, which releases the grant.
pub(crate) type Witness<'a> = &'a mut dyn FnMut(&str, u64) -> Result;

/// Prints where the size in the request differs from the size that others use. Each difference
/// appears only once for each daemon and user, because cron mails every line.
fn size_notes(notes: &[SizeNote]) {
    notes.iter().filter(|note| note.first).for_each(|note| stderr::note(&note.message));
}

/// `db slot 4 (5 held), conf to read`.
pub(crate) fn keys_granted(keys: &[GrantedKey]) -> String {
    let granted = |GrantedKey { key, mode, slots, acquired, .. }: &GrantedKey| match mode {
        Mode::Counted => {
            let slots: Vec<_> = slots.iter().map(|slot| slot.slot).collect();
            format!("{key} slot {} ({acquired} held)", holders_and_waiters::slots(&slots))
        }
        Mode::Read | Mode::Write => format!("{key} {}", holders_and_waiters::wanted(*mode)),
    };
    keys.iter().map(granted).join(", ")
}

/// The nodes of a lock.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    require: Require,
    ttl_ms: u64,
    purpose: Purpose,
}

impl Nodes {
    /// Starts a coordinator that asks the nodes. `under`: the leases that do not block the request.
    pub(crate) fn ask(
        &self,
        target: &Target,
        request: &Acquire,
        under: EnclosingLeases,
    ) -> Result<(OverNodes, ChildEnd)> {
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
            purpose: self.purpose,
            ttl_ms: self.ttl_ms,
            new_ttl_ms: None,
            asked_at: boottime_ms(),
            secret: Secret::new()?,
        };
        OverNodes::begin(asked).map_err(not_called)
    }

    /// Waits until the lock is held. `end` belongs to the coordinator of a command; without one, a
    /// lease gets its own, and this process looks after it.
    fn take(&self, target: &Target, asking: &Asking<'_>, end: Option<ChildEnd>) -> Result<Taken> {
        let (mut coordinator, end) = match end {
            Some(end) => (None, end),
            None => {
                let (coordinator, end) =
                    self.ask(target, asking.request, EnclosingLeases::default())?;
                (Some(coordinator), end)
            }
        };
        let begun = end.begin().map_err(not_called);
        match begun.and_then(|()| wait(asking, &end, coordinator.as_mut())) {
            Ok(start) => {
                if coordinator.is_none() {
                    let (keys, nodes) = (asking.request.keys().join(", "), start.nodes.join(", "));
                    stderr::detail(&format!("acquired {keys} on {nodes}"));
                }
                Ok(Taken::FromNodes { start, end, coordinator })
            }
            Err(why) => {
                end_coordinator(coordinator, Wish::Stop);
                Err(why)
            }
        }
    }
}

/// Renews or releases an existing lease. A renewal carries the note and the TTL.
pub(crate) fn on_lease(
    task: Task,
    handle: &LeaseHandle,
    (note, new_ttl_ms): (Option<String>, Option<u64>),
    target: &Target,
    host: &mut dyn Host,
) -> Result<Option<Ending>> {
    let nodes = of_lease(handle, target)?;
    let around = around(target, Vec::new());
    let request = NodesRequest::of_lease(handle, nodes, note, new_ttl_ms, around);
    crate::run::nodes::on_lease(task, handle, &request, host).map_err(not_called)
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
) -> Result<Start> {
    let readers = (!asking.wait.unattended).then(OutputReaders::default);
    let mut display = Display { asking, shown: None, sleep: None, readers };
    loop {
        match display.next(end, coordinator.as_deref())? {
            None => display.update(None),
            Some(BeforeStart::News(News::Waits { name, progress })) => {
                display.update(Some((name, progress)));
            }
            Some(BeforeStart::News(News::New { names, until })) => {
                display.show("").count_down(&names, until);
                display.update(None);
            }
            Some(BeforeStart::News(News::Away(text) | News::Note(text))) => {
                display.make_room();
                stderr::note(&text);
            }
            Some(BeforeStart::Start(start)) => {
                display.end();
                return Ok(start);
            }
            Some(BeforeStart::End(why)) => {
                display.end();
                let silent = || Failed::silent(OwnCode::Failed.number());
                let failed =
                    |(name, failure)| ClientError::Failure(Failure { name, ..failure }).into();
                return Err(why.map_or_else(silent, failed));
            }
        }
        let lines = coordinator.as_mut().map(|it| it.turn(Some(Pid::this()))).unwrap_or_default();
        if !lines.is_empty() {
            display.make_room();
            lines.iter().for_each(print);
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
    readers: Option<OutputReaders>,
}

impl Display<'_> {
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
        let readers = self.readers.as_ref().filter(|_| waits);
        let word = end.next(within, readers, coordinator);
        let readers = self.readers.as_mut().filter(|_| waits && word.is_none());
        if readers.is_some_and(OutputReaders::are_gone) {
            self.end();
            end.abandon();
            return Err(ClientError::Abandoned.into());
        }
        Ok(word)
    }

    /// The display for the wait at this node, in place of that for another one. A countdown has no
    /// node: its name is empty.
    fn show(&mut self, name: &str) -> &mut Waiting {
        if self.shown.as_ref().is_some_and(|(before, _)| before != name) {
            self.end();
        }
        let Asking { request, wait, .. } = *self.asking;
        let (_, waiting) = self.shown.get_or_insert_with(|| {
            let on_node = |it: &WireItem| WireItem { key: at(&it.key, name).into(), ..it.clone() };
            let items: Vec<WireItem> = request.items.iter().map(on_node).collect();
            let choice = wait.progress.unwrap_or_default();
            (name.to_owned(), Waiting::new(stderr::verbosity(), choice, &items))
        });
        waiting
    }

    /// Shows the progress of the wait at a node, if there is any.
    fn update(&mut self, news: Option<(String, Progress)>) {
        let again = match news {
            Some((name, progress)) => {
                let progress = Progress { key: at(&progress.key, &name), ..progress };
                self.show(&name).update(Some(&progress))
            }
            None => self.shown.as_mut().and_then(|(_, waiting)| waiting.update(None)),
        };
        self.sleep = again.map(|again| again.max(Duration::from_millis(1)));
    }

    /// Removes the display from the terminal, to print a line. A countdown comes back after it.
    fn make_room(&mut self) {
        match &mut self.shown {
            Some((name, waiting)) if name.is_empty() => waiting.end(),
            _ => self.end(),
        }
    }

    /// Removes the display from the terminal.
    fn end(&mut self) {
        self.shown.take().into_iter().for_each(|(_, mut waiting)| waiting.end());
    }
}

/// `deploy at web1`.
fn at(key: &str, name: &str) -> String {
    format!("{key} on {name}")
}

/// Ends the coordinator of a lock at nodes, if there is one.
pub(crate) fn end_coordinator(coordinator: Option<OverNodes>, wish: Wish) {
    let lines = coordinator.map(|mut it| it.end(wish)).unwrap_or_default();
    lines.iter().for_each(print);
}

/// Prints a line of a coordinator.
pub(crate) fn print(line: &Line) {
    match line {
        Line::Note(text) => stderr::note(text),
        Line::Message(text) => stderr::message(text),
    }
}
