//! Hosts that talk to the engine without delay, for tests of one rule each. The test itself causes
//! every fault.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::membership::{Event, Member, Now, Settings, Ticket};
use canal_core::{
    Ask, Change, Command, Entry, HostId, Item, Key, Outcome, Owner, ProcessId, Request, Table, Tag,
    UnixMillis, View, Wait,
};
use canal_log::engine::{Answer, Call, Identity};
use canal_log::sim::engine::{Flavour, Server};

pub(super) const TTL_MS: u64 = 1200;

pub(super) fn settings() -> Settings {
    Settings { ttl_ms: TTL_MS, ..Settings::default() }
}

pub(super) fn identity(label: &str) -> Identity {
    Identity {
        label: label.to_owned(),
        machine: format!("machine of {label}"),
        boot: "this boot".to_owned(),
        pid_namespace: 1,
        uid: 0,
        dir: "/run/canal".to_owned(),
        dir_number: 1,
    }
}

pub(super) fn server() -> Server {
    Server::new(Flavour::Counting)
}

/// A host with its table.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(super) member: Member,
    pub table: Table,
    client: usize,
    ticket: Ticket,
    /// All events but entries.
    pub(super) events: Vec<Event>,
    pub(super) entries: Vec<(Entry, Option<Ticket>)>,
    pub(super) outcomes: BTreeMap<Ticket, Vec<Outcome>>,
    /// Calls that were not carried out yet.
    pub(super) calls: Vec<Call>,
}

impl Direct {
    pub(super) fn new(client: usize, settings: Settings, identity: Identity) -> Self {
        let mut member = Member::new(settings, identity, client as u128);
        member.start(at(0));
        Self {
            member,
            table: Table::default(),
            client,
            ticket: Ticket::default(),
            events: Vec::new(),
            entries: Vec::new(),
            outcomes: BTreeMap::new(),
            calls: Vec::new(),
        }
    }

    /// A host that has joined at this time.
    pub(crate) fn joined(client: usize, server: &mut Server, now_ms: u64) -> Self {
        Self::joined_with(client, settings(), server, now_ms)
    }

    pub(super) fn joined_with(
        client: usize,
        settings: Settings,
        server: &mut Server,
        now_ms: u64,
    ) -> Self {
        let mut host = Self::new(client, settings, identity(&format!("host{client}")));
        host.settle(server, now_ms);
        assert!(host.member.host().is_some(), "{:?}", host.events);
        host
    }

    pub(crate) fn id(&self) -> HostId {
        self.member.host().unwrap()
    }

    /// Takes the member's events for its driver and its calls to the engine.
    pub(super) fn drive(&mut self, now_ms: u64) {
        while let Some(event) = self.member.next_event() {
            match event {
                Event::Entry { revision, entry, ticket } => {
                    let mut outcomes = Vec::new();
                    self.table.apply(revision, &entry, &mut outcomes);
                    self.follow_recovery();
                    self.outcomes.extend(ticket.map(|ticket| (ticket, outcomes)));
                    self.entries.push((entry, ticket));
                }
                Event::SnapshotWanted(chain) => self.member.store(*chain, &self.table.snapshot()),
                event => {
                    if let Event::Restore(snapshot) = &event {
                        self.table = Table::restore(snapshot).unwrap();
                        self.follow_recovery();
                    }
                    let clear = event == Event::Clear;
                    self.events.push(event);
                    if clear {
                        self.member.cleared(at(now_ms));
                    }
                }
            }
        }
        self.calls.extend(self.member.take_calls());
    }

    fn follow_recovery(&mut self) {
        self.member.recovers(self.table.recovery(), self.table.globals().longest_ttl_ms);
    }

    pub(super) fn tell(&mut self, now_ms: u64, answer: Answer) {
        self.member.answer(at(now_ms), answer);
        self.drive(now_ms);
    }

    pub(super) fn tick(&mut self, now_ms: u64) {
        self.member.tick(at(now_ms));
        self.drive(now_ms);
    }

    /// Carries out all calls until none are left.
    pub(crate) fn settle(&mut self, server: &mut Server, now_ms: u64) {
        self.tick(now_ms);
        loop {
            let calls = std::mem::take(&mut self.calls);
            let quiet = calls.is_empty();
            for call in calls {
                for answer in server.calls(self.client, now_ms, 1, call) {
                    self.tell(now_ms, answer);
                }
            }
            let pushed = server.push(self.client);
            if quiet && pushed.is_none() {
                return;
            }
            if let Some(answer) = pushed {
                self.tell(now_ms, answer);
            }
        }
    }

    /// Like [`Direct::settle`], from one time to another in steps of a renewal.
    pub(crate) fn live(&mut self, server: &mut Server, from_ms: u64, to_ms: u64) {
        let mut now_ms = from_ms;
        while now_ms < to_ms {
            self.settle(server, now_ms);
            now_ms += TTL_MS / 6;
        }
        self.settle(server, to_ms);
    }

    pub(crate) fn propose(&mut self, change: Change) -> Ticket {
        self.ticket.0 += 1;
        self.member.propose(self.ticket, change, UnixMillis(1));
        self.ticket
    }

    /// Process `pid` asks for the only slot of a key.
    pub(crate) fn ask(&mut self, pid: u32, key: &str) -> Ticket {
        let change = self.request(pid, key);
        self.propose(change)
    }

    pub(super) fn request(&self, pid: u32, key: &str) -> Change {
        let ask = Ask::slots(1, Some(View::Slots { slots: 1 }));
        Change::Request(Arc::new(Request {
            tag: Tag(u128::from(self.member.host().unwrap().0) << 64 | u128::from(pid)),
            host: self.id(),
            owner: Owner::Process(ProcessId { pid, started: 1, inode: 0 }),
            parent: None,
            uid: 0,
            command: Command("job".to_owned()),
            note: None,
            items: vec![Item { key: Key::new(key).unwrap(), ask }],
            wait: Wait::Yes { until: None },
            priority: 0,
            max_waiting: None,
            supersede: None,
            max_run_ms: None,
            provisional: false,
            children: false,
            ttl_ms: None,
            on_lost: Default::default(),
            asker: None,
            over_nodes: None,
            above: None,
        }))
    }

    pub(super) fn was_granted(&self, ticket: Ticket) -> bool {
        let outcomes = self.outcomes.get(&ticket).into_iter().flatten();
        outcomes.into_iter().any(|outcome| matches!(outcome, Outcome::Granted(_)))
    }

    /// Whether an event came since events were last taken; takes them.
    pub(super) fn saw(&mut self, is: impl Fn(&Event) -> bool) -> bool {
        std::mem::take(&mut self.events).iter().any(is)
    }
}

pub(super) fn at(now_ms: u64) -> Now {
    Now { boot_ms: now_ms, unix: UnixMillis(1) }
}
