//! A table with short functions for everything that happens to it. After every entry, the table is
//! compared with a slow, simple evaluation of its snapshot ([`crate::tests::brute`]), and its
//! outcomes are replayed.

use std::sync::Arc;

use crate::tests::brute;
use crate::*;

/// A table that is checked after every entry.
pub(in crate::tests) struct World {
    pub(in crate::tests) table: Table,
    pub(in crate::tests) log: Vec<(Entry, Vec<Outcome>)>,
    tags: u128,
    /// The host on which things happen.
    pub(in crate::tests) host: HostId,
}

/// A request under construction.
#[derive(Clone, Debug)]
pub(in crate::tests) struct Wish {
    pub(in crate::tests) host: HostId,
    pub(in crate::tests) pid: u32,
    pub(in crate::tests) items: Vec<Item>,
    pub(in crate::tests) wait: Wait,
    pub(in crate::tests) priority: i32,
    pub(in crate::tests) max_waiting: Option<u64>,
    pub(in crate::tests) supersede: Supersede,
    pub(in crate::tests) uid: u32,
    pub(in crate::tests) parent: Option<FrameId>,
    pub(in crate::tests) provisional: bool,
    pub(in crate::tests) children: bool,
    /// For a lease, whose name is the number `pid`.
    pub(in crate::tests) ttl_ms: Option<u64>,
    pub(in crate::tests) over_nodes: Option<OverNodes>,
}

pub(in crate::tests) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(in crate::tests) fn owner(pid: u32) -> Owner {
    Owner::Process(ProcessId { pid, started: 1, inode: 0 })
}

/// A request of the lease with this name, which may wait.
pub(in crate::tests) fn lease(name: u32) -> Wish {
    Wish { ttl_ms: Some(60_000), ..by(name) }
}

/// A request of process `pid`, which may wait.
pub(in crate::tests) fn by(pid: u32) -> Wish {
    let wait = Wait::Yes { until: None };
    let (items, parent) = (Vec::new(), None);
    Wish {
        host: HostId(0),
        pid,
        items,
        wait,
        priority: 0,
        max_waiting: None,
        supersede: Supersede::default(),
        uid: 1000,
        parent,
        provisional: false,
        children: false,
        ttl_ms: None,
        over_nodes: None,
    }
}

/// A provisional request of lease `name`: one part of a request that all of these nodes must grant.
pub(in crate::tests) fn part(name: u32, nodes: &[u128]) -> Wish {
    let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
    let over = OverNodes { run: RunId(name.into()), nodes, require: Require::All, spare: false };
    Wish { provisional: true, over_nodes: Some(over), ..lease(name) }
}

impl Wish {
    /// Makes the request through the daemon of this host.
    pub(in crate::tests) fn on(mut self, host: HostId) -> Self {
        self.host = host;
        self
    }

    pub(in crate::tests) fn item(mut self, name: &str, count: u64, view: Option<View>) -> Self {
        self.items.push(Item { key: key(name), ask: Ask::slots(count, view) });
        self
    }

    /// One slot of a lock with buckets.
    pub(in crate::tests) fn canal(self, name: &str, per: u64, buckets: u64) -> Self {
        self.item(name, 1, Some(View::Buckets { per, buckets }))
    }

    /// One slot of a slots lock.
    pub(in crate::tests) fn slots(self, name: &str, slots: u64) -> Self {
        self.item(name, 1, Some(View::Slots { slots }))
    }

    /// One slot without a view.
    pub(in crate::tests) fn bare(self, name: &str) -> Self {
        self.item(name, 1, None)
    }

    pub(in crate::tests) fn read(mut self, name: &str) -> Self {
        self.items.push(Item { key: key(name), ask: Ask::Read });
        self
    }

    pub(in crate::tests) fn write(mut self, name: &str) -> Self {
        self.items.push(Item { key: key(name), ask: Ask::Write });
        self
    }

    pub(in crate::tests) fn now(mut self) -> Self {
        self.wait = Wait::No;
        self
    }

    pub(in crate::tests) fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    pub(in crate::tests) fn max_waiting(mut self, most: u64) -> Self {
        self.max_waiting = Some(most);
        self
    }

