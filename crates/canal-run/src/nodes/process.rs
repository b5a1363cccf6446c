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
use nix::sys::signal::SigSet;
use nix::sys::signal::Signal::{self, SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use nix::unistd::setsid;

use crate::adopted_processes::kill_with_descendants;
use canal_lock::client::channel::{End, Received};
use canal_lock::client::nodes::lease::HeldPart;
use canal_nodes::{Checkpoint, Millis, Outcome, Task};
use canal_protocol::{ErrorName, Failure, NodeFailure, NodeId, OnLost};
use canal_sys::clock::boottime_ms;
use canal_sys::deadline::{Deadline, Why, Writer};
use canal_sys::pidfd::Pidfd;
use canal_sys::signals;

use super::driver::Driver;
use super::identify::{self, Met, NodeState};
use super::request::{
    BeforeStart, Ending, Host, News, NodesRequest, NotHeld, PartAnswer, Purpose, Start,
    ToCoordinator, ToParent, Wish,
};
use super::takeover::{Left, Takeover};
use super::wording;

/// How often to check for due actions while the command is being killed.
const LOOK_KILLING_MS: u64 = 50;

/// How long to wait before resending a message when the channel was full.
const AGAIN_MS: u64 = 100;

/// The process of a coordinator.
pub(super) struct CoordinatorProcess<'a> {
    pub(super) request: &'a NodesRequest,
    pub(super) writer: &'a mut Writer,
    pub(super) takeover: &'a Takeover,
    pub(super) parent: End,
    /// `None` once the command has begun, or its process has ended.
    pub(super) child: Option<End>,
    pub(super) command: Option<Pidfd>,
    /// Whether the command may have begun.
    pub(super) begun: bool,
    pub(super) parent_gone: bool,
    pub(super) wish: Wish,
    pub(super) kill_at: Option<Millis>,
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
        let (met, checkpoint) = match self.left.clone() {
            Some(Left { nodes, checkpoint, start }) => {
                self.take_over(start);
                let known = nodes.iter().filter_map(|(at, id)| {
                    Some(NodeState::unasked(*at, *id, request.nodes.get(*at)?, request.ttl_ms))
                });
                // A request that is made again names its enclosing run, but no frame.
                let met = Met { nodes: known.collect(), here: None };
                (met, Some((checkpoint, if self.begun { Task::Run } else { Task::Wait })))
            }
            None => match identify::meet(request, self) {
                Ok(met) => (met, None),
                Err(failure) => return self.not_held(failure.map(fault)),
            },
        };
        let mut driver = Driver::new(request, met, checkpoint);
        match driver.run(self) {
            Ok(Some(ending)) => self.end(&ending),
            Ok(None) => {}
            Err(error) => self.not_held(Some(fault(error.into()))),
        }
    }

    /// Continues after another coordinator. `start` is the child's message that the lock is held,
    /// sent or about to be sent.
    fn take_over(&mut self, start: Option<Start>) {
        self.begun = start.is_some();
        let deadline = self.writer.reader.state().deadline;
        self.kill_at = Some(deadline.kill_at).filter(|at| *at > 0);
        if !self.begun {
            // The child got no message, and the parts held for it are released.
            self.kill_at = None;
            self.writer.publish(Deadline::default());
        }
        if self.request.purpose != Purpose::Lease {
            // If the message reached the child, it no longer listens.
            self.unsent = start;
        }
    }

    fn not_held(&mut self, why: Option<NotHeld>) {
        if let Some(child) = &self.child {
            child.send(&BeforeStart::End(why), &[]);
        }
    }

    fn end(&mut self, ending: &Ending) {
        if self.child.is_some() && !self.begun {
            return self.not_held(wording::not_held(ending));
        }
        if let Outcome::GivenBack(left) = &ending.outcome
            && !left.is_empty()
        {
            let names: Vec<&str> = left.iter().map(|node| ending.names[*node].as_str()).collect();
            let names = names.join(", ");
            self.say(News::Note(format!(
                "{names} did not answer: the lock ends there when its TTL expires"
            )));
        }
    }

    /// Reads the messages of the child and of the parent.
    fn hear(&mut self) {
        while let Some(child) = &self.child {
            match child.receive() {
                Received::Message(ToCoordinator::Command, mut descriptors) => {
                    self.command = descriptors.pop().and_then(|fd| Pidfd::from_fd(fd).ok());
                }
                Received::Message(ToCoordinator::Wish(wish), _) => self.wish.follow(wish),
                Received::Nothing => break,
                Received::End => {
                    // The child has become the command, or ended before that.
                    self.child = None;
                    if !self.begun {
                        self.wish.follow(Wish::Stop);
                    }
                }
            }
        }
        while !self.parent_gone {
            match self.parent.receive() {
                Received::Message(ToCoordinator::Wish(wish), _) => self.wish.follow(wish),
                Received::Message(ToCoordinator::Command, _) => {}
                Received::Nothing => break,
                Received::End => self.parent_gone = true,
            }
        }
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
        self.kill_at
            .filter(|_| self.begun && self.request.purpose == Purpose::Command(OnLost::Kill))
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
    fn keep(&mut self, nodes: Vec<(usize, NodeId)>, checkpoint: Checkpoint) {
        let start = self.left.take().and_then(|left| left.start);
        self.hand_over(Left { nodes, checkpoint, start });
    }

    fn publish(&mut self, deadline: Deadline) {
        let earlier = self.kill_at.is_some_and(|before| deadline.kill_at < before);
        self.kill_at = Some(deadline.kill_at);
        self.writer.publish(deadline);
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
        if self.request.purpose != Purpose::Lease {
            self.unsent = Some(start);
            self.send_start();
        }
        true
    }

    fn settled(&mut self, parts: &[HeldPart]) {
        if self.request.purpose == Purpose::Lease
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

    fn say(&mut self, news: News) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.begun) {
            child.send(&BeforeStart::News(news), &[]);
        } else if let Some(note) = news.note() {
            self.parent.send(&ToParent::Note(note), &[]);
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
        self.hear();
        self.send_start();
        self.kill_if_due(now);
        let has_ended = || self.command.as_ref().is_none_or(Pidfd::has_ended);
        if self.wish == Wish::GoOn && self.parent_gone && has_ended() {
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
