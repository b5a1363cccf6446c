//! Drives a coordinator: opens connections, sends its calls, and passes it the answers.
//!
//! Invariant: effects are carried out in order, after the coordinator's state has been saved.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use canal_core::Token;
use canal_lock::client::nodes::known_nodes::KnownNode;
use canal_lock::client::nodes::lease::{HeldPart, LeaseHandle};
use canal_lock::client::nodes::link::{self, parameters};
use canal_lock::client::nodes::ssh::NodeFailure;
use canal_nodes::{
    Asking, Change, Checkpoint, Coordinator, Effect, Input, Millis, Outcome, Part, Plan, Refusal,
};
use canal_protocol::{
    Acquire, Collect, ConfirmAt, ConfirmedAt, CycleStepInfo, ErrorName, Failure, FrameOfNode,
    Grant, NodeId, NodeIdentity, NodesRefusal, Renewed, Report,
};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;

use super::identify::{Met, NodeState};
use super::member::{Answer, Heard, Kind, Member, unexpected};
use super::request::{
    Ending, Host, Named, NodesRequest, PartAnswer, PartSaid, PartTrouble, Start, Wish, Word,
};
use super::waits_reader::{GiveWay, WaitsReader};

/// How often to check for processes that have ended, and for nodes that are about to hold their
/// part.
const LOOK_MS: Millis = 1_000;

/// How long to wait for other nodes after the start before the host gets the list of held parts.
const SETTLE_MS: Millis = 5_000;

/// The inputs for the coordinator, each with the node whose connection it came from.
type Inputs = VecDeque<(Option<usize>, Input)>;

/// A coordinator with its connections.
pub(super) struct Driver<'a> {
    request: &'a NodesRequest,
    coordinator: Coordinator,
    nodes: Vec<NodeState>,
    kept: Option<Checkpoint>,
    wake_at: Option<Millis>,
    /// When the command could start, until the host knows that no further node is expected.
    unsettled_since: Option<Millis>,
    /// Whether renewals carry a note: the request's.
    renews_note: bool,
    waits_reader: WaitsReader<'a>,
    /// The node of this machine's daemon, if it encloses the request.
    here: Option<NodeId>,
    /// The ring for which the request was refused.
    cycle: Vec<CycleStepInfo>,
}

/// The purpose for which an existing lease is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLease {
    /// Renew it.
    Renew,
    /// Release it at each node in reach.
    GiveBack,
}

impl<'a> Driver<'a> {
    /// A coordinator of a new request, or of one that another coordinator began. In that case,
    /// `left` is the state that the other one left behind, and whether the command may run.
    pub(super) fn new(
        request: &'a NodesRequest,
        met: Met,
        left: Option<(Checkpoint, bool)>,
    ) -> Self {
        let unsettled_since = left.as_ref().filter(|(_, runs)| *runs).map(|_| boottime_ms());
        let begin = |plan| match left {
            Some((checkpoint, runs)) => Coordinator::take_over(plan, &checkpoint, runs),
            None => Coordinator::new(plan),
        };
        Self { unsettled_since, here: met.here, ..Self::with(request, met.nodes, begin) }
    }

    /// A coordinator of an existing lease. `request` is that of its handle.
    pub(super) fn of_lease(request: &'a NodesRequest, handle: &LeaseHandle, what: OnLease) -> Self {
        let nodes = handle.leases().zip(&request.nodes).enumerate();
        let nodes = nodes
            .map(|(at, ((id, _), node))| NodeState::unasked(at, id, node, request.ttl_ms))
            .collect();
        let leases = handle.leases().enumerate();
        let parts = leases.map(|(node, (_, lease))| Part { node, lease, sent: None, asked: None });
        let checkpoint = Checkpoint {
            token: handle.token().map(Token),
            need: handle.need(),
            parts: parts.collect(),
        };
        let begin = |plan| match what {
            OnLease::Renew => Coordinator::renew_lease(plan, &checkpoint),
            OnLease::GiveBack => Coordinator::give_back_lease(plan, &checkpoint),
        };
        Self { renews_note: true, ..Self::with(request, nodes, begin) }
    }

