//! A small model of the daemon: what the real one does with a member, a table and processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;

use super::history::History;
use super::machine::{Disk, Doing, Held, Page, Proc};
use super::world::Rulebook;
use crate::core::{
    Change, Command, FrameId, HostId, Outcome, Owner, Refusal, Request, RequestId, Rules, Table,
    Tag, UnixMillis, Wait, WaiterStatus,
};
use crate::host::{Event, Member, Memory, Now, Settings, Ticket};
use crate::log::engine::{Answer, Call, Identity};

/// A daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) member: Member,
    pub(super) table: Table,
    pub(super) stopped_until: u64,
    page: Option<usize>,
    asked: BTreeMap<u32, Ticket>,
    ended: BTreeMap<FrameId, Ticket>,
    resumed: BTreeSet<Ticket>,
    clearing: bool,
    pub(super) unable: Option<String>,
    pub(super) lost: u32,
}

/// What of the machine a daemon works with.
pub(super) struct Around<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) clock: u64,
    pub(super) procs: &'a mut BTreeMap<u32, Proc>,
    pub(super) pages: &'a mut Vec<Page>,
    pub(super) history: &'a mut History,
    pub(super) rules: &'a Rulebook,
    pub(super) grace_ms: u64,
    /// The time of day.
    pub(super) unix: UnixMillis,
    pub(super) disk: &'a mut Disk,
}

impl Around<'_> {
    fn now(&self) -> Now {
        Now { boot_ms: self.clock, unix: self.unix }
    }
}

impl Daemon {
    pub(super) fn start(
        settings: Settings,
        identity: Identity,
        nonce: u128,
        now: Now,
        memory: Memory,
    ) -> Self {
        let mut member = Member::new(settings, identity, nonce, Rules::Current);
        member.remember(memory);
        member.start(now);
        Self {
            member,
            table: Table::new(Rules::Current),
            stopped_until: 0,
            page: None,
            asked: BTreeMap::new(),
            ended: BTreeMap::new(),
            resumed: BTreeSet::new(),
            clearing: false,
            unable: None,
            lost: 0,
        }
    }

    /// One turn: answers, time, deaths, requests.
    pub(super) fn run(&mut self, around: &mut Around<'_>, answers: Vec<Answer>) -> Vec<Call> {
        let due = self.member.next_due().is_some_and(|due| due <= around.clock);
        if answers.is_empty() && !due && !self.clearing && around.rng.u8(0..3) > 0 {
            self.watch(around);
            return Vec::new();
        }
        for mut answer in answers {
            if let Answer::Renewed { asked_at, .. } = &mut answer
                && around.rules.late_start
            {
                *asked_at = around.clock;
            }
            self.member.answer(around.now(), answer);
            self.events(around);
        }
        if due {
            self.member.tick(around.now());
        }
        self.events(around);
        self.show_deadlines(around);
        self.watch(around);
        if self.member.host().is_some() {
            self.note_deaths(around);
            self.serve(around);
        } else if self.clearing {
            self.clear(around);
        }
        self.events(around);
        self.member.take_calls()
    }

    /// The daemon stops those whose wrappers do not.
    fn watch(&self, around: &mut Around<'_>) {
        for proc in around.procs.values_mut().filter(|proc| proc.alive) {
            proc.watch(around.rng, around.clock, around.pages, around.grace_ms);
        }
        around.procs.retain(|_, proc| proc.alive);
    }

    fn events(&mut self, around: &mut Around<'_>) {
        while let Some(event) = self.member.next_event() {
            self.event(around, event);
        }
    }

    fn event(&mut self, around: &mut Around<'_>, event: Event) {
        match event {
            Event::Restore { snapshot, revision } => {
                self.table = match snapshot {
                    Some(snapshot) => Table::restore(&snapshot, Rules::Current).unwrap(),
                    None => Table::new(Rules::Current),
                };
                assert_eq!(self.table.revision(), revision);
                self.follow_recovery();
                self.stop_strays(around);
            }
            Event::Entry { revision, entry, ticket } => {
                let mut outcomes = Vec::new();
                let waiting = self.table.waiters().map(|waiter| (waiter.id, waiter.request.tag));
                let mut tags: BTreeMap<RequestId, Tag> = waiting.collect();
                if let Change::Request(asked) = &entry.change {
                    tags.insert(RequestId(revision.0), asked.tag);
                }
                self.table.apply(revision, &entry, &mut outcomes);
                self.follow_recovery();
                around.history.add(revision, &entry, &outcomes);
                self.asked.retain(|_, asked| Some(*asked) != ticket);
                self.ended.retain(|_, asked| Some(*asked) != ticket);
                self.resumed.retain(|asked| Some(*asked) != ticket);
                for outcome in &outcomes {
                    refuse(around, &tags, outcome);
                }
            }
            Event::Absorbed { ticket, .. } | Event::Dropped { ticket } => {
                self.asked.retain(|_, asked| *asked != ticket);
                self.ended.retain(|_, asked| *asked != ticket);
                self.resumed.remove(&ticket);
            }
            Event::Clear => self.clearing = true,
            Event::Joined { host, adopted } => {
                assert_eq!(self.member.host(), Some(host));
                around.disk.joined(&self.member);
                around.pages.push(Page::default());
                self.page = Some(around.pages.len() - 1);
                self.clearing = false;
                self.show_deadlines(around);
                if adopted.is_some() {
                    self.take_over(around);
                }
            }
            Event::Lost { .. } => {
                self.lost += 1;
                if let Some(page) = self.page.take() {
                    around.pages[page].lost_ms = Some(around.clock);
                }
            }
            Event::SnapshotWanted => self.member.store(&self.table.snapshot()),
            Event::Hindered(obstacle) => self.unable = Some(obstacle.why),
            Event::Away(_) | Event::Back | Event::Unhindered => {}
        }
    }

