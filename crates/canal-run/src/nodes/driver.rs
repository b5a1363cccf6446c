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
use canal_lock::client::nodes::lease::{HeldPart, LeaseHandle};
use canal_lock::client::nodes::link::{self, parameters};
use canal_nodes::{
    Asking, Call, Change, Checkpoint, Coordinator, Effect, Event, Held, Input, Millis, Outcome,
    Part, Plan, Refusal, Task,
};
use canal_protocol::{
    Acquire, Collect, ConfirmAt, ConfirmedAt, ErrorName, Failure, FrameOfNode, Grant, KnownNode,
    NodeFailure, NodeId, NodesRefusal, Release, Renew, Renewed, Report,
};
use canal_sys::clock::boottime_ms;
use canal_sys::fds;

use super::identify::{Met, NodeState};
use super::member::{Answer, Heard, Kind, Member, unexpected};
use super::request::{
    Ending, Host, News, NodesRequest, PartAnswer, PartSaid, PartTrouble, Start, Wish,
};
use super::waits_reader::WaitsReader;
use super::wording::{news, unread};

/// How often to check for processes that have ended, and for nodes that are about to hold their
/// part.
const LOOK_MS: Millis = 1_000;

/// How long to wait for other nodes after the start before the host gets the list of held parts.
const SETTLE_MS: Millis = 5_000;

/// The inputs for the coordinator.
type Inputs = VecDeque<Input>;

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
}

impl<'a> Driver<'a> {
    /// A coordinator of a new request, or of one that another coordinator began and `left`.
    pub(super) fn new(
        request: &'a NodesRequest,
        met: Met,
        left: Option<(Checkpoint, Task)>,
    ) -> Self {
        let runs = left.as_ref().is_some_and(|(_, task)| *task == Task::Run);
        let unsettled_since = runs.then(boottime_ms);
        Self { unsettled_since, here: met.here, ..Self::with(request, met.nodes, left) }
    }

    /// A coordinator of an existing lease. `request` is that of its handle.
    pub(super) fn of_lease(request: &'a NodesRequest, handle: &LeaseHandle, task: Task) -> Self {
        let (mut nodes, mut parts) = (Vec::new(), Vec::new());
        for (at, (part, node)) in handle.parts.iter().zip(&request.nodes).enumerate() {
            nodes.push(NodeState::unasked(at, part.id, node, request.ttl_ms));
            parts.push(Part { node: at, lease: part.lease, sent: None, asked: None });
        }
        let left = Checkpoint { token: handle.token.map(Token), need: handle.need, parts };
        Self { renews_note: true, ..Self::with(request, nodes, Some((left, task))) }
    }

    fn with(
        request: &'a NodesRequest,
        nodes: Vec<NodeState>,
        left: Option<(Checkpoint, Task)>,
    ) -> Self {
        let plan = Plan {
            nodes: nodes.iter().map(|node| node.id).collect(),
            require: request.require,
            ttl_ms: request.ttl_ms,
            wait_ms: request.asked.wait_ms,
            asked_at: request.asked_at,
        };
        let now = boottime_ms();
        let coordinator = match left {
            Some((left, task)) => Coordinator::take_over(plan, &left, task, now),
            None => Coordinator::new(plan, now),
        };
        Self {
            request,
            coordinator,
            nodes,
            kept: None,
            wake_at: None,
            unsettled_since: None,
            renews_note: false,
            waits_reader: WaitsReader::new(request),
            here: None,
        }
    }