    fn with(
        request: &'a NodesRequest,
        nodes: Vec<NodeState>,
        begin: impl FnOnce(Plan) -> Coordinator,
    ) -> Self {
        let plan = Plan {
            nodes: nodes.iter().map(|node| node.id).collect(),
            require: request.require,
            ttl_ms: request.ttl_ms,
            wait_ms: request.asked.wait_ms,
            asked_at: request.asked_at,
        };
        Self {
            request,
            coordinator: begin(plan),
            nodes,
            kept: None,
            wake_at: None,
            unsettled_since: None,
            renews_note: false,
            waits_reader: WaitsReader::new(request),
            here: None,
            cycle: Vec::new(),
        }
    }

    /// Runs until the request is over, or until the host stops; then it returns `None`.
    pub(super) fn run(&mut self, host: &mut dyn Host) -> io::Result<Option<Ending>> {
        let mut inputs = VecDeque::from([(None, Input::Tick)]);
        // The clock of poll(2) stops while the machine is suspended.
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        loop {
            let now = boottime_ms();
            match host.turn(now) {
                Wish::GoOn => {}
                Wish::Stop => inputs.push_back((None, Input::Stop)),
                Wish::Abandon => {
                    self.abandon();
                    inputs.push_back((None, Input::Stop));
                }
                Wish::Leave => return Ok(None),
            }
            if self.wake_at.is_some_and(|at| at <= now) {
                self.wake_at = None;
                inputs.push_back((None, Input::Tick));
            }
            while let Some((_, input)) = inputs.pop_front() {
                let effects = self.coordinator.handle(input, boottime_ms());
                self.keep(host);
                for effect in effects {
                    if let ControlFlow::Break(end) = self.carry_out(effect, host, &mut inputs) {
                        return Ok(end);
                    }
                }
            }
            self.settle(host);
            if self.look(host, &mut inputs) {
                continue;
            }
            self.wait(host, &timer)?;
            for node in 0..self.nodes.len() {
                self.hear(node, host, &mut inputs);
            }
        }
    }

    /// Looks for deadlocks. Returns whether the coordinator must get an input about one.
    fn look(&mut self, host: &mut dyn Host, inputs: &mut Inputs) -> bool {
        let waits = match self.request.is_nested() {
            true => self.coordinator.waits(),
            false => self.coordinator.holds_while_it_waits(),
        };
        let found = self.waits_reader.turn(waits, boottime_ms());
        if let Some(nodes) = self.waits_reader.news.take() {
            host.say(&Word::Unread { nodes: &nodes });
        }
        match found {
            None => return false,
            Some(GiveWay::Surrender) => inputs.push_back((None, Input::Surrender)),
            Some(GiveWay::Refusal { why, cycle }) => {
                self.cycle = cycle;
                inputs.push_back((None, Input::Deadlock { why }));
            }
        }
        true
    }

    fn keep(&mut self, host: &mut dyn Host) {
        let checkpoint = self.coordinator.checkpoint();
        if self.kept.as_ref() != Some(&checkpoint) {
            let named = self.nodes.iter().map(|node| Named { at: node.at, id: node.id });
            host.keep(named.collect(), checkpoint.clone());
            self.kept = Some(checkpoint);
        }
    }

    /// Passes the host the nodes that hold the lock, once no other one is about to.
    fn settle(&mut self, host: &mut dyn Host) {
        let now = boottime_ms();
        let Some(since) = self.unsettled_since else { return };
        if now < since.saturating_add(SETTLE_MS) && self.coordinator.awaits_spares(now) {
            return;
        }
        self.unsettled_since = None;
        let parts = self.coordinator.checkpoint().parts;
        let parts = parts.iter().map(|part| {
            let NodeState { at, id, .. } = self.nodes[part.node];
            HeldPart { at, id, lease: part.lease, held: part.sent.is_some() }
        });
        host.settled(&parts.collect::<Vec<_>>());
    }

