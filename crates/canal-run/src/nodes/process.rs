//! The coordinator's process: its driver's host, and its part in ending the command.
//!
//! It belongs to no terminal and to no job, so neither Ctrl-C nor Ctrl-Z stops its renewals. While
//! its parent lives, the parent decides when the command is over; without a parent, the coordinator
//! does.
//!
//! Invariant: the command is killed when the lock is lost or its deadline has come, whether or not
//! the parent does the same.

use std::io;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::setsid;

use crate::supervise::kill_with_descendants;
use canal_lock::client::channel::{End, Received};
use canal_lock::client::nodes::lease::HeldPart;
use canal_nodes::{Change, Checkpoint, Deadline, Millis, Outcome};
use canal_protocol::{ErrorName, Failure, OnLost};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline::{self, Why, Writer};
use canal_sys::pidfd::Pidfd;
use canal_sys::signals;

use super::driver::Driver;
use super::host::{Ending, Host, Named, PartAnswer, Wish, Word};
use super::identify::{self, IdentifyError, Known, Met};
use super::messages::{BeforeStart, Line, NotHeld, Start, ToCoordinator, ToParent};
use super::request::NodesRequest;
use super::takeover::{Left, Takeover};

/// How often to check for due actions while the command is being killed.
const LOOK_KILLING_MS: u64 = 50;

/// How long to wait before resending a message when the channel was full.
const AGAIN_MS: u64 = 100;

/// The texts for the user.
#[derive(Clone, Copy, Debug)]
pub struct Wording {
    /// The line for a report, or none.
    pub line: fn(&Word<'_>, Purpose) -> Option<Line>,
    /// Why a request is not held; `None` if its caller gave up.
    pub end: fn(&Ending) -> Option<NotHeld>,
}

/// The purpose of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The child, which becomes a command, and what to do with it if the lock is lost.
    Command(OnLost),
    /// A lease, which outlives the process that asked for it.
    Lease,
}

/// The process of a coordinator.
pub(super) struct CoordinatorProcess {
    pub(super) writer: Writer,
    pub(super) takeover: Takeover,
    pub(super) parent: End,
    /// `None` once the command has begun, or its process has ended.
    pub(super) child: Option<End>,
    pub(super) command: Option<Pidfd>,
    pub(super) purpose: Purpose,
    pub(super) wording: Wording,
    /// Whether the command may have begun.
    pub(super) begun: bool,
    pub(super) parent_gone: bool,
    pub(super) wish: Wish,
    pub(super) kill_at: Option<Millis>,
    /// The child's message that the lock is held, while the channel is full.
    pub(super) unsent: Option<Start>,
    /// The state that was handed over last.
    pub(super) left: Option<Left>,
}

impl CoordinatorProcess {
    /// Runs until nothing is left to do. The process must then end.
    pub(super) fn run(&mut self, request: &NodesRequest, left: Option<Left>) {
        stand_alone();
        let (met, checkpoint) = match left {
            Some(left) => {
                self.take_over(left.start.clone());
                let nodes = known(request, &left.nodes);
                // A request that is made again names its enclosing run, but no frame.
                let met = Met { nodes, here: None };
                let checkpoint = left.checkpoint.clone();
                self.left = Some(left);
                (met, Some((checkpoint, self.begun)))
            }
            None => match identify::meet(request, self) {
                Ok(met) => (met, None),
                Err(error) => return self.not_met(&error),
            },
        };
        let mut driver = Driver::new(request, met, checkpoint);
        match driver.run(self) {
            Ok(Some(ending)) => self.end(&ending),
            Ok(None) => {}
            Err(error) => self.not_held(Some(fault(error.to_string(), None))),
        }
    }

    /// Continues after another coordinator. `start` is the child's message that the lock is held,
    /// sent or about to be sent.
    fn take_over(&mut self, start: Option<Start>) {
        self.begun = start.is_some();
        let deadline = self.writer.state().deadline;
        self.kill_at = Some(deadline.kill_at).filter(|at| *at > 0);
        if !self.begun {
            // The child got no message, and the parts held for it are released.
            self.kill_at = None;
            self.writer.publish(deadline::Deadline::default());
        }
        if self.purpose != Purpose::Lease {
            // If the message reached the child, it no longer listens.
            self.unsent = start;
        }
    }

