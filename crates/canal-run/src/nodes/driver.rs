//! Drives a coordinator: opens connections, sends its calls, and passes it the answers.
//!
//! Invariant: effects are carried out in order, after the coordinator's state has been saved.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;

use canal_core::Token;
use canal_lock::client::nodes::lease::{LeaseHandle, LeasePart};
use canal_lock::client::nodes::link::parameters;
use canal_nodes::{
    Asking, Call, Change, Checkpoint, Coordinator, Effect, Event, Held, Input, Millis, Outcome,
    Part, Plan, Refusal, Task,
};
use canal_protocol::{
    Acquire, Collect, ConfirmAt, ConfirmedAt, ErrorName, Failure, FrameOfNode, Grant, Node,
    NodeFailure, NodeId, NodesRefusal, Release, Renew, Renewed, Report,
};
use canal_sys::clock::boottime_ms;

use super::connect_and_identify::NodeState;
use super::node_connection::{Answer, Heard, Kind, sleep, unexpected};
use super::node_wording::{news, unread};
use super::nodes_request::{
    Ending, Host, News, NodesRequest, PartAnswer, PartSaid, PartTrouble, Start, Wish,
};
use super::waits_reader::WaitsReader;

/// How often to check for nodes that are about to hold their part, which wakes no descriptor.
const LOOK_MS: Millis = 1_000;

/// How long to wait for other nodes after the start before the host gets the list of held parts.
const SETTLE_MS: Millis = 5_000;

/// Renews or releases a lease from this process, which must have one thread. `request` is
/// [`NodesRequest::of_lease`]. Calls [`Host::start`] when enough nodes have renewed it; if the host
/// then continues, keeps the lease until the host stops. Returns `None` if the host stopped.
///
/// # Errors
/// A system call failed.
pub fn on_lease(
    task: Task,
    handle: &LeaseHandle,
    request: &NodesRequest,
    host: &mut dyn Host,
) -> io::Result<Option<Ending>> {
    let node =
        |(part, node): (&LeasePart, &Node)| NodeState::unasked(part.id, node, request.ttl_ms);
    let nodes = handle.parts.iter().zip(&request.nodes).map(node).collect();
    let parts = handle.parts.iter().enumerate();
    let parts = parts.map(|(node, it)| Part { node, lease: it.lease, sent: None, asked: None });
    let (token, need) = (handle.token.map(Token), handle.need);
    let left = Checkpoint { token, need, parts: parts.collect() };
    Driver::new(request, nodes, None, Some((left, task))).run(host)
}

/// A coordinator with its connections.
pub(super) struct Driver<'a> {
    request: &'a NodesRequest,
    coordinator: Coordinator,
    /// The next inputs of the coordinator.
    inputs: VecDeque<Input>,
    nodes: Vec<NodeState>,
    kept: Option<Checkpoint>,
    wake_at: Option<Millis>,
    /// When the command could start, until the host knows that no further node is expected.
    unsettled_since: Option<Millis>,
    waits_reader: WaitsReader<'a>,
    /// The node of this machine's daemon, if it encloses the request.
    here: Option<NodeId>,
}

impl<'a> Driver<'a> {
    /// A coordinator of a new request, or of one that another coordinator began and `left`.
    /// `here` is the node of this machine's daemon, if it encloses the request.
    pub(super) fn new(
        request: &'a NodesRequest,
        nodes: Vec<NodeState>,
        here: Option<NodeId>,
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
        let unsettled_since = matches!(left, Some((_, Task::Run))).then_some(now);
        let coordinator = match left {
            Some((left, task)) => Coordinator::take_over(plan, &left, task, now),
            None => Coordinator::new(plan, now),
        };
        Self {
            request,
            coordinator,
            inputs: VecDeque::from([Input::Tick]),
            nodes,
            kept: None,
            wake_at: None,
            unsettled_since,
            waits_reader: WaitsReader::new(request),
            here,
        }
    }

