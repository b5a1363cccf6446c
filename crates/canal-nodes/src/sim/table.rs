//! The locks of one node: the real table, with short words for the daemon's use of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rule::{Rule, is_broken};
use crate::Refusal;
use canal_core::{
    Ask, Change, Command, ENTRY_VERSION, Entry, HostId, Item, Key, LeaseId, NodeId, OnLost,
    Outcome, OverNodes, Owner, ProcessId, Refusal as Why, Release, Request, RequestId, Require,
    Revision, Table, Tag, Token, UnixMillis, View, Wait,
};

/// A lease: the request over nodes, and the number of the attempt. A job of the node itself has a
/// number as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaseName {
    pub(super) run: u32,
    pub(super) lease: u32,
}

/// One part of a request over nodes, or a job of the node itself.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) name: LeaseName,
    pub(super) key: u8,
    /// `None`: a job of the node itself.
    pub(super) over: Option<OverNodes>,
    pub(super) no_wait: bool,
}

/// The outcome of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Queued(LeaseName),
    Granted(LeaseName, Token),
    Refused(LeaseName, Refusal),
}

/// The locks of one node. Each key has one slot.
#[derive(Clone, Debug)]
pub(super) struct Locks {
    table: Table,
    /// The requests that hold or wait.
    known: BTreeMap<RequestId, Asked>,
}

impl Asked {
    fn is_spare(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.spare)
    }

    /// Whether one node may know both requests for a key.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let (Some(one), Some(other)) = (&self.over, &other.over) else { return true };
        let is_any = |over: &OverNodes| over.require == Require::Any;
        is_any(one) || is_any(other) || one.always_meets(other)
    }

    fn request(&self) -> Request {
        let LeaseName { run, lease } = self.name;
        let number = u128::from(run) << 32 | u128::from(lease);
        let process = ProcessId { pid: lease, started: 1, inode: 0 };
        let is_part = self.over.is_some();
        let may_wait = !self.no_wait && !self.is_spare();
        Request {
            tag: Tag(number),
            host: HostId(0),
            owner: match is_part {
                true => Owner::Lease(LeaseId(number)),
                false => Owner::Process(process),
            },
            parent: None,
            uid: 1000,
            command: Command(format!("run {run}")),
            note: None,
            items: vec![Item {
                key: Key::new(&format!("key{}", self.key)).unwrap(),
                ask: Ask::slots(1, Some(View::ONE)),
            }],
            wait: if may_wait { Wait::Yes { until: None } } else { Wait::No },
            priority: 0,
            max_waiting: None,
            supersede: None,
            provisional: is_part,
            children: false,
            ttl_ms: is_part.then_some(60_000),
            on_lost: OnLost::default(),
            asker: None,
            max_run_ms: None,
            over_nodes: self.over.clone().map(|over| Box::new(as_told(over))),
            above: None,
        }
    }
}

/// A request over nodes as the table gets it: with the rule broken, one list for all.
fn as_told(over: OverNodes) -> OverNodes {
    match is_broken(Rule::ListsMeet) && over.require != Require::Any {
        true => OverNodes { nodes: vec![NodeId(0)], require: Require::All, ..over },
        false => over,
    }
}

impl Locks {
    pub(super) fn new(next_token: Token) -> Self {
        let mut new = Self { table: Table::default(), known: BTreeMap::new() };
        new.apply(Change::Floor { token: next_token });
        new
    }

    /// Applies a change, and returns the outcomes for requests.
    fn apply(&mut self, change: Change) -> Vec<Outcome> {
        let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
        let mut outcomes = Vec::new();
        self.table.apply(Revision(self.table.revision().0 + 1), &entry, &mut outcomes);
        outcomes
    }