    fn wait(&self, host: &dyn Host, timer: &TimerFd) -> io::Result<()> {
        let now = boottime_ms();
        let due = [self.wake_at, host.due(), self.waits_reader.wake_at].into_iter().flatten();
        // These changes wake no descriptor, so they need regular checks.
        let is_looked_at = link::reap() || self.unsettled_since.is_some();
        let members = self.nodes.iter().map(|node| &node.member).chain(self.waits_reader.members());
        let patience = due
            .map(|at| at.saturating_sub(now))
            .chain(members.clone().map(Member::patience_ms))
            .chain(is_looked_at.then_some(LOOK_MS))
            .min();
        match patience.and_then(|ms| now.checked_add(ms)) {
            // A time of 0 would disarm it.
            Some(at) => {
                let at = TimeSpec::from_duration(Duration::from_millis(at.max(1)));
                timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            None => timer.unset()?,
        }
        let polled = members.flat_map(Member::polled).chain(host.polled());
        let timer = PollFd::new(timer.as_fd(), PollFlags::POLLIN);
        let mut polled: Vec<PollFd<'_>> = polled.chain([timer]).collect();
        fds::poll_within(&mut polled, None).map(drop)
    }

    /// Carries out an effect. Breaks with the end of the request, or with `None` if the host
    /// continues without the driver.
    fn carry_out(
        &mut self,
        effect: Effect,
        host: &mut dyn Host,
        inputs: &mut Inputs,
    ) -> ControlFlow<Option<Ending>> {
        let secret = self.request.secret;
        let mut sent = None;
        match effect {
            Effect::Connect { node } => {
                inputs.retain(|(of, _)| *of != Some(node));
                self.connect(node, inputs);
            }
            Effect::Cancel { node } => {
                // Earlier messages of the node no longer count.
                inputs.retain(|(of, _)| *of != Some(node));
                self.close(node);
            }
            Effect::Ask { node, lease, asking } => {
                self.nodes[node].lease = lease;
                self.nodes[node].grant = None;
                let asked = self.asked(node, asking);
                sent = Some((node, self.nodes[node].member.collect(&asked)));
            }
            Effect::ConfirmAt { node, lease, token } => {
                let NodeState { id, member, .. } = &mut self.nodes[node];
                let (tag, handle) = (secret.tag(*id, lease), secret.handle(*id, lease));
                let asked = ConfirmAt { tag, handle, token: token.0, note: None };
                sent = Some((node, member.confirm(&asked)));
            }
            Effect::Renew { node, lease } => {
                let NodeState { id, member, .. } = &mut self.nodes[node];
                let note = self.request.asked.note.clone().filter(|_| self.renews_note);
                let ttl_ms = self.request.new_ttl_ms;
                sent = Some((node, member.renew(secret.handle(*id, lease), note, ttl_ms)));
            }
            Effect::Release { node, lease } => {
                let NodeState { id, member, releases, .. } = &mut self.nodes[node];
                *releases += 1;
                sent = Some((node, member.release(secret.handle(*id, lease))));
            }
            Effect::Start { token, nodes, deadline } => {
                host.publish(deadline);
                let start = self.start(token, &nodes);
                self.unsettled_since = Some(boottime_ms());
                if !host.start(start, &self.answers()) {
                    return ControlFlow::Break(None);
                }
            }
            Effect::Deadline(deadline) => host.publish(deadline),
            Effect::KillNow => host.kill_now(),
            Effect::Say(change) => {
                self.report(&change);
                let names = self.names();
                host.say(&Word::Change { change: &change, names: &names });
            }
            Effect::End(outcome) => return ControlFlow::Break(Some(self.ending(outcome))),
            Effect::WakeAt(at) => self.wake_at = Some(at),
        }
        if let Some((node, Err(failure))) = sent {
            self.lose(node, failure, inputs);
        }
        ControlFlow::Continue(())
    }

    fn names(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.member.node.name.as_str()).collect()
    }

    /// The message that these nodes hold the lock.
    fn start(&self, token: Option<Token>, nodes: &[usize]) -> Start {
        let nodes = || nodes.iter().map(|node| &self.nodes[*node]);
        let part =
            |node: &NodeState| HeldPart { at: node.at, id: node.id, lease: node.lease, held: true };
        Start {
            token: token.map(|token| token.0),
            nodes: nodes().map(|node| node.member.node.name.clone()).collect(),
            grant: nodes().next().and_then(|node| node.grant.clone()),
            need: self.coordinator.checkpoint().need,
            parts: nodes().map(part).collect(),
        }
    }

    fn asked(&self, node: usize, asking: Asking) -> Collect {
        let NodeState { id, lease, .. } = self.nodes[node];
        let request = self.request;
        let Acquire { priority, max_waiting, under_run, .. } = request.asked;
        Collect {
            run: request.secret.run(),
            tag: request.secret.tag(id, lease),
            handle: request.secret.handle(id, lease),
            ttl_ms: request.ttl_ms,
            items: request.asked.items.clone(),
            nodes: self.nodes.iter().map(|node| node.id).collect(),
            require: request.require.as_asked(),
            // The time to wait applies to all nodes together, so the coordinator measures it.
            wait_ms: asking.no_wait.then_some(0),
            priority,
            max_waiting,
            command: request.asked.command.clone(),
            note: request.asked.note.clone(),
            spare: asking.spare,
            under: request.under.handle(id),
            under_run,
            under_frame: self
                .here
                .zip(request.under_frame)
                .map(|(node, frame)| FrameOfNode { node, frame }),
        }
    }