    /// Runs until the request is over, or until the host stops; then it returns `None`.
    pub(super) fn run(&mut self, host: &mut dyn Host) -> io::Result<Option<Ending>> {
        loop {
            let now = boottime_ms();
            match host.turn(now) {
                Wish::GoOn => {}
                Wish::Stop => self.inputs.push_back(Input::Stop),
                Wish::Abandon => {
                    self.abandon();
                    self.inputs.push_back(Input::Stop);
                }
                Wish::Leave => return Ok(None),
            }
            if self.wake_at.is_some_and(|at| at <= now) {
                self.wake_at = None;
                self.inputs.push_back(Input::Tick);
            }
            while let Some(input) = self.inputs.pop_front() {
                let effects = self.coordinator.handle(input, boottime_ms());
                self.keep(host);
                for effect in effects {
                    if let ControlFlow::Break(end) = self.carry_out(effect, host) {
                        return Ok(end);
                    }
                }
            }
            self.settle(host);
            let NodesRequest { asked, under_frame, .. } = self.request;
            // Whether it is made within a run over nodes, or within a command that canal runs here.
            let is_nested = asked.under_run.is_some() || under_frame.is_some();
            let waits = match is_nested {
                true => self.coordinator.waits(),
                false => self.coordinator.holds_while_it_waits(),
            };
            self.inputs.extend(self.waits_reader.turn(waits, boottime_ms()));
            if let Some(nodes) = self.waits_reader.news.take() {
                host.say(News::Note(unread(&nodes)));
            }
            if !self.inputs.is_empty() {
                continue;
            }
            self.wait(host)?;
            for node in 0..self.nodes.len() {
                self.hear(node, host);
            }
        }
    }

