//! The parent's side: keeps a coordinator running while the command runs.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::unistd::{Pid, getsid};

use canal_lock::client::channel::{End, Received, channel};
use canal_lock::client::command_environment::{Variables, variables_over_nodes};
use canal_lock::client::nodes::lease::LeaseHandle;
use canal_nodes::Require;
use canal_protocol::NodeFailure;
use canal_sys::deadline_page::{Deadline, Reader, Writer};
use canal_sys::fds;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::child::{Reap, children_of, ended, fork};
use canal_sys::terminal::output::OutputReaders;

use super::coordinator_process::{CoordinatorProcess, fault};
use super::node_wording::engine;
use super::nodes_request::{
    BeforeStart, Line, NodesRequest, Purpose, Start, ToCoordinator, ToParent, Wish,
};
use super::takeover::Takeover;

/// The shortest time between the starts of two coordinators.
const START_AFTER: Duration = Duration::from_millis(500);

/// How long the parent waits at its end until everything is released.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// A request over nodes, from the side of the process that stays by its command.
pub struct OverNodes {
    request: Rc<NodesRequest>,
    writer: Writer,
    takeover: Takeover,
    /// The coordinator's end of its channel to the child, for the next coordinator.
    to_child: Option<End>,
    coordinator: Option<(Pid, End)>,
    /// All coordinators so far: each leads a session, to which its ssh processes belong.
    sessions: BTreeSet<i32>,
    started: Instant,
    lines: Vec<Line>,
}

/// The child's side: it waits for the lock, and becomes the command.
pub struct ChildEnd {
    request: Rc<NodesRequest>,
    channel: End,
    /// Shows until when the lock is safe.
    pub page: Reader,
    /// The process that stays by the command; `None` if it is this one. Its pid has no meaning in
    /// another pid namespace, where getppid(2) is 0 whether the process lives or not.
    parent: Option<Pidfd>,
}

impl OverNodes {
    /// Starts a coordinator. This process must have one thread. For a command, it stays by the
    /// command, and the child takes the other side. For a lease, it has both sides: if it ends
    /// before [`Self::end`], everything is released.
    ///
    /// # Errors
    /// No process or memory is left.
    pub fn begin(request: NodesRequest) -> io::Result<(Self, ChildEnd)> {
        let (to_child, channel) = channel()?;
        let label = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = u64::from(std::process::id());
        // No lock is held, so no command may start.
        let none = Deadline::default();
        let engine = engine(request.require, request.nodes.len());
        let writer = Writer::create(host, &engine, &label.unwrap_or_default(), none)?;
        let [page, line] = writer.reader.descriptors().map(|fd| fd.try_clone_to_owned());
        let page = Reader::open(page?, line?)?;
        let parent = match request.purpose {
            Purpose::Command(_) => Some(Pidfd::open(std::process::id())?),
            Purpose::Lease => None,
        };
        let request = Rc::new(request);
        let child = ChildEnd { request: Rc::clone(&request), channel, page, parent };
        let mut this = Self {
            request,
            writer,
            takeover: Takeover::create()?,
            to_child: Some(to_child),
            coordinator: None,
            sessions: BTreeSet::new(),
            started: Instant::now(),
            lines: Vec::new(),
        };
        this.start(None)?;
        Ok((this, child))
    }

    /// Starts a coordinator, which takes over from the previous one if there was one. `command` is
    /// the child, if it exists already.
    fn start(&mut self, command: Option<Pid>) -> io::Result<()> {
        self.started = Instant::now();
        let (ours, theirs) = channel()?;
        let left = self.takeover.read();
        let command = command.and_then(|pid| Pidfd::open(pid.as_raw().unsigned_abs()).ok());
        if let Some(pid) = fork()? {
            self.sessions.insert(pid.as_raw());
            self.coordinator = Some((pid, ours));
            return Ok(());
        }
        drop(ours);
        self.coordinator = None;
        let child = self.to_child.take();
        let Self { request, writer, takeover, .. } = self;
        let mut keep = vec![theirs.as_fd(), takeover.descriptor()];
        keep.extend(writer.descriptors());
        keep.extend(child.as_ref().map(AsFd::as_fd));
        keep.extend(command.as_ref().map(AsFd::as_fd));
        fds::keep_only(&keep);
        let mut process = CoordinatorProcess {
            request,
            writer,
            takeover,
            parent: Some(theirs),
            child,
            command,
            wish: Wish::GoOn,
            unsent: None,
            left,
        };
        process.run();
        // Exit drops nothing: most descriptors of this copy of the parent are already closed.
        std::process::exit(0)
    }

    /// The descriptors that the parent needs while the command runs.
    pub fn kept(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let coordinator = self.coordinator.iter().map(|(_, channel)| channel.as_fd());
        coordinator
            .chain(self.to_child.as_ref().map(AsFd::as_fd))
            .chain([self.takeover.descriptor()])
            .chain(self.writer.descriptors())
    }

