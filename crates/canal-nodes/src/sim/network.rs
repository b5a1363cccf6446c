//! Connections between coordinators and nodes. Messages arrive late, in order on each connection,
//! and in any order between two.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;

use super::table::{Asked, LeaseName};
use crate::{Millis, Refusal};
use canal_core::Token;

/// A message from the coordinator's side.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Collect(Asked),
    ConfirmAt {
        name: LeaseName,
        token: Token,
        ttl_ms: u64,
        sent: Millis,
    },
    Renew {
        name: LeaseName,
        sent: Millis,
    },
    Release {
        name: LeaseName,
    },
    /// The connection was closed.
    End,
}

/// A message from a node.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Queued,
    Granted(Token),
    Refused(Refusal),
    Confirmed {
        sent: Millis,
    },
    ConfirmFailed,
    TokenTaken(Token),
    Renewed {
        sent: Millis,
        ttl_ms: u64,
    },
    Gone,
    /// The connection was closed.
    End,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) host: usize,
    pub(super) node: usize,
    /// When it opens or is refused, while that is undecided.
    pub(super) opens_at: Option<u64>,
    to_node: VecDeque<(u64, Call)>,
    to_host: VecDeque<(u64, Reply)>,
    /// Whether the node still serves it.
    pub(super) is_served: bool,
    /// Whether the coordinator still reads it.
    pub(super) is_read: bool,
    /// When the coordinator's side gives up, if it is still cut.
    pub(super) breaks_at: Option<u64>,
    /// When the node last received a beat.
    pub(super) heard_at: u64,
    /// The leases that were requested over it.
    pub(super) asked: Vec<LeaseName>,
    /// The last of these, which the node knows while it serves the connection.
    pub(super) announced: Option<Asked>,
    /// How long the node serves it without a beat.
    pub(super) ttl_ms: u64,
}

/// The delay of messages between one host and one node, and until when none pass.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    slow_ms: u64,
    to_node_cut_until: u64,
    to_host_cut_until: u64,
}

/// All connections, by number.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) wires: BTreeMap<u64, Wire>,
    paths: BTreeMap<(usize, usize), Path>,
    last: u64,
}

impl Network {
    pub(super) fn new(rng: &mut Rng, (hosts, nodes): (usize, usize), has_slow_paths: bool) -> Self {
        let pairs = (0..hosts).flat_map(|host| (0..nodes).map(move |node| (host, node)));
        let path = |pair| {
            let is_slow = has_slow_paths && rng.u8(0..3) == 0;
            let slow_ms = if is_slow { rng.u64(100..3_000) } else { rng.u64(2..60) };
            (pair, Path { slow_ms, ..Path::default() })
        };
        Self { wires: BTreeMap::new(), paths: pairs.map(path).collect(), last: 0 }
    }

    pub(super) fn connect(
        &mut self,
        rng: &mut Rng,
        now: u64,
        (host, node): (usize, usize),
        ttl_ms: u64,
    ) -> u64 {
        let slow_ms = self.path(host, node).slow_ms;
        let opens_at = Some(now + rng.u64(1..=2 * slow_ms + 2));
        self.last += 1;
        let wire = Wire {
            host,
            node,
            opens_at,
            to_node: VecDeque::new(),
            to_host: VecDeque::new(),
            is_served: false,
            is_read: true,
            breaks_at: None,
            heard_at: now,
            asked: Vec::new(),
            announced: None,
            ttl_ms,
        };
        self.wires.insert(self.last, wire);
        self.last
    }

    fn path(&self, host: usize, node: usize) -> Path {
        self.paths.get(&(host, node)).copied().unwrap_or_default()
    }

    pub(super) fn is_cut(&self, now: u64, host: usize, node: usize) -> bool {
        let path = self.path(host, node);
        now < path.to_node_cut_until.max(path.to_host_cut_until)
    }

    /// Whether a beat gets through.
    pub(super) fn passes_to_node(&self, now: u64, host: usize, node: usize) -> bool {
        now >= self.path(host, node).to_node_cut_until
    }

    /// Blocks all messages for a while, in both directions or in one.
    pub(super) fn cut(&mut self, rng: &mut Rng, now: u64, pair: (usize, usize), until: u64) {
        let Some(path) = self.paths.get_mut(&pair) else { return };
        let ways = rng.u8(0..4);
        if ways != 1 {
            path.to_node_cut_until = path.to_node_cut_until.max(until);
        }
        if ways != 2 {
            path.to_host_cut_until = path.to_host_cut_until.max(until);
        }
        for wire in self.wires.values_mut().filter(|wire| (wire.host, wire.node) == pair) {
            wire.breaks_at = Some(now + rng.u64(2_000..20_000));
        }
    }

    pub(super) fn heal(&mut self) {
        for path in self.paths.values_mut() {
            *path = Path { slow_ms: path.slow_ms.min(100), ..Path::default() };
        }
    }

