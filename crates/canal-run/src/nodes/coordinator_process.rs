//! The coordinator's process: its driver's host, and its part in ending the command.
//!
//! It belongs to no terminal and to no job, so neither Ctrl-C nor Ctrl-Z stops its renewals. While
//! its parent lives, the parent decides when the command is over; without a parent, the coordinator
//! does.
//!
//! Invariant: the command is killed when the lock is lost or its deadline has come, whether or not
//! the parent does the same.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::SigSet;
use nix::sys::signal::Signal::{self, SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use nix::unistd::setsid;

use crate::adopted_processes::kill_with_descendants;
use canal_lock::client::channel::{End, Received};
use canal_lock::client::nodes::lease::LeasePart;
use canal_nodes::{Checkpoint, Millis, Outcome, Task};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{ErrorName, Failure, NodeFailure, NodeId, OnLost};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline_page::{Deadline, State, Why, Writer};
use canal_sys::pidfd::Pidfd;
use canal_sys::signals;

use super::connect_and_identify::{self, NodeState};
use super::driver::Driver;
use super::node_wording;
use super::nodes_request::{
    BeforeStart, Ending, Host, News, NodesRequest, NotHeld, PartAnswer, Purpose, Start,
    ToCoordinator, ToParent, Wish,
};
use super::takeover::{Left, Takeover};

/// How often to check for due actions while the command is being killed.
const LOOK_KILLING_MS: u64 = 50;

/// How long to wait before resending a message when the channel was full.
const AGAIN_MS: u64 = 100;

/// The process of a coordinator.
pub(super) struct CoordinatorProcess<'a> {
    pub(super) request: &'a NodesRequest,
    pub(super) writer: &'a mut Writer,
    pub(super) takeover: &'a Takeover,
    /// `None` once the parent has ended.
    pub(super) parent: Option<End>,
    /// `None` once the command has begun, or its process has ended.
    pub(super) child: Option<End>,
    pub(super) command: Option<Pidfd>,
    pub(super) wish: Wish,
    /// The child's message that the lock is held, while the channel is full.
    pub(super) unsent: Option<Start>,
    /// The state that was handed over last, by this coordinator or by another one.
    pub(super) left: Option<Left>,
}

