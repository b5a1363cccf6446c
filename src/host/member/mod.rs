//! The state machine: what goes in and out, and how an incarnation begins and ends.

mod follow;
mod join;
mod recover;
mod renew;

use std::collections::{BTreeSet, VecDeque};

use crate::core::{Change, HostId, Rules, Snapshot, UnixMillis};
use crate::host::chain::{Chain, Known, Mark};
use crate::host::encoding;
use crate::host::failure_detector::{FailureDetector, SILENCE};
use crate::host::incarnation::{Incarnation, Timer};
use crate::host::memory::{Memory, Recovering};
use crate::host::settings::too_short;
use crate::host::snapshot_keeper::{Differs, SnapshotKeeper};
use crate::host::writer::Writer;
use crate::host::{Deadlines, Event, Health, LostWhy, Now, Settings, Standing, Ticket};
use crate::log::engine::{Answer, Call, Ends, Evidence, Identity, Outage, Position};

/// One host's part in the log of many.
#[derive(Debug)]
pub struct Member {
    pub(in crate::host) settings: Settings,
    pub(in crate::host) identity: Identity,
    nonce: u128,
    pub(in crate::host) rules: Rules,
    pub(in crate::host) now: Now,
    pub(in crate::host) calls: VecDeque<Call>,
    pub(in crate::host) events: VecDeque<Event>,
    tickets: u64,
    pub(in crate::host) standing: Standing,
    /// Whether the engine cannot be asked anything.
    pub(in crate::host) cut: bool,
    /// Why the engine is of no use, until it answers something.
    pub(in crate::host) outage: Option<Outage>,
    /// Why this host can take no part though the engine answers.
    pub(in crate::host) obstacle: Option<Outage>,
    /// How many incarnations in a row met an obstacle.
    setbacks: u32,
    /// The incarnation that is being taken back before its obstacle is told.
    withdrawing: Option<HostId>,
    /// How many incarnations were asked for.
    attempt: u64,
    /// When the current one was asked for first: it lives from then on at the latest.
    pub(in crate::host) registering_ms: u64,
    /// When it is to be asked for, or again.
    pub(in crate::host) register: Timer,
    pub(in crate::host) incarnation: Option<Incarnation>,
    /// What was read of the log; none while it is loaded for the first time.
    pub(in crate::host) chain: Option<Chain>,
    pub(in crate::host) writer: Writer,
    pub(in crate::host) failure_detector: FailureDetector,
    pub(in crate::host) snapshot_keeper: SnapshotKeeper,
    /// Incarnations of ours that we have given up.
    pub(in crate::host) lost: BTreeSet<HostId>,
    pub(in crate::host) deadlines: Deadlines,
    /// Whether our own end is on its way into the log, because we said so.
    pub(in crate::host) leaving: bool,
    /// What is known of tokens and of history that outlives an incarnation.
    pub(in crate::host) memory: Memory,
    pub(in crate::host) recovering: Option<Recovering>,
    /// For how many thousandths of the longest TTL a recovery waits.
    pub(in crate::host) recovery_wait: u64,
    #[cfg(test)]
    pub(in crate::host) trusting: bool,
}

impl Member {
    /// A member that has not been started. `nonce` is random.
    #[must_use]
    pub fn new(settings: Settings, identity: Identity, nonce: u128, rules: Rules) -> Self {
        Self {
            settings,
            identity,
            nonce,
            rules,
            now: Now { boot_ms: 0, unix: UnixMillis(0) },
            calls: VecDeque::new(),
            events: VecDeque::new(),
            tickets: 0,
            standing: Standing::Idle,
            cut: false,
            outage: None,
            obstacle: None,
            setbacks: 0,
            withdrawing: None,
            attempt: 0,
            registering_ms: 0,
            register: Timer::default(),
            incarnation: None,
            chain: None,
            writer: Writer::default(),
            failure_detector: FailureDetector::default(),
            snapshot_keeper: SnapshotKeeper::default(),
            lost: BTreeSet::new(),
            deadlines: Deadlines::default(),
            leaving: false,
            memory: Memory::default(),
            recovering: None,
            recovery_wait: SILENCE,
            #[cfg(test)]
            trusting: false,
        }
    }