    fn connect(&mut self, node: usize, inputs: &mut Inputs) {
        let state = &mut self.nodes[node];
        if state.member.is_open() && !state.reached && state.lease == 0 {
            // It was opened to find out its identity.
            state.reached = true;
            let left_ms = state.grants_from.map(|at| at.saturating_sub(boottime_ms()));
            return inputs.push_back((Some(node), reached(node, left_ms)));
        }
        self.close(node);
        let state = &mut self.nodes[node];
        if let Err(failure) = state.member.open(&self.request.around) {
            self.lose(node, failure, inputs);
        }
    }

    /// Tells each node at which the request waits why it gives up its place.
    fn abandon(&mut self) {
        for node in &mut self.nodes {
            node.member.abandon(self.request.secret.tag(node.id, node.lease));
        }
    }

    fn close(&mut self, node: usize) {
        self.nodes[node].reached = false;
        self.nodes[node].member.close();
    }

    fn lose(&mut self, node: usize, failure: NodeFailure, inputs: &mut Inputs) {
        self.close(node);
        let NodeFailure { permanent, what, hint } = failure;
        self.nodes[node].hint = hint;
        self.nodes[node].trouble = Some(PartTrouble::Away(what.clone()));
        inputs.push_back((Some(node), Input::Away { node, permanent, why: what }));
    }

    fn hear(&mut self, node: usize, host: &mut dyn Host, inputs: &mut Inputs) {
        for heard in self.nodes[node].member.turn() {
            let input = match heard {
                Heard::Away(failure) => Err(failure),
                Heard::Identity(identity) => self.check(node, &identity).map(|()| {
                    self.nodes[node].reached = true;
                    reached(node, identity.grants_from_ms)
                }),
                Heard::Answer(answer) => match answer.refused_part() {
                    Some(refused) => {
                        let trouble = PartTrouble::Refused(refused.what.clone());
                        self.lose(node, refused, inputs);
                        self.nodes[node].trouble = Some(trouble);
                        return;
                    }
                    None => self.understand(node, answer, host),
                },
            };
            match input {
                Ok(input) => inputs.push_back((Some(node), input)),
                Err(failure) => return self.lose(node, failure, inputs),
            }
        }
    }

    /// The input that an answer means.
    fn understand(
        &mut self,
        node: usize,
        Answer { kind, sent, continues, result }: Answer,
        host: &mut dyn Host,
    ) -> Result<Input, NodeFailure> {
        let state = &mut self.nodes[node];
        Ok(match (kind, result) {
            (Kind::Collect, Ok(reply)) if continues => {
                let progress = parameters(&reply)?;
                host.say(&Word::Waits { name: &state.member.node.name, progress: &progress });
                Input::Queued { node }
            }
            (Kind::Collect, Ok(reply)) => {
                let grant: Grant = parameters(&reply)?;
                let token = Token(grant.token);
                state.grant = Some(grant);
                Input::Granted { node, token }
            }
            (Kind::Collect, Err(failure)) => match refusal(&failure) {
                Some(refusal) => {
                    state.hint = failure.hint.map(String::from);
                    Input::Refused { node, refusal, why: failure.message }
                }
                None => return Err(NodeFailure::passing(failure.message)),
            },
            (Kind::ConfirmAt, Ok(reply)) => {
                let _: ConfirmedAt = parameters(&reply)?;
                Input::Confirmed { node, sent }
            }
            (Kind::ConfirmAt, Err(failure)) => match (failure.name, failure.nodes.as_deref()) {
                (ErrorName::TokenTaken, Some(NodesRefusal::Least { least })) => {
                    Input::TokenTaken { node, least: Token(*least) }
                }
                // The node would refuse it each time.
                (ErrorName::BadRequest, _) => {
                    state.hint = failure.hint.map(String::from);
                    Input::TokenRefused { node, why: failure.message }
                }
                _ => Input::ConfirmFailed { node },
            },
            (Kind::Renew | Kind::ChangeTtl, Ok(reply)) => {
                let renewed: Box<Renewed> = parameters(&reply)?;
                let ttl_ms = Some(renewed.lease.ttl_ms);
                state.said = Some(PartSaid::Renewed(renewed));
                Input::Renewed { node, sent, ttl_ms }
            }
            (Kind::Release, Ok(reply)) => {
                state.said = Some(PartSaid::Released(parameters(&reply)?));
                Input::Gone { node }
            }
            // The part is lost.
            (Kind::Renew | Kind::ChangeTtl | Kind::Release, Err(failure)) => {
                // The answer to an earlier release of this command did not arrive.
                let was_ours = state.releases > 1 && failure.reason.as_deref() == Some("released");
                match state.said {
                    Some(PartSaid::Released(_) | PartSaid::Lost(_)) => {}
                    _ if was_ours => state.said = Some(PartSaid::Released(Box::default())),
                    _ => state.said = Some(PartSaid::Lost(failure)),
                }
                Input::Gone { node }
            }
            // Only other connections carry these questions.
            (Kind::Identify | Kind::WaitsNear | Kind::Leader, _) => return Err(unexpected()),
        })
    }