impl CoordinatorProcess<'_> {
    /// Runs until nothing is left to do. The process must then end.
    pub(super) fn run(&mut self) {
        stand_alone();
        let request = self.request;
        let ((nodes, here), left) = match self.left.clone() {
            Some(Left { nodes, checkpoint, start }) => {
                let task = if start.is_some() { Task::Run } else { Task::Wait };
                if start.is_none() {
                    // The child got no message, and the parts held for it are released.
                    self.writer.publish(Deadline::default());
                }
                if request.purpose != Purpose::Lease {
                    // If the message reached the child, it no longer listens.
                    self.unsent = start;
                }
                let known = nodes.iter().filter_map(|(address, id)| {
                    let node = request.nodes.iter().find(|node| node.address == *address)?;
                    Some(NodeState::unasked(*id, node, request.ttl_ms))
                });
                // A request that is made again names its enclosing run, but no frame.
                ((known.collect(), None), Some((checkpoint, task)))
            }
            None => match connect_and_identify::meet(request, self) {
                Ok(met) => (met, None),
                Err(failure) => return self.not_held(failure.map(fault)),
            },
        };
        let mut driver = Driver::new(request, nodes, here, left);
        match driver.run(self) {
            Ok(Some(ending)) => self.end(&ending),
            Ok(None) => {}
            Err(error) => self.not_held(Some(fault(error.into()))),
        }
    }

    /// Whether the command may have begun.
    fn begun(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.start.is_some())
    }

    fn not_held(&mut self, why: Option<NotHeld>) {
        if let Some(child) = &self.child {
            child.send(&BeforeStart::End(why), &[]);
        }
    }

    fn end(&mut self, ending: &Ending) {
        if self.child.is_some() && !self.begun() {
            return self.not_held(node_wording::not_held(ending));
        }
        if let Outcome::GivenBack(left) = &ending.outcome
            && !left.is_empty()
        {
            let names = left.iter().map(|node| ending.answers[*node].name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            let text = format!("{names} did not answer: the lock ends there when its TTL expires");
            self.say(News::Note(text));
        }
    }

    /// Reads the messages of the child and of the parent.
    fn hear(&mut self) {
        while let Some(child) = &self.child {
            match child.receive() {
                Received::Message(ToCoordinator::Command, mut descriptors) => {
                    self.command = descriptors.pop().and_then(|fd| Pidfd::from_fd(fd).ok());
                }
                Received::Message(ToCoordinator::Abandon, _) => self.wish.follow(Wish::Abandon),
                Received::Nothing => break,
                Received::End => {
                    // The child has become the command, or ended before that.
                    self.child = None;
                    if !self.begun() {
                        self.wish.follow(Wish::Stop);
                    }
                }
            }
        }
        while let Some(parent) = &self.parent {
            match parent.receive() {
                Received::Message(wish, _) => self.wish.follow(wish),
                Received::Nothing => break,
                Received::End => self.parent = None,
            }
        }
    }

    fn tell_parent(&self, message: &ToParent) {
        self.parent.iter().for_each(|parent| _ = parent.send(message, &[]));
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

    /// When to kill the command, if it may have begun and canal is to kill it.
    fn due_kill(&self) -> Option<Millis> {
        let State { deadline, lost } = self.writer.reader.state();
        let kills = self.begun() && self.request.purpose == Purpose::Command(OnLost::Kill);
        kills.then(|| lost.map_or(deadline.kill_at, |_| 0))
    }

    fn kill_if_due(&mut self, now: Millis) {
        if let Some(command) = &self.command
            && self.due_kill().is_some_and(|at| now >= at)
        {
            kill_with_descendants(command);
        }
    }
}

impl Host for CoordinatorProcess<'_> {
    fn keep(&mut self, nodes: Vec<(NodeAddress, NodeId)>, checkpoint: Checkpoint) {
        let start = self.left.take().and_then(|left| left.start);
        self.hand_over(Left { nodes, checkpoint, start });
    }

    fn publish(&mut self, deadline: Deadline) {
        let before = self.writer.reader.state().deadline;
        self.writer.publish(deadline);
        if deadline.kill_at < before.kill_at {
            self.tell_parent(&ToParent::Look);
        }
    }

    fn start(&mut self, start: Start, _answers: &[PartAnswer]) -> bool {
        // Another coordinator must know it before the child does.
        if let Some(left) = self.left.take() {
            self.hand_over(Left { start: Some(start.clone()), ..left });
        }
        if self.request.purpose != Purpose::Lease {
            self.unsent = Some(start);
            self.send_start();
        }
        true
    }

    fn settled(&mut self, parts: &[LeasePart]) {
        if self.request.purpose == Purpose::Lease
            && let Some(start) = self.left.as_ref().and_then(|left| left.start.clone())
        {
            self.unsent = Some(Start { parts: parts.to_vec(), ..start });
            self.send_start();
        }
    }

    fn kill_now(&mut self) {
        self.writer.lost(Why::Fewer);
        self.tell_parent(&ToParent::Look);
        self.kill_if_due(boottime_ms());
    }

    fn say(&mut self, news: News) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.begun()) {
            child.send(&BeforeStart::News(news), &[]);
        } else if let Some(note) = news.note() {
            self.tell_parent(&ToParent::Note(note));
        }
    }

    fn polled(&self) -> Vec<BorrowedFd<'_>> {
        let ends = [&self.parent, &self.child].into_iter().flatten().map(AsFd::as_fd);
        // The parent reports the end of the command; without a parent the kernel does.
        let command = self.command.iter().filter(|_| self.parent.is_none()).map(AsFd::as_fd);
        ends.chain(command).collect()
    }

    fn turn(&mut self, now: Millis) -> Wish {
        self.hear();
        self.send_start();
        self.kill_if_due(now);
        let has_ended = || self.command.as_ref().is_none_or(Pidfd::has_ended);
        if self.wish == Wish::GoOn && self.parent.is_none() && has_ended() {
            self.wish = Wish::Stop;
        }
        self.wish
    }

    fn due(&self) -> Option<Millis> {
        let now = boottime_ms();
        let kill = self.due_kill().map(|at| if at > now { at } else { now + LOOK_KILLING_MS });
        let again = self.unsent.is_some().then_some(now + AGAIN_MS);
        kill.into_iter().chain(again).min()
    }
}

pub(super) fn fault(NodeFailure { what, hint, .. }: NodeFailure) -> NotHeld {
    let hint = hint.map(String::into_boxed_str);
    (ErrorName::Fault, Failure { hint, ..Failure::new(ErrorName::Fault, what) })
}

/// Leaves the job and the terminal of the caller, and its signals.
pub(super) fn stand_alone() {
    // It fails only for the leader of a process group, which a child is not.
    let _ = setsid();
    let _ = SigSet::empty().thread_set_mask();
    let _ = signals::set_default(Signal::SIGCHLD);
    // A service manager that stops a service signals all its processes at once. This one must
    // release everything first, and ends by itself when the command has ended.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM] {
        let _ = signals::set_ignored(signal);
    }
    let _: io::Result<()> = std::env::set_current_dir("/");
}