    /// Begins to join. Call it once.
    pub fn start(&mut self, now: Now) {
        self.now = now;
        match self.settings.check(self.settings.ttl_ms) {
            Ok(_) => self.register_at(now.boot_ms),
            // Nothing was asked of the engine, and nothing will be.
            Err(error) => self.events.push_back(Event::Hindered(too_short(error.to_string()))),
        }
        self.on_time();
    }

    /// Proposes a change. It comes back as an [`Event::Entry`] with this ticket, or the ticket as
    /// [`Event::Absorbed`] or [`Event::Dropped`]; the latter at once while we are no member.
    pub fn propose(&mut self, change: Change, at: UnixMillis) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if self.standing == Standing::Member && !self.leaving {
            self.writer.push(change, at, Some(ticket));
        } else {
            self.events.push_back(Event::Dropped { ticket });
        }
        ticket
    }

    /// What is to be asked of the engine now. Take them at the end of each turn: what was proposed
    /// since the last time goes out together.
    pub fn take_calls(&mut self) -> Vec<Call> {
        self.append_next();
        self.calls.drain(..).collect()
    }

    /// Takes in an answer of the engine.
    pub fn answer(&mut self, now: Now, answer: Answer) {
        self.now = now;
        // First of all: what arrives late must not be acted upon as if it were in time.
        self.on_time();
        match &answer {
            Answer::Away(_) | Answer::Back => {}
            _ => self.hear(),
        }
        match answer {
            Answer::Registered { host, ttl_ms, asked_at, epoch, others } => {
                self.registered((host, ttl_ms), asked_at, epoch, others);
            }
            Answer::Withdrawn { host } => self.withdrawn(host),
            Answer::Loaded { snapshot, batches } => self.loaded(snapshot, &batches),
            Answer::Batches(batches) => self.batches(&batches),
            Answer::Rewritten => self.rewritten(),
            Answer::Compacted => self.reload(),
            Answer::Appended { host, sequence, .. } => {
                if self.is_us(host) {
                    self.writer.answered(sequence);
                }
            }
            Answer::Overtaken { host, sequence, ends } => {
                if self.is_us(host) {
                    self.overtaken(sequence, ends);
                }
            }
            Answer::Fenced { host, why } => {
                if self.is_us(host) {
                    self.lose(LostWhy::Fenced { why });
                }
            }
            Answer::Renewed { asked_at, ttl_ms, head, hosts } => {
                self.renewed((asked_at, ttl_ms), head, &hosts);
            }
            Answer::NewEra { before, era, may_lack } => self.note_era(before, era, may_lack),
            Answer::Stored { position } => self.stored(position),
            Answer::Away(outage) => self.gone_away(outage),
            Answer::Back => self.come_back(),
        }
        self.on_time();
    }

    /// Takes in that time has passed.
    pub fn tick(&mut self, now: Now) {
        self.now = now;
        self.on_time();
    }

    /// The next thing for the driver to do.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The answer to [`Event::Clear`]: no command of an earlier incarnation lives.
    pub fn cleared(&mut self, now: Now) {
        self.now = now;
        if self.standing == Standing::Clearing {
            if self.label_was_taken() { self.decide_how_to_join() } else { self.join(None) }
        }
        self.on_time();
    }

    /// The answer to [`Event::SnapshotWanted`]: the table as it was at that event.
    pub fn store(&mut self, snapshot: &Snapshot) {
        let every = self.settings.snapshot_batches;
        match self.snapshot_keeper.take(snapshot, self.now.boot_ms, every) {
            Ok(()) => self.store_due(),
            Err(differs) => self.differs(differs),
        }
    }

    /// Until when commands of ours may run. A grant may be told only before `term_at`. After a
    /// loss they stay those of the incarnation that was lost, until we are a member again.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// Our incarnation, while we are a member.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        let incarnation =
            self.incarnation.as_ref().filter(|_| self.standing == Standing::Member)?;
        Some(incarnation.host)
    }

    /// How we stand to the engine.
    #[must_use]
    pub fn health(&self) -> Health {
        let incarnation = self.incarnation.as_ref();
        Health {
            standing: self.standing.clone(),
            host: incarnation.map(|incarnation| incarnation.host),
            renewed_ms: incarnation.and_then(|incarnation| incarnation.renewed_ms),
            position: self.chain.as_ref().map_or(Position(0), |chain| chain.link().position),
            head: incarnation.map_or(Position(0), |incarnation| incarnation.head),
            hosts: self.failure_detector.seen().copied().collect(),
        }
    }

    /// How far the log was read; for [`Self::knows`], also by a later daemon of this host.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        self.chain.as_ref().map(Chain::mark)
    }

    /// Whether what had been read at a mark is part of what is read now.
    #[must_use]
    pub fn knows(&self, mark: Mark) -> Known {
        self.chain.as_ref().map_or(Known::TooOld, |chain| chain.knows_mark(mark))
    }

    fn is_us(&self, host: HostId) -> bool {
        self.incarnation.as_ref().is_some_and(|incarnation| incarnation.host == host)
    }

    /// Whether commands of ours may run under this incarnation.
    fn takes_part(&self) -> bool {
        matches!(self.standing, Standing::Member | Standing::Joining)
    }

    /// Asks for another incarnation, at `at_ms`.
    fn register_at(&mut self, at_ms: u64) {
        self.standing = Standing::Registering;
        self.attempt += 1;
        self.registering_ms = u64::MAX;
        self.register.set(at_ms);
    }

    pub(in crate::host) fn send_register(&mut self) {
        let asked_at = self.now.boot_ms;
        self.registering_ms = self.registering_ms.min(asked_at);
        self.register.set(asked_at + self.usual_renewal_ms());
        self.calls.push_back(Call::Register {
            identity: self.identity.clone(),
            nonce: encoding::nonce(self.nonce, self.attempt),
            ttl_ms: self.settings.ttl_ms,
            asked_at,
        });
    }

    fn usual_renewal_ms(&self) -> u64 {
        self.settings.check(self.settings.ttl_ms).map_or(1, |timing| timing.renewal_ms)
    }

    /// Our incarnation ended or may have: what it has is lost, and another one is asked for.
    pub(in crate::host) fn lose(&mut self, why: LostWhy) {
        let Some(incarnation) = self.incarnation.take() else { return };
        self.leaving = false;
        if self.takes_part() {
            self.events.push_back(Event::Lost { host: incarnation.host, why });
        }
        self.lost.insert(incarnation.host);
        self.begin_anew();
        // Not more often than it would be renewed, if we lose one after the other.
        let earliest = self.registering_ms.saturating_add(self.usual_renewal_ms());
        self.register_at(self.now.boot_ms.max(earliest));
    }

    /// An incarnation cannot become a member as things are, or not stay one. Another one is asked
    /// for, later each time.
    pub(in crate::host) fn hinder(&mut self, obstacle: Outage) {
        self.tell_withdrawn();
        let unused = self
            .incarnation
            .as_ref()
            .map(|incarnation| incarnation.host)
            .filter(|_| !self.takes_part());
        self.lose(LostWhy::Differs);
        let wait_ms = self.usual_renewal_ms().saturating_mul(1 << self.setbacks.min(8));
        self.setbacks = self.setbacks.saturating_add(1);
        self.register_at(self.now.boot_ms + wait_ms.min(self.settings.ttl_ms));
        self.withdrawing = unused.filter(|_| !self.cut);
        if self.obstacle.as_ref() == Some(&obstacle) {
            self.calls.extend(self.withdrawing.take().map(|host| Call::Withdraw { host }));
            return;
        }
        self.obstacle = Some(obstacle);
        match self.withdrawing {
            // The driver may end when it is told, and others would wait for this one's end.
            Some(host) => self.calls.push_back(Call::Withdraw { host }),
            None => self.tell_obstacle(),
        }
    }

    /// A member cannot read the log as it is. It neither renews nor appends until it can, so what
    /// it holds lasts until its deadline.
    pub(in crate::host) fn stall(&mut self, obstacle: Outage) {
        let takes_part = self.takes_part();
        let Some(incarnation) = self.incarnation.as_mut().filter(|_| takes_part) else {
            return self.hinder(obstacle);
        };
        incarnation.renew.clear();
        let mut again = Timer::default();
        again.set(self.now.boot_ms + incarnation.timing.renewal_ms);
        incarnation.loading = Some(again);
        if self.obstacle.as_ref() != Some(&obstacle) {
            self.obstacle = Some(obstacle);
            self.tell_obstacle();
        }
    }

    /// What was read can be read on.
    pub(in crate::host) fn unstall(&mut self) {
        if !self.takes_part() {
            return;
        }
        if self.obstacle.take().is_some() {
            self.events.push_back(Event::Unhindered);
        }
        let now_ms = self.now.boot_ms;
        if let Some(incarnation) =
            self.incarnation.as_mut().filter(|incarnation| incarnation.renew == Timer::default())
        {
            incarnation.renew.set(now_ms);
        }
    }

    /// Nothing hinders this host any more.
    pub(in crate::host) fn overcome(&mut self) {
        self.obstacle = None;
        self.setbacks = 0;
    }

    fn tell_obstacle(&mut self) {
        self.events.extend(self.obstacle.clone().map(Event::Hindered));
    }

    fn withdrawn(&mut self, host: HostId) {
        if self.withdrawing == Some(host) {
            self.tell_withdrawn();
        }
    }

    /// Tells what hindered an incarnation, whether it could be taken back or not.
    pub(in crate::host) fn tell_withdrawn(&mut self) {
        if self.withdrawing.take().is_some() {
            self.tell_obstacle();
        }
    }

    /// The engine answered something.
    pub(in crate::host) fn hear(&mut self) {
        if !self.cut && self.outage.take().is_some() {
            self.events.push_back(Event::Back);
        }
    }

    /// Ends our membership in good order; nothing may be held or waited for here. Whether its end
    /// is on its way: call it until it is not.
    pub fn leave(&mut self, now: Now) -> bool {
        self.now = now;
        let Some(us) = self.host().filter(|_| !self.cut) else { return false };
        // What is on its way of ours could still move leases to us.
        if !self.leaving && self.writer.is_idle() {
            self.leaving = true;
            self.end(Ends { host: us, evidence: Evidence::Own });
        }
        true
    }

    /// Our end is in the log as we wanted it: nothing is lost.
    pub(in crate::host) fn left(&mut self) {
        self.begin_anew();
        self.leaving = false;
        self.standing = Standing::Idle;
    }

    fn begin_anew(&mut self) {
        self.memory.mark = self.mark().or(self.memory.mark);
        let given_up = self.writer.give_up();
        self.events.extend(given_up.into_iter().map(|ticket| Event::Dropped { ticket }));
        self.incarnation = None;
        self.chain = None;
        self.recovering = None;
        self.writer = Writer::default();
        self.failure_detector.forget_all();
        self.snapshot_keeper.forget();
        self.forget_calls();
    }

    /// What was to be asked is not asked, but for what the engine waits for before all else.
    pub(in crate::host) fn forget_calls(&mut self) {
        self.calls.retain(|call| matches!(call, Call::NoteEra { .. }));
    }

    pub(in crate::host) fn differs(&mut self, Differs(revision): Differs) {
        let why = format!(
            "this host's table is not the one that other hosts have at revision {revision}"
        );
        let hint = "this is a defect: please report it, with the versions of all hosts".to_owned();
        self.hinder(Outage::refused(why, Some(hint)));
    }
}