    pub(super) fn call(&mut self, rng: &mut Rng, now: u64, id: u64, call: Call) {
        let Some(wire) = self.wires.get(&id) else { return };
        let slow_ms = self.path(wire.host, wire.node).slow_ms;
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let at = now + rng.u64(1..=slow_ms);
        let at = wire.to_node.back().map_or(at, |(last, _)| at.max(*last));
        wire.to_node.push_back((at, call));
    }

    pub(super) fn reply(&mut self, rng: &mut Rng, now: u64, id: u64, reply: Reply) {
        let Some(wire) = self.wires.get(&id) else { return };
        let slow_ms = self.path(wire.host, wire.node).slow_ms;
        let Some(wire) = self.wires.get_mut(&id).filter(|wire| wire.is_read) else { return };
        let at = now + rng.u64(1..=slow_ms);
        let at = wire.to_host.back().map_or(at, |(last, _)| at.max(*last));
        wire.to_host.push_back((at, reply));
    }

    /// Closes a connection from the coordinator's side. Messages that it sent may still arrive,
    /// much later.
    pub(super) fn close(&mut self, rng: &mut Rng, now: u64, id: u64) {
        self.call(rng, now, id, Call::End);
        let Some(wire) = self.wires.get_mut(&id) else { return };
        wire.is_read = false;
        wire.to_host.clear();
        if wire.opens_at.take().is_some() {
            self.wires.remove(&id);
        } else if rng.u8(0..4) == 0 {
            let late_ms = rng.u64(0..20_000);
            wire.to_node.iter_mut().for_each(|(at, _)| *at += late_ms);
        }
    }

    /// Whether a request depends on a newer connection than this one.
    pub(super) fn is_of_newer(&self, id: u64, name: LeaseName) -> bool {
        let node = self.wires.get(&id).map(|wire| wire.node);
        let mut newer = self.wires.range(id + 1..);
        newer.any(|(_, wire)| Some(wire.node) == node && wire.asked.contains(&name))
    }

    /// Makes a request depend on this connection, unless it depends on a newer one. Returns whether
    /// it does.
    pub(super) fn takes_over(&mut self, id: u64, name: LeaseName) -> bool {
        let Some(node) = self.wires.get(&id).map(|wire| wire.node) else { return false };
        let others = self.wires.iter_mut().filter(|(_, wire)| wire.node == node);
        for (other, wire) in others {
            if *other > id && wire.asked.contains(&name) {
                return false;
            }
            wire.asked.retain(|asked| *asked != name);
        }
        self.wires.get_mut(&id).into_iter().for_each(|wire| wire.asked.push(name));
        true
    }

    /// Stops serving all connections of a node.
    pub(super) fn drop_node(&mut self, rng: &mut Rng, now: u64, node: usize) {
        let of_node = |(id, wire): (&u64, &Wire)| {
            (wire.node == node && wire.opens_at.is_none()).then_some(*id)
        };
        let ids: Vec<u64> = self.wires.iter().filter_map(of_node).collect();
        ids.into_iter().for_each(|id| self.end_serving(rng, now, id));
    }

    /// A node ends a connection.
    pub(super) fn end_serving(&mut self, rng: &mut Rng, now: u64, id: u64) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        wire.is_served = false;
        wire.to_node.clear();
        wire.asked.clear();
        wire.announced = None;
        self.reply(rng, now, id, Reply::End);
    }

    pub(super) fn next_at(&self) -> u64 {
        let of_wire = |wire: &Wire| {
            let path = self.path(wire.host, wire.node);
            let to_node = wire.to_node.front().map(|(at, _)| (*at).max(path.to_node_cut_until));
            let to_host = wire.to_host.front().map(|(at, _)| (*at).max(path.to_host_cut_until));
            [to_node, to_host, wire.opens_at, wire.breaks_at].into_iter().flatten().min()
        };
        self.wires.values().filter_map(of_wire).min().unwrap_or(u64::MAX)
    }

    /// The next call that has arrived at a node.
    pub(super) fn arrived(&mut self, now: u64, id: u64) -> Option<Call> {
        let wire = self.wires.get(&id)?;
        let path = self.path(wire.host, wire.node);
        let wire = self.wires.get_mut(&id)?;
        let is_here = wire.to_node.front().is_some_and(|(at, _)| *at <= now);
        if !is_here || now < path.to_node_cut_until {
            return None;
        }
        wire.to_node.pop_front().map(|(_, call)| call)
    }

    /// The next reply that has arrived at a host.
    pub(super) fn answered(&mut self, now: u64, id: u64) -> Option<Reply> {
        let wire = self.wires.get(&id)?;
        let path = self.path(wire.host, wire.node);
        let wire = self.wires.get_mut(&id)?;
        let is_here = wire.to_host.front().is_some_and(|(at, _)| *at <= now);
        if !is_here || now < path.to_host_cut_until {
            return None;
        }
        wire.to_host.pop_front().map(|(_, reply)| reply)
    }

    /// Forgets the connections that neither side still has.
    pub(super) fn sweep(&mut self) {
        self.wires.retain(|_, wire| wire.opens_at.is_some() || wire.is_read || wire.is_served);
    }
}
