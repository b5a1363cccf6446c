//! Nodes, hosts and the network between them, and the time of events.

use fastrand::Rng;

use super::clock::Clock;
use super::draw::FaultProfile;
use super::host::{Command, Ends, Host};
use super::network::{Call, Network, Reply};
use super::node::{LONGEST_TTL_MS, Node, Restart};
use super::rule::{Rule, is_broken};
use super::starts::Starts;
use super::table::{Asked, LeaseName, Told};
use crate::{Asking, Effect, Event, Input, Plan, Refusal};
use canal_core::{LEASE_OVER_NODES_MS_MIN, Token};
use canal_protocol::NodeFailure;
use canal_sys::deadline_page::Deadline;

/// The longest time to kill a command, as a part of its TTL: well within the margin.
const KILL_PART: u64 = 25;

/// The longest time until everything has finished after the last fault.
const CALM_MS: u64 = 3_600_000;

/// How often bridges check whether their coordinator sent something.
pub(super) const BEAT_MS: u64 = 1_000;

/// The events of a run, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) starts: u64,
    pub(super) ends: Ends,
    pub(super) takeovers: u64,
    pub(super) spares: u64,
    pub(super) blank: u64,
}

/// The whole simulation.
#[derive(Debug)]
pub(super) struct World {
    rng: Rng,
    pub(super) now: u64,
    pub(super) profile: FaultProfile,
    pub(super) nodes: Vec<Node>,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    next_run: u32,
    next_fault: u64,
    next_beat: u64,
    is_troubled: bool,
    starts: Starts,
    pub(super) seen: Seen,
    /// The latest events, for a failure.
    trace: Vec<String>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let profile = FaultProfile::draw(&mut rng);
        Self::with(rng, profile)
    }

    pub(super) fn with(mut rng: Rng, profile: FaultProfile) -> Self {
        let nodes = (0..profile.nodes).map(|_| Node::draw(&mut rng)).collect();
        let hosts = (0..profile.hosts).map(|_| Host {
            clock: Clock::draw(&mut rng),
            jobs_left: profile.jobs,
            job: None,
            rests_until: rng.u64(0..1_000),
        });
        let hosts = hosts.collect();
        let size = (profile.hosts, profile.nodes);
        let network = Network::new(&mut rng, size, profile.has_slow_paths);
        let (is_troubled, next_fault) = (profile.faults_ms > 0, profile.faults_ms);
        let mut world = Self {
            rng,
            now: 0,
            profile,
            nodes,
            hosts,
            network,
            next_run: 1,
            next_fault,
            next_beat: BEAT_MS,
            is_troubled,
            starts: Starts::default(),
            seen: Seen::default(),
            trace: Vec::new(),
        };
        if let Some(off) = world.profile.is_off {
            world.nodes[off].down_until = u64::MAX;
        }
        world
    }

    /// Runs to the end. The error describes the failure and the events before it.
    pub(super) fn run(mut self) -> Result<Seen, String> {
        match self.run_on() {
            Ok(()) => Ok(self.seen),
            Err(what) => {
                let last = self.trace.len().saturating_sub(60);
                let trace = self.trace[last..].join("\n  ");
                Err(format!("at {} ms: {what}\n{:?}\n  {trace}", self.now, self.profile))
            }
        }
    }

    fn run_on(&mut self) -> Result<(), String> {
        while self.now < self.profile.troubled_ms && !self.is_over() {
            self.step()?;
        }
        self.mend();
        if self.profile.is_off.is_some() {
            self.run_until(|world| world.is_over_for_the_able(), "with a node that is off")?;
            let off = self.profile.is_off.take();
            off.into_iter().for_each(|off| self.nodes[off].down_until = self.now);
        }
        self.run_until(Self::is_over, "although all is well")?;
        let all_up = self.nodes.iter().map(|node| node.down_until).fold(self.now, u64::max);
        let until = all_up + 2 * LONGEST_TTL_MS + 30_000;
        while self.now < until {
            self.step()?;
        }
        self.check_nothing_left()
    }

    fn run_until(&mut self, is_over: impl Fn(&Self) -> bool, when: &str) -> Result<(), String> {
        let until = self.now + CALM_MS;
        while !is_over(self) {
            self.step()?;
            if self.now > until {
                let jobs: Vec<_> = self.hosts.iter().filter_map(|host| host.job.as_ref()).collect();
                let locks: Vec<_> = self.nodes.iter().map(|node| &node.locks).collect();
                return Err(format!("stuck {when}: {jobs:#?} {locks:#?}"));
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.job.is_none() && host.jobs_left == 0)
    }

    /// Whether all requests that do not need the absent node have finished.
    fn is_over_for_the_able(&self) -> bool {
        let Some(off) = self.profile.is_off else { return self.is_over() };
        self.hosts.iter().all(|host| match &host.job {
            Some(job) => {
                let alive = job.at.iter().filter(|at| **at != off).count();
                let need = match job.plan.require.counts_the_alive() {
                    true => 1,
                    false => job.plan.require.least(job.at.len()),
                };
                alive < need
            }
            None => host.jobs_left == 0,
        })
    }

    /// Ends all faults.
    fn mend(&mut self) {
        self.is_troubled = false;
        self.network.heal();
        for host in &mut self.hosts {
            if let Some(process) = host.job.as_mut().and_then(|job| job.process.as_mut()) {
                process.stopped_until = process.stopped_until.min(self.now);
                process.dies_after = None;
            }
        }
    }

    fn note(&mut self, what: String) {
        if self.trace.len() > 4_000 {
            self.trace.drain(..2_000);
        }
        self.trace.push(format!("{} {what}", self.now));
    }

    /// Advances to the time of the next event, and lets it happen.
    fn step(&mut self) -> Result<(), String> {
        let nodes = self.nodes.iter().map(Node::next_at);
        let hosts = self.hosts.iter().map(|host| match &host.job {
            Some(job) => job.next_at(host.clock),
            None if host.jobs_left > 0 => host.rests_until,
            None => u64::MAX,
        });
        let fault = if self.is_troubled { self.next_fault } else { u64::MAX };
        let next = nodes.chain(hosts).chain([self.network.next_at(), fault, self.next_beat]).min();
        self.now = self.now.max(next.unwrap_or(self.now));
        if self.is_troubled && self.now >= self.next_fault {
            self.next_fault = self.now + self.rng.u64(1..2 * self.profile.faults_ms);
            self.fault();
        }
        if self.now >= self.next_beat {
            self.next_beat = self.now + BEAT_MS;
            self.beat();
        }
        for at in 0..self.nodes.len() {
            let told = self.nodes[at].step(self.now);
            self.tell(at, told);
        }
        self.carry_messages();
        for at in 0..self.hosts.len() {
            self.step_host(at)?;
        }
        self.network.sweep();
        self.check_overlap()?;
        self.check_kept()?;
        self.check_lists()?;
        self.check_own_requests()?;
        self.check_unconfirmed()?;
        self.check_apart()
    }

    // The network.

    fn carry_messages(&mut self) {
        let ids: Vec<u64> = self.network.wires.keys().copied().collect();
        for id in ids {
            self.open(id);
            self.break_wire(id);
            while let Some(call) = self.network.arrived(self.now, id) {
                self.serve(id, call);
            }
            while let Some(reply) = self.network.answered(self.now, id) {
                self.take_reply(id, reply);
            }
        }
    }

    /// Decides whether a connection that is being opened is open or refused.
    fn open(&mut self, id: u64) {
        let Some(wire) = self.network.wires.get_mut(&id) else { return };
        if wire.opens_at.is_none_or(|at| at > self.now) {
            return;
        }
        wire.opens_at = None;
        let (host, node) = (wire.host, wire.node);
        let is_up = self.nodes[node].is_up(self.now) && !self.network.is_cut(self.now, host, node);
        let Some(wire) = self.network.wires.get_mut(&id) else { return };
        wire.is_served = is_up;
        wire.heard_at = self.now;
        match is_up {
            true => {
                let grants_in_ms = self.nodes[node].grants_in_ms(self.now);
                self.hand_on(id, Event::Reached(grants_in_ms));
            }
            false => self.lose(id),
        }
    }

    /// The coordinator's side gives up a connection that has been cut for long.
    fn break_wire(&mut self, id: u64) {
        let Some(wire) = self.network.wires.get_mut(&id) else { return };
        if wire.breaks_at.take_if(|at| *at <= self.now).is_none() || !wire.is_read {
            return;
        }
        let (host, node) = (wire.host, wire.node);
        if self.network.is_cut(self.now, host, node) {
            self.lose(id);
        }
    }

    /// The coordinator learns that its connection is broken.
    fn lose(&mut self, id: u64) {
        self.hand_on(id, Event::Away(NodeFailure::passing("cut")));
        self.network.close(&mut self.rng, self.now, id);
        let Some(wire) = self.network.wires.get(&id) else { return };
        let at = wire.host;
        if let Some(job) = &mut self.hosts[at].job {
            job.wires.iter_mut().filter(|wire| **wire == Some(id)).for_each(|wire| *wire = None);
        }
    }

    /// Passes an input about a connection to a coordinator, if it is still the node's connection.
    fn hand_on(&mut self, id: u64, event: Event) {
        let Some(wire) = self.network.wires.get(&id) else { return };
        let at = wire.host;
        let Some(job) = &mut self.hosts[at].job else { return };
        if let Some(node) = job.wires.iter().position(|wire| *wire == Some(id)) {
            job.tell(Input::Node(node, event));
        }
    }

    fn take_reply(&mut self, id: u64, reply: Reply) {
        match reply {
            Reply::End => self.lose(id),
            Reply::Queued => self.hand_on(id, Event::Queued),
            Reply::Granted(token) => self.hand_on(id, Event::Granted(token)),
            Reply::Refused(refusal) => {
                self.hand_on(id, Event::Refused(refusal, NodeFailure::passing("")));
            }
            Reply::Confirmed { sent } => self.hand_on(id, Event::Confirmed(sent)),
            Reply::ConfirmFailed => self.hand_on(id, Event::ConfirmFailed),
            Reply::TokenTaken(least) => {
                self.hand_on(id, Event::TokenTaken(least));
            }
            Reply::Renewed { sent, ttl_ms } => {
                self.hand_on(id, Event::Renewed { sent, ttl_ms: Some(ttl_ms) });
            }
            Reply::Gone => self.hand_on(id, Event::Gone),
        }
    }

    /// Bridges receive beats from their coordinators; a bridge without one for a TTL ends.
    fn beat(&mut self) {
        let ids: Vec<u64> = self.network.wires.keys().copied().collect();
        for id in ids {
            let Some(wire) = self.network.wires.get(&id).filter(|wire| wire.is_served) else {
                continue;
            };
            let (host, node) = (wire.host, wire.node);
            let process = self.hosts[host].job.as_ref().and_then(|job| job.process.as_ref());
            let beats = process.is_some_and(|process| self.now >= process.stopped_until);
            let passes = self.network.passes_to_node(self.now, host, node);
            let is_heard = wire.is_read && beats && passes;
            let is_silent = self.now > wire.heard_at + wire.ttl_ms;
            if is_heard && let Some(wire) = self.network.wires.get_mut(&id) {
                wire.heard_at = self.now;
            } else if is_silent && !is_broken(Rule::SilentPartsEnd) {
                self.end_serving(id);
            }
        }
    }

    // Nodes.

    /// A node stops serving a connection.
    fn end_serving(&mut self, id: u64) {
        let Some(wire) = self.network.wires.get(&id) else { return };
        let (node, asked) = (wire.node, wire.asked.clone());
        self.network.end_serving(&mut self.rng, self.now, id);
        for name in asked {
            let told = self.nodes[node].locks.disconnect(name);
            self.tell(node, told);
        }
    }

    fn serve(&mut self, id: u64, call: Call) {
        let differs =
            matches!(&call, Call::Collect(asked) if self.is_announced_otherwise(id, asked));
        let Some(wire) = self.network.wires.get_mut(&id) else { return };
        let at = wire.node;
        if !wire.is_served {
            return;
        }
        self.trace.push(format!("{} node {at} hears {call:?} over {id}", self.now));
        let node = &mut self.nodes[at];
        let (reply, told) = match call {
            Call::Collect(asked) if differs => {
                wire.asked.push(asked.name);
                (None, vec![Told::Refused(asked.name, Refusal::OtherList)])
            }
            Call::Collect(asked) => {
                // Late messages of an older connection do not take it from a newer one.
                if !self.network.takes_over(id, asked.name) {
                    return;
                }
                let Some(wire) = self.network.wires.get_mut(&id) else { return };
                wire.announced = Some(asked.clone());
                (None, node.ask(self.now, asked))
            }
            Call::ConfirmAt { name, token, ttl_ms, sent } => {
                let confirmed = node.confirm_at(self.now, name, token, ttl_ms);
                self.seen.spares += u64::from(confirmed.is_ok() && node.locks.is_spare(name));
                let reply = match confirmed {
                    Ok(()) => Reply::Confirmed { sent },
                    Err(Some(least)) => Reply::TokenTaken(least),
                    Err(None) => Reply::ConfirmFailed,
                };
                (Some(reply), Vec::new())
            }
            Call::Renew { name, sent } => {
                let renewed = node.renew(self.now, name, 0);
                let reply = renewed.map_or(Reply::Gone, |ttl_ms| Reply::Renewed { sent, ttl_ms });
                (Some(reply), Vec::new())
            }
            // The same applies to a late release, which would give up the place of the newer
            // connection.
            Call::Release { name }
                if !node.locks.holds_firmly(name) && self.network.is_of_newer(id, name) =>
            {
                (Some(Reply::Gone), Vec::new())
            }
            Call::Release { name } => (Some(Reply::Gone), node.release(name)),
            Call::End => return self.end_serving(id),
        };
        if let Some(reply) = reply {
            self.network.reply(&mut self.rng, self.now, id, reply);
        }
        self.tell(at, told);
    }

    /// Whether a node knows another connection's request over a list that need not meet this one's.
    fn is_announced_otherwise(&self, id: u64, asked: &Asked) -> bool {
        let node = self.network.wires.get(&id).map(|wire| wire.node);
        let others = self.network.wires.iter().filter(|(other, _)| **other != id);
        let others = others.filter(|(_, wire)| Some(wire.node) == node && wire.is_served);
        let mut known = others.filter_map(|(_, wire)| wire.announced.as_ref());
        !is_broken(Rule::ListsMeet)
            && known.any(|other| other.key == asked.key && !other.agrees_with(asked))
    }

    /// A node sends the outcomes of requests.
    fn tell(&mut self, node: usize, told: Vec<Told>) {
        for told in told {
            let (name, reply) = match told {
                Told::Queued(name) => (name, Reply::Queued),
                Told::Granted(name, token) => (name, Reply::Granted(token)),
                Told::Refused(name, refusal) => (name, Reply::Refused(refusal)),
            };
            let asked_here = |wire: &super::network::Wire| {
                wire.node == node && wire.is_served && wire.asked.contains(&name)
            };
            let wire = self.network.wires.iter().find(|(_, wire)| asked_here(wire));
            if let Some(id) = wire.map(|(id, _)| *id) {
                self.network.reply(&mut self.rng, self.now, id, reply);
            }
        }
    }

    // Hosts.

    fn step_host(&mut self, at: usize) -> Result<(), String> {
        let host = &mut self.hosts[at];
        if host.job.is_none() && host.jobs_left > 0 && self.now >= host.rests_until {
            host.jobs_left -= 1;
            let shown = host.clock.at(self.now);
            let mut job = self.profile.draw_job(&mut self.rng, self.next_run, shown);
            self.next_run += 1;
            job.begin_coordinator(shown);
            let what =
                format!("host {at} begins run {}: {:?} over {:?}", job.run, job.plan, job.at);
            self.hosts[at].job = Some(job);
            self.note(what);
        }
        self.end_command(at);
        let clock = self.hosts[at].clock;
        let shown = clock.at(self.now);
        if let Some(job) = &mut self.hosts[at].job
            && job.process.is_none()
            && self.now >= job.restarts_at
        {
            self.seen.takeovers += 1;
            job.begin_coordinator(shown);
        }
        while let Some(job) = &mut self.hosts[at].job
            && let Some(input) = job.next_input(self.now, clock)
        {
            let run = job.run;
            let heard = format!("run {run} hears {input:?}");
            let effects = job.hear(input, shown);
            self.note(heard);
            self.carry_out(at, effects)?;
        }
        Ok(())
    }

    /// Ends a command that is over, that is being killed, or whose deadline has come.
    fn end_command(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let shown = host.clock.at(self.now);
        let Some(job) = &mut host.job else { return };
        let Some(command) = &mut job.command else { return };
        if command.dies_at.is_none() && shown >= command.page.kill_at {
            let longest_ms = self.profile.ttl_ms / KILL_PART;
            command.dies_at = Some(self.now + self.rng.u64(0..longest_ms));
        }
        let is_over =
            self.now >= command.ends_at || command.dies_at.is_some_and(|at| self.now >= at);
        if is_over {
            job.command = None;
            job.is_done = true;
            job.tell(Input::Stop);
            let run = job.run;
            self.note(format!("the command of run {run} has ended"));
        }
    }

    fn carry_out(&mut self, at: usize, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            let Some(job) = &mut self.hosts[at].job else { return Ok(()) };
            let Some(process) = &mut job.process else { return Ok(()) };
            if let Some(left) = &mut process.dies_after {
                if *left == 0 {
                    self.kill_coordinator(at);
                    return Ok(());
                }
                *left -= 1;
            }
            if !matches!(effect, Effect::WakeAt(_)) {
                let what = format!("run {} does {effect:?}", job.run);
                self.note(what);
            }
            self.carry_out_one(at, effect)?;
        }
        Ok(())
    }

    fn carry_out_one(&mut self, at: usize, effect: Effect) -> Result<(), String> {
        let shown = self.hosts[at].clock.at(self.now);
        let Some(job) = &mut self.hosts[at].job else { return Ok(()) };
        let ttl_ms = job.plan.ttl_ms;
        match effect {
            Effect::Node(node, crate::Call::Connect) => {
                let pair = (at, job.at[node]);
                let old = job.wires[node].take();
                let new = self.network.connect(&mut self.rng, self.now, pair, ttl_ms);
                job.wires[node] = Some(new);
                old.into_iter().for_each(|old| self.network.close(&mut self.rng, self.now, old));
            }
            Effect::Node(node, crate::Call::Ask(lease, Asking { no_wait, spare })) => {
                let Plan { wait_ms, asked_at, .. } = job.plan;
                let is_late = |wait_ms| wait_ms > 0 && shown >= asked_at + wait_ms;
                if job.command.is_none() && !job.is_done && wait_ms.is_some_and(is_late) {
                    return Err(format!("run {} asks after its time to wait", job.run));
                }
                let mut over = job.over.clone();
                over.spare = spare;
                let asked =
                    Asked { name: job.lease(lease), key: job.key, over: Some(over), no_wait };
                self.call(at, node, Call::Collect(asked));
            }
            Effect::Node(node, crate::Call::Cancel) => {
                if let Some(old) = job.wires[node].take() {
                    self.network.close(&mut self.rng, self.now, old);
                }
            }
            Effect::Node(node, crate::Call::ConfirmAt(lease, token)) => {
                let name = job.lease(lease);
                self.call(at, node, Call::ConfirmAt { name, token, ttl_ms, sent: shown });
            }
            Effect::Node(node, crate::Call::Renew(lease)) => {
                let name = job.lease(lease);
                self.call(at, node, Call::Renew { name, sent: shown });
            }
            Effect::Node(node, crate::Call::Release(lease)) => {
                let name = job.lease(lease);
                self.call(at, node, Call::Release { name });
            }
            Effect::Start { token, nodes, deadline } => self.start(at, token, &nodes, deadline)?,
            Effect::Deadline(deadline) => {
                if let Some(command) = &mut job.command {
                    command.page = deadline;
                }
            }
            Effect::KillNow => {
                if let Some(command) = &mut job.command {
                    let longest_ms = ttl_ms / KILL_PART;
                    let dies_at = self.now + self.rng.u64(0..longest_ms);
                    command.dies_at.get_or_insert(dies_at);
                }
            }
            Effect::WakeAt(wake_at) => {
                if let Some(process) = &mut job.process {
                    process.wake_at = Some(wake_at);
                }
            }
            Effect::Say(_) => {}
            Effect::End(outcome) => {
                if job.command.is_some() {
                    return Err(format!("run {} ends before its command", job.run));
                }
                self.seen.ends.count(&outcome);
                self.close_all(at);
                let host = &mut self.hosts[at];
                host.job = None;
                host.rests_until = self.now + self.rng.u64(0..3_000);
            }
        }
        Ok(())
    }

    fn call(&mut self, at: usize, node: usize, call: Call) {
        let wire = self.hosts[at].job.as_ref().and_then(|job| job.wires[node]);
        if let Some(id) = wire {
            self.network.call(&mut self.rng, self.now, id, call);
        }
    }

    /// The process that stays by the command starts it, unless it is too late.
    fn start(
        &mut self,
        at: usize,
        token: Option<Token>,
        nodes: &[usize],
        deadline: Deadline,
    ) -> Result<(), String> {
        let now = self.now;
        let shown = self.hosts[at].clock.at(now);
        let Some(job) = &mut self.hosts[at].job else { return Ok(()) };
        if job.is_done || job.command.is_some() {
            return Err(format!("run {} starts twice", job.run));
        }
        if shown >= deadline.term_at {
            return Err(format!("run {} is to start after its deadline", job.run));
        }
        let nodes: Vec<usize> = nodes.iter().map(|node| job.at[*node]).collect();
        let ends_at = now + job.runs_ms;
        job.command = Some(Command { nodes, page: deadline, ends_at, dies_at: None });
        self.seen.starts += 1;
        match token {
            Some(token) => self.starts.note(job, token),
            None => Ok(()),
        }
    }

    fn close_all(&mut self, at: usize) {
        let Some(job) = &mut self.hosts[at].job else { return };
        let wires: Vec<u64> = job.wires.iter_mut().filter_map(Option::take).collect();
        wires.into_iter().for_each(|id| self.network.close(&mut self.rng, self.now, id));
    }

    /// Kills the coordinator and closes its connections.
    fn kill_coordinator(&mut self, at: usize) {
        self.close_all(at);
        let restarts_at = self.now + self.rng.u64(0..3_000);
        let Some(job) = &mut self.hosts[at].job else { return };
        job.process = None;
        job.restarts_at = restarts_at;
        let run = job.run;
        self.note(format!("the coordinator of run {run} is killed"));
    }

    // Faults.

    fn fault(&mut self) {
        let host = self.rng.usize(0..self.hosts.len());
        let node = self.rng.usize(0..self.nodes.len());
        let lasts_ms = self.rng.u64(1..=self.profile.lasts_ms);
        let until = self.now + lasts_ms;
        if self.rng.u8(0..10) < self.profile.own_jobs {
            let name = LeaseName { run: 0, lease: self.rng.u32(..) };
            let key = self.rng.u8(0..self.profile.keys);
            let is_up = self.nodes[node].is_up(self.now);
            if is_up {
                let told = self.nodes[node].begin_job(name, key, until);
                self.tell(node, told);
            }
        }
        let weights = self.profile.weights;
        let mut drawn = self.rng.u32(0..weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        match kind {
            Some(0) => {
                // One host may be cut off from all nodes, and one node from all hosts.
                let (all_hosts, all_nodes) = (self.rng.u8(0..4) == 0, self.rng.u8(0..4) == 0);
                for a_host in 0..self.hosts.len() {
                    for a_node in 0..self.nodes.len() {
                        if (all_hosts || a_host == host) && (all_nodes || a_node == node) {
                            self.network.cut(&mut self.rng, self.now, (a_host, a_node), until);
                        }
                    }
                }
                self.note(format!("cut: host {host} and node {node} until {until}"));
            }
            Some(1) => {
                let wire = self.hosts[host].job.as_ref().and_then(|job| {
                    let at = job.at.iter().position(|at| *at == node)?;
                    job.wires[at]
                });
                wire.into_iter().for_each(|id| self.lose(id));
            }
            Some(2) => {
                let process = self.hosts[host].job.as_mut().and_then(|job| job.process.as_mut());
                if let Some(process) = process {
                    process.stopped_until = until;
                    self.note(format!("the coordinator of host {host} stands still until {until}"));
                }
            }
            Some(3) => {
                let after = self.rng.u32(0..12);
                let process = self.hosts[host].job.as_mut().and_then(|job| job.process.as_mut());
                if let Some(process) = process {
                    process.dies_after = Some(after);
                }
            }
            Some(4) => self.restart(node, self.now + lasts_ms.min(3_000), Restart::Daemon),
            Some(5) => self.restart(node, until, Restart::Machine),
            Some(7) => self.break_by_force(node),
            Some(8) => self.renew_for_another(node),
            _ => {
                // Only one node at a time: if two nodes have lost their state, no rule can protect
                // their locks.
                let waits = self.nodes.iter().any(|node| node.has_lost(self.now));
                if !waits {
                    self.seen.blank += 1;
                    self.restart(node, until, Restart::Blank);
                }
            }
        }
    }

    /// An operator ends an unconfirmed grant.
    fn break_by_force(&mut self, at: usize) {
        if !self.nodes[at].is_up(self.now) {
            return;
        }
        if let Some(name) = self.nodes[at].locks.collecting() {
            self.note(format!("{name:?} is broken by force on node {at}"));
            let told = self.nodes[at].release(name);
            self.tell(at, told);
        }
    }

    /// Another party that has the handle of a lease renews it with its own TTL.
    fn renew_for_another(&mut self, at: usize) {
        let leases: Vec<LeaseName> = self.nodes[at].leases().collect();
        if leases.is_empty() || !self.nodes[at].is_up(self.now) {
            return;
        }
        let name = leases[self.rng.usize(0..leases.len())];
        let ttl_ms = self.rng.u64(LEASE_OVER_NODES_MS_MIN..=LONGEST_TTL_MS);
        self.note(format!("another party renews {name:?} on node {at} for {ttl_ms} ms"));
        self.nodes[at].renew(self.now, name, ttl_ms);
    }

    fn restart(&mut self, node: usize, until: u64, how: Restart) {
        if self.profile.is_off == Some(node) {
            return;
        }
        self.note(format!("node {node} restarts until {until}: {how:?}"));
        self.network.drop_node(&mut self.rng, self.now, node);
        self.nodes[node].restart(&mut self.rng, until, how);
    }
}