    fn follow_recovery(&mut self) {
        self.member.recovers(self.table.recovery(), self.table.longest_ttl_ms());
    }

    fn show_deadlines(&self, around: &mut Around<'_>) {
        if let Some(page) = self.page {
            let deadlines = self.member.deadlines();
            around.pages[page].term_at = deadlines.term_at;
            around.pages[page].kill_at = deadlines.kill_at;
        }
    }

    /// Commands that run without a hold in the table are stopped.
    fn stop_strays(&self, around: &mut Around<'_>) {
        for proc in around.procs.values_mut() {
            if proc.holds.iter().any(|held| self.table.hold(held.token).is_none()) {
                proc.die();
            }
        }
    }

    /// Wrappers that find the new daemon look at its page from now on.
    fn take_over(&self, around: &mut Around<'_>) {
        self.stop_strays(around);
        let Some(page) = self.page else { return };
        for proc in around.procs.values_mut().filter(|_| around.rng.u8(0..4) > 0) {
            proc.holds.iter_mut().for_each(|held| held.page = page);
        }
    }

    fn clear(&mut self, around: &mut Around<'_>) {
        let mut left = around.procs.values_mut().filter(|proc| proc.has_something()).peekable();
        if left.peek().is_none() {
            self.clearing = false;
            self.member.cleared(around.now());
            return;
        }
        for proc in left {
            if around.rng.u8(0..4) == 0 {
                proc.die();
            }
        }
    }

    fn note_deaths(&mut self, around: &Around<'_>) {
        let Some(host) = self.member.host() else { return };
        let dead = self.table.frames_of_host(host).filter(|id| {
            let frame = self.table.frame(*id);
            frame.is_some_and(|frame| match &frame.owner {
                Owner::Process(id) => around.procs.get(&id.pid).is_none_or(|p| p.id != *id),
                Owner::Lease(_) => false,
            })
        });
        for frame in dead.collect::<Vec<_>>() {
            if self.ended.contains_key(&frame) {
                continue;
            }
            let ticket = self.member.propose(Change::End { frame }, UnixMillis(1));
            self.ended.insert(frame, ticket);
        }
    }

    /// Serves those who ask: a request that is not known is proposed, a grant is told.
    fn serve(&mut self, around: &mut Around<'_>) {
        let Some((host, page)) = self.member.host().zip(self.page) else { return };
        let in_time = around.clock < self.member.deadlines().term_at;
        for (pid, proc) in around.procs.iter_mut() {
            let Some((tag, item)) = proc.asks() else { continue };
            let Some(request) = self.table.tagged(tag) else {
                if !self.asked.contains_key(pid) && self.table.recovery().is_none() {
                    let asked = request_of(host, proc, tag, item.clone());
                    let change = Change::Request(Arc::new(asked));
                    self.asked.insert(*pid, self.member.propose(change, UnixMillis(1)));
                }
                continue;
            };
            if let Some(hold) = self.table.hold_of(request) {
                let is_told = self.member.is_current() && self.table.may_be_told(hold.token);
                if hold.asked.host != host {
                    continue;
                }
                if !is_told {
                    // What was granted before history was lost is asked for again after it.
                    if self.table.recovery().is_none()
                        && self.member.is_current()
                        && self.resumed.is_empty()
                    {
                        for change in [Change::Suspend { request }, Change::Resume { request }] {
                            self.resumed.insert(self.member.propose(change, around.unix));
                        }
                    }
                } else if in_time {
                    let held = Held { item: item.clone(), token: hold.token, page };
                    around.history.tell(tag, item, hold.token);
                    around.disk.tell(hold.token, &self.member);
                    self.member.tell(hold.token);
                    proc.doing = Doing::Granted(held);
                }
            } else if let Some(waiter) = self.table.waiter(request)
                && waiter.status == WaiterStatus::Detached
                && waiter.request.host == host
                && self.resumed.is_empty()
            {
                let change = Change::Resume { request };
                self.resumed.insert(self.member.propose(change, UnixMillis(1)));
            }
        }
    }

    /// What it waits for, for messages.
    pub(super) fn doing(&self) -> impl std::fmt::Debug {
        (self.page, &self.asked, &self.ended, &self.resumed, self.clearing)
    }

    /// Which incarnation it is now.
    pub(super) fn host(&self) -> Option<HostId> {
        self.member.host()
    }
}

fn request_of(host: HostId, proc: &Proc, tag: Tag, item: crate::core::Item) -> Request {
    Request {
        tag,
        host,
        owner: Owner::Process(proc.id),
        parent: None,
        uid: 0,
        command: Command("job".to_owned()),
        note: None,
        items: vec![item],
        wait: Wait::Yes { until: None },
        priority: 0,
        max_waiting: None,
        max_run_ms: None,
        provisional: false,
        children: false,
        ttl_ms: None,
        on_lost: Default::default(),
        asker: None,
        over_nodes: None,
        above: None,
    }
}

fn refuse(around: &mut Around<'_>, tags: &BTreeMap<RequestId, Tag>, outcome: &Outcome) {
    let Outcome::Refused { request, why } = outcome else { return };
    // The latter is asked again when the recovery is over.
    if matches!(why, Refusal::Duplicate | Refusal::Recovering) {
        return;
    }
    let refused = tags.get(request);
    let victim = |proc: &&mut Proc| proc.asks().is_some_and(|(tag, _)| Some(&tag) == refused);
    around.procs.values_mut().filter(victim).for_each(Proc::die);
}