    fn answers(&self) -> Vec<PartAnswer> {
        let answer = |node: &NodeState| PartAnswer {
            name: node.member.node.name.clone(),
            said: node.said.clone(),
            trouble: node.trouble.clone(),
        };
        self.nodes.iter().map(answer).collect()
    }

    /// Whether the daemon is the one in the plan.
    fn check(&self, node: usize, identity: &NodeIdentity) -> Result<(), NodeFailure> {
        let state = &self.nodes[node];
        self.request.around.known_nodes.meet(&state.member.node, &KnownNode::of(identity))?;
        match identity.node == state.id {
            true => Ok(()),
            false => Err(NodeFailure::permanent("it is now a different daemon")),
        }
    }

    /// Lets each node that was asked show the state of the whole request.
    fn report(&mut self, change: &Change) {
        let Change::Held { held, need, waits_for } = change else { return };
        let names = self.names();
        let waits_for: Vec<String> = waits_for.iter().map(|node| names[*node].to_owned()).collect();
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (need, held) = (number(*need), number(*held));
        let secret = self.request.secret;
        for state in self.nodes.iter_mut().filter(|state| state.reached && state.lease > 0) {
            let handle = secret.handle(state.id, state.lease);
            let waits_for = waits_for.clone();
            state.member.report(&Report { handle, need, held, waits_for });
        }
    }

    fn ending(&self, outcome: Outcome) -> Ending {
        let concerned: Vec<usize> = match &outcome {
            Outcome::Refused { node, .. } => node.iter().copied().collect(),
            Outcome::Failed { nodes } => nodes.iter().map(|(node, _)| *node).collect(),
            Outcome::Lost { .. } | Outcome::GivenBack { .. } => Vec::new(),
        };
        let hint = concerned.iter().find_map(|node| self.nodes[*node].hint.clone());
        let names = self.names().into_iter().map(str::to_owned).collect();
        let is_deadlock =
            matches!(&outcome, Outcome::Refused { refusal: Refusal::Deadlock, node: None, .. });
        let cycle = if is_deadlock { self.cycle.clone() } else { Vec::new() };
        Ending { outcome, names, hint, answers: self.answers(), cycle }
    }
}

/// The input for a node that sent its identity, and how long it does not grant anything.
fn reached(node: usize, left_ms: Option<Millis>) -> Input {
    left_ms.map_or(Input::Reached { node }, |left_ms| Input::NotYet { node, left_ms })
}

/// The kind of refusal that an error means; `None` if the node may grant the request when it is
/// asked again.
fn refusal(failure: &Failure) -> Option<Refusal> {
    Some(match failure.name {
        ErrorName::Refused => match failure.reason.as_deref() {
            Some("timeout") => Refusal::Timeout,
            Some("deadlock") => Refusal::Deadlock,
            _ => Refusal::Full,
        },
        ErrorName::NotYet => match failure.nodes.as_deref() {
            Some(NodesRefusal::Later { left_ms }) => Refusal::NotYet { left_ms: *left_ms },
            _ => return None,
        },
        ErrorName::NotLasting | ErrorName::Denied => Refusal::Unfit,
        ErrorName::NodeListDiffers => Refusal::OtherList,
        ErrorName::RequireTooLarge
        | ErrorName::Mismatch
        | ErrorName::BadRequest
        | ErrorName::TooManyWaiters
        | ErrorName::TooManyLeases
        | ErrorName::TooManyKeys
        | ErrorName::TooMuch => Refusal::Invalid,
        _ => return None,
    })
}