    fn keep(&mut self, host: &mut dyn Host) {
        let checkpoint = self.coordinator.checkpoint();
        if self.kept.as_ref() != Some(&checkpoint) {
            let nodes = self.nodes.iter().map(|it| (it.member.node.address.clone(), it.id));
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
        let part = |part: &Part| self.nodes[part.node].part(part.lease, part.sent.is_some());
        host.settled(&parts.iter().map(part).collect::<Vec<_>>());
    }

    fn wait(&self, host: &dyn Host) -> io::Result<()> {
        let due = [self.wake_at, host.due(), self.waits_reader.wake_at].into_iter().flatten().min();
        let within_ms = due.map_or(Millis::MAX, |at| at.saturating_sub(boottime_ms()));
        let look_ms = if self.unsettled_since.is_some() { LOOK_MS } else { Millis::MAX };
        let members = self.nodes.iter().map(|node| &node.member).chain(self.waits_reader.members());
        sleep(members, host.polled(), within_ms.min(look_ms))
    }

    /// Carries out an effect. Breaks with the end of the request, or with `None` if the host
    /// continues without the driver.
    fn carry_out(&mut self, effect: Effect, host: &mut dyn Host) -> ControlFlow<Option<Ending>> {
        match effect {
            Effect::Node(node, call) => {
                if let Err(failure) = self.call(node, call) {
                    self.lose(node, failure, PartTrouble::Away);
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
                let names: Vec<&str> =
                    self.nodes.iter().map(|it| it.answer.name.as_str()).collect();
                news(&change, &names, self.request.purpose).into_iter().for_each(|it| host.say(it));
            }
            Effect::End(outcome) => {
                let is_deadlock = matches!(
                    &outcome,
                    Outcome::Refused { refusal: Refusal::Deadlock, node: None, .. }
                );
                let cycle = is_deadlock.then(|| self.waits_reader.cycle.clone());
                let (answers, cycle) = (self.answers(), cycle.unwrap_or_default());
                return ControlFlow::Break(Some(Ending { outcome, answers, cycle }));
            }
            Effect::WakeAt(at) => self.wake_at = Some(at),
        }
        ControlFlow::Continue(())
    }

    fn call(&mut self, node: usize, call: Call) -> Result<(), NodeFailure> {
        let (request, secret) = (self.request, self.request.secret);
        let NodeState { id, member, grants_from, lease: asked, .. } = &mut self.nodes[node];
        match call {
            Call::Connect | Call::Cancel => {
                // Earlier messages of the node no longer count.
                self.inputs.retain(|input| !matches!(input, Input::Node(of, _) if *of == node));
                let is_met = member.is_open() && !member.reached && *asked == 0;
                if call == Call::Connect && is_met {
                    // It was opened to find out its identity.
                    member.reached = true;
                    let left_ms = grants_from.map(|at| at.saturating_sub(boottime_ms()));
                    self.inputs.push_back(Input::Node(node, Event::Reached(left_ms)));
                    return Ok(());
                }
                member.close();
                if call == Call::Connect { member.open(&request.around) } else { Ok(()) }
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
                // A node has the note of a new request already; one about a lease asks for nothing.
                let note = request.asked.note.clone().filter(|_| request.asked.items.is_empty());
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

    /// The message that these nodes hold the lock.
    fn start(&self, token: Option<Token>, nodes: &[usize]) -> Start {
        let nodes = || nodes.iter().map(|node| &self.nodes[*node]);
        Start {
            token: token.map(|token| token.0),
            nodes: nodes().map(|node| node.answer.name.clone()).collect(),
            grant: nodes().next().and_then(|node| node.grant.clone()),
            need: self.coordinator.checkpoint().need,
            parts: nodes().map(|node| node.part(node.lease, true)).collect(),
        }
    }

    fn collect(&self, node: usize, asking: Asking) -> Collect {
        let NodeState { id, lease, .. } = self.nodes[node];
        let request = self.request;
        let Acquire { priority, max_waiting, under_run, .. } = request.asked;
        let under_frame = self.here.zip(request.under_frame);
        let under_frame = under_frame.map(|(node, frame)| FrameOfNode { node, frame });
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
            under_frame,
        }
    }

    /// Tells each node at which the request waits why it gives up its place.
    fn abandon(&mut self) {
        for node in &mut self.nodes {
            node.member.abandon(self.request.secret.tag(node.id, node.lease));
        }
    }

    fn lose(&mut self, node: usize, failure: NodeFailure, trouble: fn(String) -> PartTrouble) {
        let state = &mut self.nodes[node];
        state.member.close();
        state.answer.trouble = Some(trouble(failure.what.clone()));
        self.inputs.push_back(Input::Node(node, Event::Away(failure)));
    }

    fn hear(&mut self, node: usize, host: &mut dyn Host) {
        for heard in self.nodes[node].member.turn() {
            let event = match heard {
                Heard::Away(failure) => Err(failure),
                Heard::Identity(identity) => {
                    let checked = self.nodes[node].check(&self.request.around, &identity.known);
                    checked.map(|()| Event::Reached(identity.grants_from_ms))
                }
                Heard::Answer(answer) => {
                    if let Some(refused) = self.refused_part(&answer) {
                        return self.lose(node, refused, PartTrouble::Refused);
                    }
                    self.understand(node, answer, host)
                }
            };
            match event {
                Ok(event) => self.inputs.push_back(Input::Node(node, event)),
                Err(failure) => return self.lose(node, failure, PartTrouble::Away),
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
                host.say(News::Waits { name: state.answer.name.clone(), progress });
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
                state.answer.said = Some(PartSaid::Renewed(renewed));
                Event::Renewed { sent, ttl_ms }
            }
            (Kind::Release, Ok(reply)) => {
                state.answer.said = Some(PartSaid::Released(parameters(&reply)?));
                Event::Gone
            }
            // The part is lost.
            (Kind::Renew | Kind::Release, Err(failure)) => {
                // The answer to an earlier release of this command did not arrive.
                let was_ours = state.releases > 1 && failure.reason.as_deref() == Some("released");
                match state.answer.said {
                    Some(PartSaid::Released(_) | PartSaid::Lost(_)) => {}
                    _ if was_ours => state.answer.said = Some(PartSaid::Released(Box::default())),
                    _ => state.answer.said = Some(PartSaid::Lost(failure)),
                }
                Event::Gone
            }
            // Only other connections carry these questions.
            (Kind::Identify | Kind::WaitsNear | Kind::Leader, _) => return Err(unexpected()),
        })
    }

    fn answers(&self) -> Vec<PartAnswer> {
        self.nodes.iter().map(|node| node.answer.clone()).collect()
    }

    /// Lets each node that was asked show the state of the whole request.
    fn report(&mut self, Held { held, need }: Held, waits_for: &[usize]) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (need, held) = (number(need), number(held));
        let name = |node: &usize| self.nodes[*node].answer.name.clone();
        let waits_for: Vec<String> = waits_for.iter().map(name).collect();
        for state in self.nodes.iter_mut().filter(|it| it.member.reached && it.lease > 0) {
            let handle = self.request.secret.handle(state.id, state.lease);
            let waits_for = waits_for.clone();
            state.member.report(&Report { handle, need, held, waits_for });
        }
    }
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