    /// Spreads its slots over the buckets.
    pub(in crate::tests) fn spread(mut self) -> Self {
        self.items.iter_mut().for_each(|item| item.ask = item.ask.clone().spread());
        self
    }

    pub(in crate::tests) fn supersedes(mut self, which: Superseded) -> Self {
        self.supersede.which = Some(which);
        self
    }

    pub(in crate::tests) fn group(mut self, name: &str) -> Self {
        self.supersede.group = Some(name.into());
        self
    }

    pub(in crate::tests) fn user(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    /// Sets how many nodes must grant it: a majority, or one of them.
    pub(in crate::tests) fn require(mut self, require: Require) -> Self {
        self.over_nodes.as_mut().expect("it is over nodes").require = require;
        self
    }

    /// Marks the part as a spare: enough other nodes have granted it.
    pub(in crate::tests) fn spare(mut self) -> Self {
        self.over_nodes.as_mut().expect("it is over nodes").spare = true;
        self.now()
    }

    pub(in crate::tests) fn under(mut self, parent: FrameId) -> Self {
        self.parent = Some(parent);
        self
    }
}

impl Wish {
    fn owner(&self) -> Owner {
        match self.ttl_ms {
            Some(_) => Owner::Lease(LeaseId(self.pid.into())),
            None => owner(self.pid),
        }
    }

    pub(in crate::tests) fn change(self, tag: Tag) -> Change {
        Change::Request(Arc::new(Request {
            tag,
            host: self.host,
            owner: self.owner(),
            parent: self.parent,
            uid: self.uid,
            command: Command(format!("job {}", self.pid)),
            note: None,
            items: self.items,
            wait: self.wait,
            priority: self.priority,
            max_waiting: self.max_waiting,
            supersede: (self.supersede != Supersede::default()).then(|| self.supersede.into()),
            max_run_ms: None,
            provisional: self.provisional,
            children: self.children,
            ttl_ms: self.ttl_ms,
            on_lost: Default::default(),
            asker: None,
            over_nodes: self.over_nodes.map(Box::new),
            above: None,
        }))
    }
}

/// Applies a change without brute force, for worlds that are too large for it.
pub(in crate::tests) fn apply_unchecked(table: &mut Table, change: Change) -> Vec<Outcome> {
    let entry = Entry { version: ENTRY_VERSION, at: UnixMillis(0), change };
    let mut outcomes = Vec::new();
    table.apply(Revision(table.revision().0 + 1), &entry, &mut outcomes);
    outcomes
}

impl World {
    pub(in crate::tests) fn new() -> Self {
        Self { table: Table::default(), log: Vec::new(), tags: 0, host: HostId(0) }
    }

    pub(in crate::tests) fn apply(&mut self, change: Change) -> Vec<Outcome> {
        let at = UnixMillis(self.table.revision().0 + 1_000);
        let entry = Entry { version: ENTRY_VERSION, at, change };
        let before = self.table.clone();
        let mut outcomes = Vec::new();
        self.table.apply(Revision(before.revision().0 + 1), &entry, &mut outcomes);
        brute::check_step(&before, &entry, &outcomes, &self.table);
        if let Change::Request(asked) = &entry.change {
            let request = RequestId(self.table.revision().0);
            let first = outcomes.iter().find(|outcome| outcome.is_word_on(request));
            assert_eq!(first, Some(&before.verdict_on(asked)), "asked ahead");
        }
        self.log.push((entry, outcomes.clone()));
        outcomes
    }

    /// Makes a request, and returns it with all outcomes.
    pub(in crate::tests) fn ask(&mut self, wish: Wish) -> (RequestId, Vec<Outcome>) {
        self.tags += 1;
        let wish = if self.host == HostId(0) { wish } else { wish.on(self.host) };
        let outcomes = self.apply(wish.change(Tag(self.tags)));
        (RequestId(self.table.revision().0), outcomes)
    }

    /// Makes a request that must be granted immediately.
    pub(in crate::tests) fn take(&mut self, wish: Wish) -> Granted {
        let (request, outcomes) = self.ask(wish);
        granted(&outcomes, request).unwrap_or_else(|| panic!("not granted: {outcomes:?}"))
    }