    /// The messages to clients for these outcomes.
    fn tell(&mut self, outcomes: Vec<Outcome>) -> Vec<Told> {
        let mut told = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Queued { request, .. } => {
                    told.extend(self.known.get(&request).map(|asked| Told::Queued(asked.name)));
                }
                Outcome::Granted(granted) => {
                    let asked = self.known.get(&granted.request);
                    told.extend(asked.map(|asked| Told::Granted(asked.name, granted.token)));
                }
                Outcome::Refused { request, why } => {
                    let refusal = match why {
                        Why::Full { .. } | Why::Paused { .. } | Why::MaxWaiting { .. } => {
                            Refusal::Full
                        }
                        Why::Deadlock { .. } | Why::OwnDeadlock { .. } => Refusal::Deadlock,
                        _ => Refusal::Invalid,
                    };
                    let asked = self.known.remove(&request);
                    told.extend(asked.map(|asked| Told::Refused(asked.name, refusal)));
                }
                // A node sends no message about a spare that it takes back.
                Outcome::Released { request, .. } | Outcome::Withdrawn { request } => {
                    self.known.remove(&request);
                }
                _ => {}
            }
        }
        told
    }

    /// Asks for a lease. A request that is already known continues where it is.
    pub(super) fn ask(&mut self, asked: Asked) -> Vec<Told> {
        if let Some(known) = self.request_of(asked.name) {
            let name = asked.name;
            return vec![match self.table.hold_of(known) {
                None => Told::Queued(name),
                Some(hold) if hold.provisional => Told::Granted(name, hold.token),
                Some(_) => Told::Refused(name, Refusal::Invalid),
            }];
        }
        let request = asked.request();
        self.known.insert(RequestId(self.table.revision().0 + 1), asked);
        let outcomes = self.apply(Change::Request(Arc::new(request)));
        self.tell(outcomes)
    }

    fn request_of(&self, name: LeaseName) -> Option<RequestId> {
        let mut known = self.known.iter();
        known.find(|(_, asked)| asked.name == name).map(|(request, _)| *request)
    }

    /// The requests that hold or wait.
    pub(super) fn known(&self) -> impl Iterator<Item = &Asked> {
        self.known.values()
    }

    /// An unconfirmed grant.
    pub(super) fn collecting(&self) -> Option<LeaseName> {
        self.unconfirmed().next()
    }

    /// The unconfirmed grants.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = LeaseName> {
        let is_collecting =
            |request: &RequestId| self.table.hold_of(*request).is_some_and(|hold| hold.provisional);
        let known = self.known.iter().filter(move |(request, _)| is_collecting(request));
        known.map(|(_, asked)| asked.name)
    }

    /// Makes a collecting grant firm. If the grant was there and another lock has the token, the
    /// error is the first token from which all are free.
    pub(super) fn confirm_at(
        &mut self,
        name: LeaseName,
        token: Token,
    ) -> Result<(), Option<Token>> {
        let request = self.request_of(name);
        let hold = request.and_then(|request| self.table.hold_of(request));
        let Some((request, held)) = request.zip(hold.map(|hold| hold.token)) else {
            return if is_broken(Rule::GoneIsNotConfirmed) { Ok(()) } else { Err(None) };
        };
        let token = if is_broken(Rule::TokensGrow) { held } else { token };
        let outcomes = self.apply(Change::ConfirmAt { request, token, note: None });
        match outcomes.first() {
            Some(Outcome::ConfirmedAt { .. }) => Ok(()),
            Some(Outcome::NotConfirmed { least }) => Err(*least),
            _ => Err(None),
        }
    }

    pub(super) fn is_spare(&self, name: LeaseName) -> bool {
        self.known().any(|asked| asked.name == name && asked.is_spare())
    }

    pub(super) fn holds_firmly(&self, name: LeaseName) -> bool {
        let hold = self.request_of(name).and_then(|request| self.table.hold_of(request));
        hold.is_some_and(|hold| !hold.provisional)
    }

    /// Ends the connection of a lease: it no longer waits, and a collecting grant ends.
    pub(super) fn disconnect(&mut self, name: LeaseName) -> Vec<Told> {
        let Some(request) = self.request_of(name) else { return Vec::new() };
        let hold = self.table.hold_of(request);
        let ends = hold.is_none_or(|hold| hold.provisional && !is_broken(Rule::CollectingEnds));
        if !ends {
            return Vec::new();
        }
        let outcomes = self.apply(Change::Withdraw { request });
        self.tell(outcomes)
    }

    /// Ends a grant, collecting or firm, or a wait.
    pub(super) fn release(&mut self, name: LeaseName) -> Vec<Told> {
        let Some(request) = self.request_of(name) else { return Vec::new() };
        let change = match self.table.hold_of(request).map(|hold| hold.token) {
            Some(token) => Change::Release(Release::Hold { token, forced: false }),
            None => Change::Withdraw { request },
        };
        let outcomes = self.apply(change);
        self.tell(outcomes)
    }

    /// A request that waits while its node knows an older one of the same run, so that it waits
    /// behind itself.
    pub(super) fn behind_itself(&self) -> Option<LeaseName> {
        let waits = self.known.iter().filter(|(request, _)| self.table.waiter(**request).is_some());
        let is_older = |one: LeaseName, other: LeaseName| one.run == other.run && other < one;
        let over = |asked: &&Asked| asked.over.is_some();
        let mut waits = waits.map(|(_, asked)| asked).filter(over).map(|asked| asked.name);
        waits.find(|name| self.known().filter(over).any(|other| is_older(*name, other.name)))
    }

    /// Restarts the daemon: firm leases stay. Jobs of the node itself continue, too.
    pub(super) fn restart(&mut self) {
        let (waiting, held): (Vec<RequestId>, Vec<RequestId>) =
            self.known.keys().partition(|request| self.table.waiter(**request).is_some());
        for request in waiting.into_iter().chain(held) {
            let hold = self.table.hold_of(request);
            if hold.is_none_or(|hold| hold.provisional) {
                let outcomes = self.apply(Change::Withdraw { request });
                self.tell(outcomes);
            }
        }
        self.table = Table::restore(&self.table.snapshot()).unwrap();
    }

    /// Restarts the machine: its own jobs have ended.
    pub(super) fn reboot(&mut self) {
        self.restart();
        let jobs = self.known.values().filter(|asked| asked.over.is_none());
        let jobs: Vec<LeaseName> = jobs.map(|asked| asked.name).collect();
        for job in jobs {
            self.release(job);
        }
    }
}