    fn not_met(&mut self, error: &IdentifyError) {
        self.not_held(match error {
            IdentifyError::GivenUp => None,
            error => Some(fault(error.to_string(), error.hint())),
        });
    }

    fn not_held(&mut self, why: Option<NotHeld>) {
        if let Some(child) = &self.child {
            child.send(&BeforeStart::End(why), &[]);
        }
    }

    fn end(&mut self, ending: &Ending) {
        if self.child.is_some() && !self.begun {
            let why = (self.wording.end)(ending);
            return self.not_held(why);
        }
        if let Outcome::GivenBack { left } = &ending.outcome
            && !left.is_empty()
        {
            let names: Vec<&str> = left.iter().map(|node| ending.names[*node].as_str()).collect();
            self.line(Line {
                is_note: true,
                text: format!(
                    "{} did not answer: the lock ends there when its TTL expires",
                    names.join(", ")
                ),
                hint: None,
            });
        }
    }

    fn line(&self, line: Line) {
        match &self.child {
            Some(child) if !self.begun => child.send(&BeforeStart::Line(line), &[]),
            _ => self.parent.send(&ToParent::Line(line), &[]),
        };
    }

    fn hear_child(&mut self) {
        let Some(child) = &self.child else { return };
        loop {
            match child.receive::<ToCoordinator>() {
                Received::Message(ToCoordinator::Command, mut descriptors) => {
                    self.command = descriptors.pop().and_then(|fd| Pidfd::from_fd(fd).ok());
                }
                Received::Message(ToCoordinator::Stop, _) => self.wish.stop(),
                Received::Message(ToCoordinator::Abandon, _) => self.wish = Wish::Abandon,
                Received::Message(ToCoordinator::Leave, _) => self.wish = Wish::Leave,
                Received::Nothing => return,
                Received::End => {
                    // The child has become the command, or ended before that.
                    self.child = None;
                    if !self.begun {
                        self.wish.stop();
                    }
                    return;
                }
            }
        }
    }

    fn hear_parent(&mut self) {
        while !self.parent_gone {
            match self.parent.receive::<ToCoordinator>() {
                Received::Message(ToCoordinator::Stop, _) => self.wish.stop(),
                Received::Message(ToCoordinator::Leave, _) => self.wish = Wish::Leave,
                Received::Message(ToCoordinator::Command | ToCoordinator::Abandon, _) => {}
                Received::Nothing => return,
                Received::End => self.parent_gone = true,
            }
        }
    }

    fn command_has_ended(&self) -> bool {
        self.command.as_ref().is_none_or(Pidfd::has_ended)
    }

    fn hand_over(&mut self, left: Left) {
        // If there are too many nodes for the space, another coordinator would start over.
        let _ = self.takeover.write(&left);
        self.left = Some(left);
    }

    fn send_start(&mut self) {
        let (Some(unsent), Some(child)) = (&self.unsent, &self.child) else { return };
        if child.send(&BeforeStart::Start(unsent.clone()), &[]) {
            self.unsent = None;
        }
    }

    fn kill_if_due(&mut self, now: Millis) {
        let due = self.kill_at.is_some_and(|at| now >= at);
        if due
            && self.begun
            && self.purpose == Purpose::Command(OnLost::Kill)
            && let Some(command) = &self.command
        {
            kill_with_descendants(command);
        }
    }
}

impl Host for CoordinatorProcess {
    fn keep(&mut self, nodes: &[Named], checkpoint: &Checkpoint) {
        let (nodes, checkpoint) = (nodes.to_vec(), checkpoint.clone());
        let start = self.left.take().and_then(|left| left.start);
        self.hand_over(Left { nodes, checkpoint, start });
    }

    fn publish(&mut self, deadline: Deadline) {
        let Deadline { reached_at, term_at, kill_at } = deadline;
        let earlier = self.kill_at.is_some_and(|before| kill_at < before);
        self.kill_at = Some(kill_at);
        self.writer.publish(deadline::Deadline { reached_at, term_at, kill_at });
        if earlier {
            self.parent.send(&ToParent::Look, &[]);
        }
    }