    /// Makes a request that must wait.
    pub(in crate::tests) fn wait(&mut self, wish: Wish) -> RequestId {
        let (request, outcomes) = self.ask(wish);
        assert!(self.table.waiter(request).is_some(), "does not wait: {outcomes:?}");
        request
    }

    /// Makes a request that must be refused.
    pub(in crate::tests) fn refused(&mut self, wish: Wish) -> Refusal {
        let (request, outcomes) = self.ask(wish);
        let why = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Refused { request: id, why } if *id == request => Some(why.clone()),
            _ => None,
        });
        why.unwrap_or_else(|| panic!("not refused: {outcomes:?}"))
    }

    pub(in crate::tests) fn frame(&self, pid: u32) -> FrameId {
        self.table.frame_of(self.host, &owner(pid)).unwrap_or(FrameId(u64::MAX))
    }

    pub(in crate::tests) fn die(&mut self, pid: u32) -> Vec<RequestId> {
        let frame = self.frame(pid);
        grants(&self.apply(Change::End { frame }))
    }

    pub(in crate::tests) fn release(&mut self, pid: u32, name: &str) -> Vec<Outcome> {
        let frame = self.frame(pid);
        self.apply(Change::Release(Release::Latest { frame, key: key(name) }))
    }

    pub(in crate::tests) fn resize(&mut self, name: &str, view: Option<View>) -> Vec<Outcome> {
        self.apply(Change::Set { key: key(name), setting: Setting::View(view) })
    }

    pub(in crate::tests) fn pause(&mut self, name: &str, paused: bool) -> Vec<Outcome> {
        self.apply(Change::Set { key: key(name), setting: Setting::Paused(paused) })
    }

    pub(in crate::tests) fn prioritize(
        &mut self,
        request: RequestId,
        priority: i32,
    ) -> Vec<Outcome> {
        let frame = self.table.waiter(request).unwrap().frame;
        self.apply(Change::Prioritize { session: self.table.session(frame), priority })
    }

    /// Takes buckets out of service, or returns them.
    pub(in crate::tests) fn service(
        &mut self,
        name: &str,
        numbers: &[u64],
        out: bool,
    ) -> Vec<Outcome> {
        let setting = Setting::Service { numbers: numbers.to_vec(), out };
        self.apply(Change::Set { key: key(name), setting })
    }

    pub(in crate::tests) fn confirm_at(&mut self, request: RequestId, token: u64) -> Vec<Outcome> {
        self.apply(Change::ConfirmAt { request, token: Token(token), note: None })
    }

    pub(in crate::tests) fn waits(&self, request: RequestId) -> bool {
        self.table.waiter(request).is_some()
    }

    pub(in crate::tests) fn held(&self, name: &str) -> u64 {
        self.table.held_of(&key(name))
    }
}

pub(in crate::tests) fn granted(outcomes: &[Outcome], request: RequestId) -> Option<Granted> {
    outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Granted(granted) if granted.request == request => Some(granted.clone()),
        _ => None,
    })
}

/// The requests granted, in order.
pub(in crate::tests) fn grants(outcomes: &[Outcome]) -> Vec<RequestId> {
    let granted = |outcome: &Outcome| match outcome {
        Outcome::Granted(granted) => Some(granted.request),
        _ => None,
    };
    outcomes.iter().filter_map(granted).collect()
}

/// All requests refused for a deadlock so far.
pub(in crate::tests) fn victims(world: &World) -> Vec<RequestId> {
    let outcomes = world.log.iter().flat_map(|(_, outcomes)| outcomes);
    let victim = |outcome: &Outcome| match outcome {
        Outcome::Refused { request, why: Refusal::Deadlock { .. } } => Some(*request),
        _ => None,
    };
    outcomes.filter_map(victim).collect()
}

/// Shows the history of a failed test.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (entry, outcomes) in &self.log {
                println!("after {:?}\n      {outcomes:?}", entry.change);
            }
            println!("the next step failed");
        }
    }
}