    /// The descriptor to poll while the command runs.
    pub fn polled(&self) -> Option<BorrowedFd<'_>> {
        self.coordinator.as_ref().map(|(_, channel)| channel.as_fd())
    }

    /// The time until the next call of [`Self::turn`].
    pub fn due(&self) -> Option<Duration> {
        match self.coordinator {
            Some(_) => None,
            None => Some(START_AFTER.saturating_sub(self.started.elapsed())),
        }
    }

    /// Reads the coordinator's messages, and starts another one if it has died. `command` is the
    /// child, until it has ended. Returns the lines for the user.
    pub fn turn(&mut self, command: Option<Pid>) -> Vec<Line> {
        self.hear();
        self.reap();
        if self.coordinator.is_none()
            && let Some(command) = command
            && self.started.elapsed() >= START_AFTER
            && let Err(error) = self.start(Some(command))
        {
            let text = format!("cannot start another coordinator: {error}");
            self.lines.push(Line::Message(text));
        }
        std::mem::take(&mut self.lines)
    }

    fn hear(&mut self) {
        while let Some((pid, channel)) = &self.coordinator {
            match channel.receive::<ToParent>() {
                Received::Message(ToParent::Note(text), _) => self.lines.push(Line::Note(text)),
                // The caller looks at the page whenever it wakes.
                Received::Message(ToParent::Look, _) => {}
                Received::Nothing => return,
                Received::End => {
                    let _ = ended(*pid, Reap::Now);
                    self.coordinator = None;
                }
            }
        }
    }

    /// Reaps the rest of coordinators that died: themselves, and their ssh processes, which this
    /// process adopted. All other adopted processes are the command's, and the
    /// supervisor reaps them.
    fn reap(&self) {
        // Without a death there is nothing to reap.
        if self.sessions.len() < 2 && self.coordinator.is_some() {
            return;
        }
        let present = self.coordinator.as_ref().map(|(pid, _)| *pid);
        for pid in children_of(Pid::this()).unwrap_or_default() {
            if Some(pid) != present && self.is_part(pid) {
                let _ = ended(pid, Reap::Now);
            }
        }
    }

    /// Whether a process is a coordinator, or one of its ssh processes.
    pub fn is_part(&self, pid: Pid) -> bool {
        getsid(Some(pid)).is_ok_and(|session| self.sessions.contains(&session.as_raw()))
    }

    /// Ends the coordinator, which first releases everything ([`Wish::Stop`]), or leaves the leases
    /// as they are ([`Wish::Leave`]). Waits a while for that.
    pub fn end(&mut self, wish: Wish) -> Vec<Line> {
        if let Some((_, channel)) = &self.coordinator {
            channel.send(&wish, &[]);
        }
        let until = Instant::now() + GIVE_BACK;
        loop {
            self.hear();
            let left = until.saturating_duration_since(Instant::now());
            let Some((_, channel)) = self.coordinator.as_ref().filter(|_| !left.is_zero()) else {
                return std::mem::take(&mut self.lines);
            };
            let _ = fds::wait_readable([channel.as_fd()], Some(left));
        }
    }
}

impl ChildEnd {
    /// The request.
    pub fn request(&self) -> &NodesRequest {
        &self.request
    }

    /// The handle of the lock that is held.
    pub fn handle(&self, start: &Start) -> LeaseHandle {
        let NodesRequest { secret, ttl_ms, .. } = *self.request;
        LeaseHandle::new(secret, start.token, ttl_ms, start.need, &start.parts)
    }

    /// The variables for the command. `socket` is the daemon's socket if the caller named one.
    pub fn variables(&self, start: &Start, socket: Option<&Path>) -> Variables {
        let NodesRequest { asked, secret, require, under, around, .. } = &*self.request;
        let under = under.clone().with(self.handle(start), &around.here.socket).reveal();
        // Slots of several nodes do not form one list.
        let single = start.grant.as_ref().filter(|_| *require == Require::Any);
        let run = secret.run();
        variables_over_nodes(run, &asked.keys(), &start.nodes, start.token, single, socket, &under)
    }

    /// In the child: tells the coordinator which process becomes the command.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn begin(&self) -> io::Result<()> {
        let this = Pidfd::open(std::process::id())?;
        self.channel.send(&ToCoordinator::Command, &[this.as_fd()]);
        Ok(())
    }

    /// Gives up the places of a waiting request, because no reader of its output is left.
    pub fn abandon(&self) {
        self.channel.send(&ToCoordinator::Abandon, &[]);
    }

    /// The next message of the coordinator, if one arrives within this time and before a member of
    /// the readers leave. If this process looks after the coordinator, also returns when that
    /// needs attention.
    pub fn next(
        &self,
        within: Option<Duration>,
        readers: Option<&OutputReaders>,
        coordinator: Option<&OverNodes>,
    ) -> Option<BeforeStart> {
        if let Some(message) = self.receive() {
            return Some(message);
        }
        let own = [Some(self.channel.as_fd()), self.parent.as_ref().map(AsFd::as_fd)];
        let readable = own.into_iter().flatten().chain(coordinator.and_then(OverNodes::polled));
        let readable = readable.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let mut polled: Vec<_> = readers.into_iter().flat_map(OutputReaders::polled).collect();
        polled.extend(readable);
        let _ = fds::poll_within(&mut polled, within);
        self.receive()
    }

    fn receive(&self) -> Option<BeforeStart> {
        if let Received::Message(message, _) = self.channel.receive() {
            return Some(message);
        }
        // The parent starts another coordinator if one dies; without it the lock would be in
        // danger.
        let has_ended = self.parent.as_ref().is_some_and(Pidfd::has_ended);
        let gone = || NodeFailure::passing("the command's supervisor has ended");
        has_ended.then(|| BeforeStart::End(Some(fault(gone()))))
    }
}
