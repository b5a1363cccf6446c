//! Drives the member: takes proposals, answers and the time, and repeats calls. Renewals and
//! deadlines.

use crate::membership::failure_detector::silence_ms;
use crate::membership::incarnation::{Incarnation, Reading};
use crate::membership::ttl::too_short;
use crate::membership::{Chain, Event, LostWhy, Member, Now, OngoingOutage, Standing, Ticket};
use canal_core::{Change, HostId, Snapshot, UnixMillis};
use canal_log::engine::{Alive, Answer, Call, Ends, Evidence, Outage, Position};

/// What the driver calls.
impl Member {
    /// Begins to join. Call it once.
    pub(crate) fn start(&mut self, now: Now) {
        self.now = now;
        match self.settings.check(self.settings.ttl_ms) {
            Ok(_) => self.register_at(now.boot_ms),
            // No call was sent to the engine, and none will be.
            Err(error) => {
                OngoingOutage::note(&mut self.obstacle, &too_short(error), now);
                self.tell_obstacle();
            }
        }
        self.on_time();
    }

    /// Proposes a change. The ticket returns with an [`Event::Entry`], an [`Event::Absorbed`] or an
    /// [`Event::Dropped`]; the last one comes at once while the host is not a member.
    pub(crate) fn propose(&mut self, ticket: Ticket, change: Change, at: UnixMillis) {
        if self.may_propose() {
            self.writer.push(change, at, Some(ticket));
        } else {
            self.events.push_back(Event::Dropped { ticket });
        }
    }

    /// The calls to send to the engine now. Take them at the end of each turn, so that all
    /// proposals of the turn go out together.
    pub(crate) fn take_calls(&mut self) -> Vec<Call> {
        let ready = self.standing == Standing::Member && !self.cut;
        let may_append = |it: &&Incarnation| ready && it.is_settled();
        if let Some(Incarnation { host, chain, .. }) = self.incarnation.as_ref().filter(may_append)
        {
            self.calls.extend(self.writer.next(*host, chain.link, self.now).map(Call::Append));
        }
        self.attend_next();
        self.calls.drain(..).collect()
    }

    /// Processes an answer of the engine.
    pub(crate) fn answer(&mut self, now: Now, answer: Answer) {
        self.now = now;
        // First, so that a late answer does not count as one in time.
        self.on_time();
        if !matches!(answer, Answer::Away(_) | Answer::Back | Answer::Full(_)) {
            self.hear();
        }
        match answer {
            Answer::Registered { host, ttl_ms, asked_at, epoch, others } => {
                self.registered((host, ttl_ms), asked_at, epoch, others);
            }
            Answer::Withdrawn { host } if self.withdrawing == Some(host) => self.tell_withdrawn(),
            Answer::Loaded { snapshot, batches } => self.loaded(snapshot, &batches),
            Answer::Batches(batches) => self.batches(&batches),
            Answer::Rewritten => self.rewritten(),
            Answer::Compacted => self.reload(),
            Answer::Appended { host, sequence, .. } if self.is_us(host) => {
                self.writer.answered(sequence);
            }
            Answer::Overtaken { host, sequence, ends } if self.is_us(host) => {
                self.overtaken(sequence, ends);
            }
            Answer::Fenced { host, why } if self.is_us(host) => self.lose(LostWhy::Fenced { why }),
            // Of an earlier incarnation.
            Answer::Withdrawn { .. }
            | Answer::Appended { .. }
            | Answer::Overtaken { .. }
            | Answer::Fenced { .. } => {}
            Answer::Renewed { asked_at, ttl_ms, head, hosts } => {
                self.renewed((asked_at, ttl_ms), head, &hosts);
            }
            Answer::Stored { position } => self.stored(position),
            Answer::Attends { listens } => self.attends(listens),
            Answer::Away(outage) => self.gone_away(outage),
            Answer::Back => self.come_back(),
            Answer::Full(full) => {
                let since = self.full.take().map_or(now, |it| it.since);
                self.full = full.map(|outage| OngoingOutage { outage, since });
                self.events.push_back(Event::Full);
            }
        }
        self.on_time();
    }

    /// Handles the passage of time.
    pub(crate) fn tick(&mut self, now: Now) {
        self.now = now;
        self.on_time();
    }