    /// Runs until the request is over, or until the host stops; then it returns `None`.
    pub(super) fn run(&mut self, host: &mut dyn Host) -> io::Result<Option<Ending>> {
        let mut inputs = VecDeque::from([Input::Tick]);
        // The clock of poll(2) stops while the machine is suspended.
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        loop {
            let now = boottime_ms();
            match host.turn(now) {
                Wish::GoOn => {}
                Wish::Stop => inputs.push_back(Input::Stop),
                Wish::Abandon => {
                    self.abandon();
                    inputs.push_back(Input::Stop);
                }
                Wish::Leave => return Ok(None),
            }
            if self.wake_at.is_some_and(|at| at <= now) {
                self.wake_at = None;
                inputs.push_back(Input::Tick);
            }
            while let Some(input) = inputs.pop_front() {
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
            host.say(News::Note(unread(&nodes)));
        }
        let is_found = found.is_some();
        inputs.extend(found);
        is_found
    }

    fn keep(&mut self, host: &mut dyn Host) {
        let checkpoint = self.coordinator.checkpoint();
        if self.kept.as_ref() != Some(&checkpoint) {
            let nodes = self.nodes.iter().map(|node| (node.at, node.id));
            host.keep(nodes.collect(), checkpoint.clone());
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
        match effect {
            Effect::Node(node, call) => {
                if let Err(failure) = self.call(node, call, inputs) {
                    self.lose(node, failure, inputs);
                }
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
                if let Change::Held(held, waits_for) = &change {
                    self.report(*held, waits_for);
                }
                if let Some(news) = news(&change, &self.names(), self.request.purpose) {
                    host.say(news);
                }
            }
            Effect::End(outcome) => return ControlFlow::Break(Some(self.ending(outcome))),
            Effect::WakeAt(at) => self.wake_at = Some(at),
        }
        ControlFlow::Continue(())
    }

    fn call(&mut self, node: usize, call: Call, inputs: &mut Inputs) -> Result<(), NodeFailure> {
        let (request, secret) = (self.request, self.request.secret);
        let NodeState { id, member, .. } = &mut self.nodes[node];
        match call {
            Call::Connect | Call::Cancel => {
                // Earlier messages of the node no longer count.
                inputs.retain(|input| !matches!(input, Input::Node(of, _) if *of == node));
                if call == Call::Connect {
                    return self.connect(node, inputs);
                }
                member.close();
                Ok(())
            }
            Call::Ask(lease, asking) => {
                (self.nodes[node].lease, self.nodes[node].grant) = (lease, None);
                let collect = self.collect(node, asking);
                self.nodes[node].member.call(Kind::Collect, &collect)
            }
            Call::ConfirmAt(lease, Token(token)) => {
                let (tag, handle) = (secret.tag(*id, lease), secret.handle(*id, lease));
                member.call(Kind::ConfirmAt, &ConfirmAt { tag, handle, token, note: None })
            }
            Call::Renew(lease) => {
                let note = request.asked.note.clone().filter(|_| self.renews_note);
                let (handle, ttl_ms) = (secret.handle(*id, lease), request.new_ttl_ms);
                member.call(Kind::Renew, &Renew { handle, note, ttl_ms })
            }
            Call::Release(lease) => {
                let handle = Some(secret.handle(*id, lease));
                self.nodes[node].releases += 1;
                let release = Release { handle, ..Release::default() };
                self.nodes[node].member.call(Kind::Release, &release)
            }
        }
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

    fn collect(&self, node: usize, asking: Asking) -> Collect {
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

    fn connect(&mut self, node: usize, inputs: &mut Inputs) -> Result<(), NodeFailure> {
        let state = &mut self.nodes[node];
        if state.member.is_open() && !state.member.reached && state.lease == 0 {
            // It was opened to find out its identity.
            state.member.reached = true;
            let left_ms = state.grants_from.map(|at| at.saturating_sub(boottime_ms()));
            inputs.push_back(Input::Node(node, reached(left_ms)));
            return Ok(());
        }
        state.member.close();
        state.member.open(&self.request.around)
    }

    /// Tells each node at which the request waits why it gives up its place.
    fn abandon(&mut self) {
        for node in &mut self.nodes {
            node.member.abandon(self.request.secret.tag(node.id, node.lease));
        }
    }

    fn lose(&mut self, node: usize, failure: NodeFailure, inputs: &mut Inputs) {
        let state = &mut self.nodes[node];
        state.member.close();
        state.trouble = Some(PartTrouble::Away(failure.what.clone()));
        inputs.push_back(Input::Node(node, Event::Away(failure)));
    }

    fn hear(&mut self, node: usize, host: &mut dyn Host, inputs: &mut Inputs) {
        for heard in self.nodes[node].member.turn() {
            let event = match heard {
                Heard::Away(failure) => Err(failure),
                Heard::Identity(identity) => self.check(node, &identity.known).map(|()| {
                    self.nodes[node].member.reached = true;
                    reached(identity.grants_from_ms)
                }),
                Heard::Answer(answer) => {
                    if let Some(refused) = self.refused_part(&answer) {
                        let trouble = PartTrouble::Refused(refused.what.clone());
                        self.lose(node, refused, inputs);
                        self.nodes[node].trouble = Some(trouble);
                        return;
                    }
                    self.understand(node, answer, host)
                }
            };
            match event {
                Ok(event) => inputs.push_back(Input::Node(node, event)),
                Err(failure) => return self.lose(node, failure, inputs),
            }
        }
    }

    /// Why a node did not do what a call asked of its part, which stays as it is.
    fn refused_part(&self, answer: &Answer) -> Option<NodeFailure> {
        let failure = answer.result.as_ref().err()?;
        let is_about_part = matches!(answer.kind, Kind::Renew | Kind::Release);
        if !is_about_part || failure.name == ErrorName::LeaseLost {
            return None;
        }
        // The node does not keep a lease for that long, so another attempt is useless.
        let changes_ttl = answer.kind == Kind::Renew && self.request.new_ttl_ms.is_some();
        let permanent = changes_ttl && failure.name == ErrorName::BadRequest;
        Some(NodeFailure { permanent, ..refused(failure) })
    }

    /// The event that an answer means.
    fn understand(
        &mut self,
        node: usize,
        Answer { kind, sent, continues, result }: Answer,
        host: &mut dyn Host,
    ) -> Result<Event, NodeFailure> {
        let state = &mut self.nodes[node];
        Ok(match (kind, result) {
            (Kind::Collect, Ok(reply)) if continues => {
                let progress = parameters(&reply)?;
                host.say(News::Waits { name: state.member.node.name.clone(), progress });
                Event::Queued
            }
            (Kind::Collect, Ok(reply)) => {
                let grant = state.grant.insert(parameters::<Grant>(&reply)?);
                Event::Granted(Token(grant.token))
            }
            (Kind::Collect, Err(failure)) => match refusal(&failure) {
                Some(refusal) => Event::Refused(refusal, refused(&failure)),
                None => return Err(NodeFailure::passing(failure.message)),
            },
            (Kind::ConfirmAt, Ok(reply)) => {
                let _: ConfirmedAt = parameters(&reply)?;
                Event::Confirmed(sent)
            }
            (Kind::ConfirmAt, Err(failure)) => match (failure.name, failure.nodes.as_deref()) {
                (ErrorName::TokenTaken, Some(NodesRefusal::Least { least })) => {
                    Event::TokenTaken(Token(*least))
                }
                // The node would refuse it each time.
                (ErrorName::BadRequest, _) => Event::TokenRefused(refused(&failure)),
                _ => Event::ConfirmFailed,
            },
            (Kind::Renew, Ok(reply)) => {
                let renewed: Box<Renewed> = parameters(&reply)?;
                let ttl_ms = Some(renewed.lease.ttl_ms);
                state.said = Some(PartSaid::Renewed(renewed));
                Event::Renewed { sent, ttl_ms }
            }
            (Kind::Release, Ok(reply)) => {
                state.said = Some(PartSaid::Released(parameters(&reply)?));
                Event::Gone
            }
            // The part is lost.
            (Kind::Renew | Kind::Release, Err(failure)) => {
                // The answer to an earlier release of this command did not arrive.
                let was_ours = state.releases > 1 && failure.reason.as_deref() == Some("released");
                match state.said {
                    Some(PartSaid::Released(_) | PartSaid::Lost(_)) => {}
                    _ if was_ours => state.said = Some(PartSaid::Released(Box::default())),
                    _ => state.said = Some(PartSaid::Lost(failure)),
                }
                Event::Gone
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
    fn check(&self, node: usize, known: &KnownNode) -> Result<(), NodeFailure> {
        let state = &self.nodes[node];
        self.request.around.known_nodes.meet(&state.member.node, known)?;
        match known.node == state.id {
            true => Ok(()),
            false => Err(NodeFailure::permanent("it is now a different daemon")),
        }
    }

    /// Lets each node that was asked show the state of the whole request.
    fn report(&mut self, Held { held, need }: Held, waits_for: &[usize]) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (need, held) = (number(need), number(held));
        let name = |node: &usize| self.nodes[*node].member.node.name.clone();
        let waits_for: Vec<String> = waits_for.iter().map(name).collect();
        for state in self.nodes.iter_mut().filter(|it| it.member.reached && it.lease > 0) {
            let handle = self.request.secret.handle(state.id, state.lease);
            let waits_for = waits_for.clone();
            state.member.report(&Report { handle, need, held, waits_for });
        }
    }

    fn ending(&self, outcome: Outcome) -> Ending {
        let names = self.names().into_iter().map(str::to_owned).collect();
        let is_deadlock =
            matches!(&outcome, Outcome::Refused { refusal: Refusal::Deadlock, node: None, .. });
        let cycle = if is_deadlock { self.waits_reader.cycle.clone() } else { Vec::new() };
        Ending { outcome, names, answers: self.answers(), cycle }
    }
}

/// The event of a node that sent its identity, and for how long it does not grant anything.
fn reached(left_ms: Option<Millis>) -> Event {
    left_ms.map_or(Event::Reached, Event::NotYet)
}

/// The words with which a node refused something.
fn refused(failure: &Failure) -> NodeFailure {
    let hint = failure.hint.clone().map(String::from);
    NodeFailure { hint, ..NodeFailure::passing(failure.message.clone()) }
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
            Some(NodesRefusal::Later { left_ms }) => Refusal::NotYet(*left_ms),
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