    fn start(&mut self, start: Start, _answers: &[PartAnswer]) -> bool {
        self.begun = true;
        // Another coordinator must know it before the child does.
        if let Some(left) = self.left.take() {
            self.hand_over(Left { start: Some(start.clone()), ..left });
        }
        if self.purpose != Purpose::Lease {
            self.unsent = Some(start);
            self.send_start();
        }
        true
    }

    fn settled(&mut self, parts: &[HeldPart]) {
        if self.purpose == Purpose::Lease
            && let Some(start) = self.left.as_ref().and_then(|left| left.start.clone())
        {
            self.unsent = Some(Start { parts: parts.to_vec(), ..start });
            self.send_start();
        }
    }

    fn kill_now(&mut self) {
        self.writer.lost(Why::Fewer);
        self.kill_at = Some(0);
        self.parent.send(&ToParent::Look, &[]);
        self.kill_if_due(boottime_ms());
    }

    fn say(&mut self, word: &Word<'_>) {
        if let (Word::Waits { name, progress }, Some(child), false) =
            (word, &self.child, self.begun)
        {
            let name = (*name).to_owned();
            let progress = (*progress).clone();
            child.send(&BeforeStart::Waits { name, progress }, &[]);
            return;
        }
        if let (
            Word::Change { change: Change::NotYet { nodes, until }, names },
            Some(child),
            false,
        ) = (word, &self.child, self.begun)
        {
            let name = |at: &usize| names.get(*at).copied().unwrap_or("?").to_owned();
            let names = nodes.iter().map(name).collect();
            child.send(&BeforeStart::New { names, until: *until }, &[]);
            return;
        }
        // Before the command starts, the number of nodes is news. Afterwards it is not.
        if let Word::Change { change: Change::Held { .. }, .. } = word
            && self.begun
        {
            return;
        }
        if let Some(line) = (self.wording.line)(word, self.purpose) {
            self.line(line);
        }
    }

    fn polled(&self) -> Vec<PollFd<'_>> {
        let parent = (!self.parent_gone).then(|| self.parent.as_fd());
        let child = self.child.as_ref().map(AsFd::as_fd);
        // The parent reports the end of the command; without a parent the kernel does.
        let command = self.command.as_ref().filter(|_| self.parent_gone).map(AsFd::as_fd);
        let all = parent.into_iter().chain(child).chain(command);
        all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect()
    }

    fn turn(&mut self, now: Millis) -> Wish {
        self.hear_child();
        self.hear_parent();
        self.send_start();
        self.kill_if_due(now);
        if self.wish == Wish::GoOn && self.parent_gone && self.command_has_ended() {
            self.wish = Wish::Stop;
        }
        self.wish
    }

    fn due(&self) -> Option<Millis> {
        let now = boottime_ms();
        let kill =
            self.kill_at.filter(|_| self.begun && self.purpose == Purpose::Command(OnLost::Kill));
        let kill = kill.map(|at| if at > now { at } else { now + LOOK_KILLING_MS });
        let again = self.unsent.is_some().then_some(now + AGAIN_MS);
        kill.into_iter().chain(again).min()
    }
}

pub(super) fn fault(message: String, hint: Option<String>) -> NotHeld {
    let hint = hint.map(String::into_boxed_str);
    (ErrorName::Fault, Failure { hint, ..Failure::new(ErrorName::Fault, message) })
}

/// The nodes of a request that another coordinator has begun.
fn known(request: &NodesRequest, nodes: &[Named]) -> Vec<Known> {
    let known = nodes.iter().filter_map(|named| {
        let node = request.nodes.get(named.at)?;
        Some(Known::unasked(named.at, named.id, node, request.ttl_ms))
    });
    known.collect()
}

/// Leaves the job and the terminal of the caller, and its signals.
pub(super) fn stand_alone() {
    // It fails only for the leader of a process group, which a child is not.
    let _ = setsid();
    let _ = SigSet::empty().thread_set_mask();
    let _ = signals::set_default(Signal::SIGCHLD);
    // A service manager that stops a service signals all its processes at once. This one must
    // release everything first, and ends by itself when the command has ended.
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
    ] {
        let _ = signals::set_ignored(signal);
    }
    let _: io::Result<()> = std::env::set_current_dir("/");
}