    /// The next task for the driver.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.attention.has_read |= matches!(event, Some(Event::Present));
        event
    }

    /// The answer to [`Event::Clear`]: no command of an earlier incarnation lives.
    pub(crate) fn cleared(&mut self, now: Now) {
        self.now = now;
        if self.standing == Standing::Clearing {
            let others = self.incarnation.as_ref().map(|incarnation| &incarnation.others);
            // Another host may have taken the label in the meantime.
            match others.is_some_and(|others| !others.foreign.is_empty()) {
                true => self.decide_how_to_join(),
                false => self.join(None),
            }
        }
        self.on_time();
    }

    /// The answer to [`Event::SnapshotWanted`]: its chain, and the table as it was at that event.
    pub(crate) fn store(&mut self, chain: Chain, snapshot: &Snapshot) {
        let every = self.settings.snapshot_batches;
        match self.snapshot_keeper.take(chain, snapshot, self.now.boot_ms, every) {
            Ok(()) => self.store_due(),
            Err(differs) => self.differs(differs),
        }
    }

    // Renewals, deadlines, and the repetition of calls.

    /// Performs everything that is due, and gives up an incarnation that was not renewed in time.
    fn on_time(&mut self) {
        let now_ms = self.now.boot_ms;
        if let Some(incarnation) = &self.incarnation
            && now_ms >= incarnation.deadline().kill_at
        {
            self.lose(LostWhy::NotRenewed);
        }
        self.read_on_time();
        if self.cut {
            return;
        }
        let is_due = |timer: Option<u64>| timer.is_some_and(|at_ms| at_ms <= now_ms);
        if is_due(self.register) {
            self.tell_withdrawn();
            self.send_register();
        }
        let Some(incarnation) = &mut self.incarnation else { return };
        let patience_ms = incarnation.timing.renewal_ms;
        if is_due(incarnation.renew) {
            incarnation.renew = Some(now_ms + patience_ms);
            self.calls.push_back(Call::Renew { host: incarnation.host, asked_at: now_ms });
        }
        match incarnation.reading.filter(|(_, at_ms)| *at_ms <= now_ms) {
            Some((Reading::Loading, _)) => self.calls.push_back(incarnation.load(now_ms)),
            Some((Reading::Confirming, _)) => self.send_follow(Some(Reading::Confirming)),
            Some((Reading::Behind, _)) => self.send_follow(None),
            None => {}
        }
        if is_due(self.recovery_due()) {
            self.say_recovered();
        }
        if is_due(self.append_due()) {
            self.append_again();
        }
    }

    /// The latest time to call [`Member::tick`], in milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let incarnation = self.incarnation.as_ref();
        let end = incarnation.map(|incarnation| incarnation.deadline().kill_at);
        if self.cut {
            return end;
        }
        let clients = self.read_due();
        let renew = incarnation.and_then(|incarnation| incarnation.renew);
        let read = incarnation.and_then(|incarnation| Some(incarnation.reading?.1));
        let (again, recovery) = (self.append_due(), self.recovery_due());
        [end, clients, self.register, renew, read, again, recovery].into_iter().flatten().min()
    }

    /// Requests the batches after the last one read. With [`Reading::Confirming`], appends nothing
    /// until the engine confirms that the log still contains everything read so far.
    fn send_follow(&mut self, reading: Option<Reading>) {
        let now_ms = self.now.boot_ms;
        if let Some(it) = self.incarnation.as_mut().filter(|it| it.is_read) {
            it.reading = reading.map(|reading| (reading, now_ms + it.timing.renewal_ms));
            self.calls.push_back(Call::Follow { after: it.chain.last });
        }
    }

    /// Whether this host has read everything that was in the log when the engine became reachable
    /// again. A grant read before may belong to a history that was lost since.
    pub(crate) fn is_current(&self) -> bool {
        self.incarnation.as_ref().is_some_and(|it| {
            it.is_read && it.reconnected_ms.is_none() && it.chain.link.position >= it.head_then
        })
    }

    /// When to send the batch in flight again: once it has been unanswered for long.
    fn append_due(&self) -> Option<u64> {
        let it = self.incarnation.as_ref().filter(|it| it.is_settled())?;
        let asked_ms = self.writer.in_flight.as_ref()?.asked_ms;
        Some(asked_ms.map_or(0, |asked_ms| asked_ms + it.timing.renewal_ms))
    }

    fn append_again(&mut self) {
        let Some(in_flight) = self.writer.in_flight.as_mut() else { return };
        in_flight.asked_ms = Some(self.now.boot_ms);
        if in_flight.echoed {
            self.writer.unanswered();
        } else {
            self.calls.push_back(Call::Append(in_flight.append.clone()));
        }
    }

    fn renewed(&mut self, (asked_ms, ttl_ms): (u64, u64), head: Position, alive: &[Alive]) {
        let (now_ms, read) = (self.now.boot_ms, self.read_to());
        let Some(incarnation) = &mut self.incarnation else { return };
        let since_ms = asked_ms;
        #[cfg(test)]
        let since_ms =
            crate::sim::unless_broken(crate::sim::Rule::RenewalsCountWhenSent, since_ms, now_ms);
        // An answer to an earlier incarnation's call.
        if since_ms < incarnation.since_ms {
            return;
        }
        match self.settings.check(ttl_ms) {
            Ok(timing) => incarnation.timing = timing,
            // Other hosts may declare it gone before it would stop its commands.
            Err(error) => {
                let why = format!("it makes the TTL too short: {error}");
                return self.lose(LostWhy::Fenced { why });
            }
        }
        incarnation.since_ms = since_ms;
        incarnation.renewed_ms = Some(asked_ms);
        incarnation.head = incarnation.head.max(head);
        if incarnation.reconnected_ms.is_some_and(|since_ms| asked_ms >= since_ms) {
            incarnation.reconnected_ms = None;
            incarnation.head_then = head;
        }
        if read < head {
            let at_ms = now_ms + incarnation.timing.renewal_ms / 4;
            incarnation.reading.get_or_insert((Reading::Behind, at_ms));
        }
        if self.standing == Standing::Member {
            self.deadline = incarnation.deadline();
        }
        self.failure_detector.look(now_ms, alive);
        match self.standing {
            Standing::LabelInUse { .. } => self.decide_how_to_join(),
            Standing::Member => {
                for &host in self.failure_detector.seen.keys() {
                    let evidence = self.failure_detector.evidence(host, asked_ms);
                    if let Some(evidence) = evidence.filter(|_| !self.is_us(host)) {
                        self.writer.push_end(Ends { host, evidence });
                    }
                }
                self.end_the_unknown(asked_ms, alive);
            }
            _ => {}
        }
        self.store_due();
    }

    /// Ends the incarnations of the log that are missing from the engine's table of hosts, which an
    /// operator must have emptied. If such a host lives, it finds that out at its next renewal, and
    /// its commands have ended when its TTL has passed.
    fn end_the_unknown(&mut self, asked_ms: u64, alive: &[Alive]) {
        let has_read_all = |it: &&Incarnation| it.is_settled() && it.chain.link.position >= it.head;
        let Some(incarnation) = self.incarnation.as_ref().filter(has_read_all) else { return };
        let is_unknown = |host: &HostId| {
            *host != incarnation.host && alive.iter().all(|alive| alive.host != *host)
        };
        let unknown: Vec<_> = incarnation.chain.seats.keys().copied().filter(is_unknown).collect();
        self.unknown_since.retain(|host, _| unknown.contains(host));
        let silent_ms = silence_ms(self.longest_ttl_ms.max(incarnation.timing.ttl_ms));
        let now_ms = self.now.boot_ms;
        for host in unknown {
            let since_ms = *self.unknown_since.entry(host).or_insert(now_ms);
            if asked_ms >= since_ms.saturating_add(silent_ms) {
                self.writer.push_end(Ends { host, evidence: Evidence::Unknown });
            }
        }
    }

    fn gone_away(&mut self, outage: Outage) {
        self.calls.clear();
        self.cut = true;
        self.listen_again();
        self.tell_withdrawn();
        if OngoingOutage::note(&mut self.outage, &outage, self.now) {
            self.events.push_back(Event::Away(outage));
        }
    }

    /// Repeats all unanswered calls. The driver gets [`Event::Back`] only when the engine answers:
    /// it may accept the connection and refuse the calls.
    fn come_back(&mut self) {
        self.cut = false;
        self.calls.clear();
        let now_ms = self.now.boot_ms;
        if self.standing == Standing::Registering {
            if self.registering_ms == u64::MAX {
                self.hear();
            } else {
                self.send_register();
            }
        }
        self.writer.unanswered();
        // A snapshot may not have been stored.
        self.snapshot_keeper.storing = false;
        let Some(incarnation) = &mut self.incarnation else { return };
        if self.obstacle.is_none() {
            incarnation.renew = Some(now_ms);
        }
        incarnation.reconnected_ms = Some(now_ms);
        if incarnation.is_loading() {
            self.calls.push_back(incarnation.load(now_ms));
        } else {
            self.send_follow(Some(Reading::Confirming));
        }
        if let Some(in_flight) = self.writer.in_flight.as_mut() {
            // Sent again as soon as the log is known to be the one that was read.
            in_flight.asked_ms = None;
        }
    }
}
