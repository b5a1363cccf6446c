//! A machine that makes a request over nodes: the coordinator and its driver, and the process that
//! stays by the command and reads its deadline.

use std::collections::VecDeque;

use super::clock::Clock;
use super::table::LeaseName;
use crate::{Checkpoint, Coordinator, Effect, Input, Millis, Outcome, Plan, Task};
use canal_core::OverNodes;
use canal_sys::deadline_page::Deadline;

/// A machine.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) clock: Clock,
    /// The number of requests that it has yet to make.
    pub(super) jobs_left: u32,
    pub(super) job: Option<Job>,
    /// When it makes the next request.
    pub(super) rests_until: u64,
}

/// One request over nodes and its command.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) run: u32,
    pub(super) key: u8,
    pub(super) plan: Plan,
    /// For each node of the plan, its number in the world.
    pub(super) at: Vec<usize>,
    /// The request in the form in which nodes get it.
    pub(super) over: OverNodes,
    /// How long its command runs.
    pub(super) runs_ms: u64,
    pub(super) process: Option<Process>,
    /// When the next coordinator begins, if there is none.
    pub(super) restarts_at: u64,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) command: Option<Command>,
    /// Whether the command has ended.
    pub(super) is_done: bool,
    /// The connection to each node.
    pub(super) wires: Vec<Option<u64>>,
}

/// A coordinator process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) coordinator: Coordinator,
    pub(super) inbox: VecDeque<Input>,
    pub(super) wake_at: Option<Millis>,
    /// When it continues after a stop, in true time.
    pub(super) stopped_until: u64,
    /// It is killed after this number of effects.
    pub(super) dies_after: Option<u32>,
}

/// A running command.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) nodes: Vec<usize>,
    /// The deadline page.
    pub(super) page: Deadline,
    pub(super) ends_at: u64,
    /// The time by which it is dead, if it is being killed.
    pub(super) dies_at: Option<u64>,
}

impl Job {
    pub(super) fn lease(&self, lease: u32) -> LeaseName {
        LeaseName { run: self.run, lease }
    }

    /// The coordinator's next input, unless it is stopped.
    pub(super) fn next_input(&mut self, now: u64, clock: Clock) -> Option<Input> {
        let process = self.process.as_mut().filter(|process| now >= process.stopped_until)?;
        if let Some(input) = process.inbox.pop_front() {
            return Some(input);
        }
        let shown = clock.at(now);
        process.wake_at.take_if(|at| shown >= *at).map(|_| Input::Tick)
    }

    /// The time of the next event here that needs no input.
    pub(super) fn next_at(&self, clock: Clock) -> u64 {
        let process = match &self.process {
            None => self.restarts_at,
            Some(process) if !process.inbox.is_empty() => process.stopped_until,
            Some(process) => {
                let wake_at = process.wake_at.map_or(u64::MAX, |at| clock.when(at));
                wake_at.max(process.stopped_until)
            }
        };
        let command = self.command.as_ref().map_or(u64::MAX, |command| match command.dies_at {
            Some(at) => at,
            None => command.ends_at.min(clock.when(command.page.kill_at)),
        });
        process.min(command)
    }

    /// Passes an input to the coordinator. Returns its effects.
    pub(super) fn hear(&mut self, input: Input, shown: Millis) -> Vec<Effect> {
        let Some(process) = &mut self.process else { return Vec::new() };
        let effects = process.coordinator.handle(input, shown);
        self.checkpoint = Some(process.coordinator.checkpoint());
        effects
    }

    pub(super) fn tell(&mut self, input: Input) {
        if let Some(process) = &mut self.process {
            process.inbox.push_back(input);
        }
    }

    /// The process that stays by the command begins a coordinator, which may have to take over.
    pub(super) fn begin_coordinator(&mut self, now: Millis) {
        let plan = self.plan.clone();
        let runs = self.command.is_some() || self.is_done;
        let task = if runs { Task::Run } else { Task::Wait };
        let coordinator = match &self.checkpoint {
            Some(left) => Coordinator::take_over(plan, left, task, now),
            None => Coordinator::new(plan, now),
        };
        let first = if self.is_done { Input::Stop } else { Input::Tick };
        let inbox = VecDeque::from([first]);
        let process =
            Process { coordinator, inbox, wake_at: None, stopped_until: 0, dies_after: None };
        self.process = Some(process);
    }
}

/// The outcomes of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) given_back: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
}

impl Ends {
    pub(super) fn count(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::GivenBack(_) => &mut self.given_back,
            Outcome::Refused { .. } => &mut self.refused,
            Outcome::Failed(_) => &mut self.failed,
            Outcome::Lost(_) => &mut self.lost,
        } += 1;
    }
}
