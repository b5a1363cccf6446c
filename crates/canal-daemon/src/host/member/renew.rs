//! Renewals, deadlines, and the repetition of calls.

use crate::host::failure_detector::SILENCE;
use crate::host::incarnation::is_due;
use crate::host::{Event, LostWhy, Member, Standing};
use canal_core::HostId;
use canal_log::engine::{Alive, Append, Call, Ends, Evidence, Outage, Position};

impl Member {
    /// Performs everything that is due, and gives up an incarnation that was not renewed in time.
    pub(in crate::host) fn on_time(&mut self) {
        let now_ms = self.now.boot_ms;
        if let Some(incarnation) = &self.incarnation
            && now_ms >= incarnation.deadlines().kill_at
        {
            let since_ms = incarnation.since_ms;
            self.lose(LostWhy::NotRenewed { since_ms });
        }
        self.read_on_time();
        if self.cut {
            return;
        }
        if self.standing == Standing::Registering && is_due(self.register, now_ms) {
            self.tell_withdrawn();
            self.send_register();
        }
        let Some(incarnation) = &mut self.incarnation else { return };
        let patience_ms = incarnation.timing.renewal_ms;
        if is_due(incarnation.renew, now_ms) {
            incarnation.renew = Some(now_ms + patience_ms);
            self.calls.push_back(Call::Renew { host: incarnation.host, asked_at: now_ms });
        }
        if is_due(incarnation.loading, now_ms) {
            self.calls.push_back(incarnation.load(now_ms));
        } else if is_due(incarnation.confirming, now_ms) {
            self.confirm_log();
        } else if incarnation.is_settled() && is_due(incarnation.behind, now_ms) {
            self.send_follow();
        }
        self.recover_on_time();
        self.append_again();
    }

    /// The latest time to call [`Member::tick`], in milliseconds of CLOCK_BOOTTIME.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<u64> {
        let incarnation = self.incarnation.as_ref();
        let end = incarnation.map(|incarnation| incarnation.deadlines().kill_at);
        if self.cut {
            return end;
        }
        let clients = self.read_due();
        let registering = self.standing == Standing::Registering;
        let register = self.register.filter(|_| registering);
        let renew = incarnation.and_then(|incarnation| incarnation.renew);
        let read = incarnation.and_then(|incarnation| {
            incarnation.loading.or(incarnation.confirming).or(incarnation.behind)
        });
        let settled = incarnation.filter(|incarnation| incarnation.is_settled());
        let again = self.writer.in_flight().zip(settled);
        let again = again.map(|(in_flight, incarnation)| {
            in_flight.asked_ms.unwrap_or(0) + incarnation.timing.renewal_ms
        });
        let recovered = self.recovered_at().filter(|_| self.may_say_recovered());
        [end, clients, register, renew, read, again, recovered].into_iter().flatten().min()
    }

    /// Requests the batches after the last one read.
    fn send_follow(&mut self) {
        let Some((incarnation, chain)) = self.incarnation.as_mut().zip(self.chain.as_ref()) else {
            return;
        };
        incarnation.behind = None;
        self.calls.push_back(Call::Follow { after: chain.last() });
    }

    /// Like [`Self::send_follow`], but appends nothing until the engine confirms that the log still
    /// contains everything read so far.
    fn confirm_log(&mut self) {
        if self.chain.is_some()
            && let Some(incarnation) = &mut self.incarnation
        {
            incarnation.confirming = Some(self.now.boot_ms + incarnation.timing.renewal_ms);
        }
        self.send_follow();
    }

    /// Whether this host has read everything that was in the log when the engine became reachable
    /// again. A grant read before may belong to a history that was lost since.
    #[must_use]
    pub(crate) fn is_current(&self) -> bool {
        let Some((incarnation, chain)) = self.incarnation.as_ref().zip(self.chain.as_ref()) else {
            return false;
        };
        incarnation.reconnected_ms.is_none() && chain.link().position >= incarnation.head_then
    }

    /// Sends the next batch if one can be sent.
    pub(in crate::host) fn append_next(&mut self) {
        let ready = self.standing == Standing::Member && !self.cut;
        let Some((incarnation, chain)) = self.incarnation.as_ref().zip(self.chain.as_ref()) else {
            return;
        };
        if !ready || !incarnation.is_settled() {
            return;
        }
        let now = (self.now.boot_ms, self.now.unix);
        let next = self.writer.next(incarnation.host, chain.link(), now);
        self.calls.extend(next.map(Call::Append));
    }

    /// Repeats the batch in flight if it has been unanswered for long.
    fn append_again(&mut self) {
        let Some(incarnation) =
            self.incarnation.as_ref().filter(|incarnation| incarnation.is_settled())
        else {
            return;
        };
        let (now_ms, patience_ms) = (self.now.boot_ms, incarnation.timing.renewal_ms);
        let Some(in_flight) = self.writer.in_flight_mut() else { return };
        if in_flight.asked_ms.is_some_and(|asked_ms| now_ms < asked_ms + patience_ms) {
            return;
        }
        in_flight.asked_ms = Some(now_ms);
        if in_flight.echoed {
            self.writer.unanswered();
        } else {
            let append: Append = in_flight.append.clone();
            self.calls.push_back(Call::Append(append));
        }
    }

    pub(in crate::host) fn renewed(
        &mut self,
        (asked_ms, ttl_ms): (u64, u64),
        head: Position,
        alive: &[Alive],
    ) {
        let (now_ms, read) = (self.now.boot_ms, self.read_to());
        let Some(incarnation) = &mut self.incarnation else { return };
        let since_ms = asked_ms;
        #[cfg(test)]
        let since_ms = match crate::sim::is_broken(crate::sim::Rule::RenewalsCountWhenSent) {
            true => now_ms,
            false => since_ms,
        };
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
        if incarnation.is_settled() && read < head && incarnation.behind.is_none() {
            incarnation.behind = Some(now_ms + incarnation.timing.renewal_ms / 4);
        }
        if self.standing == Standing::Member {
            self.deadlines = incarnation.deadlines();
        }
        self.failure_detector.look(now_ms, alive);
        match self.standing {
            Standing::LabelInUse { .. } => self.decide_how_to_join(),
            Standing::Member => {
                self.end_the_gone(asked_ms);
                self.end_the_unknown(asked_ms, alive);
            }
            _ => {}
        }
        self.store_due();
    }

    /// Ends the other incarnations that an answer shows to be gone.
    fn end_the_gone(&mut self, asked_ms: u64) {
        let us = self.host();
        let others: Vec<HostId> =
            self.failure_detector.seen().map(|seen| seen.alive.host).collect();
        for host in others.into_iter().filter(|host| Some(*host) != us) {
            if let Some(evidence) = self.failure_detector.evidence(host, asked_ms) {
                self.writer.push_end(Ends { host, evidence });
            }
        }
    }

    /// Ends the incarnations of the log that are missing from the engine's table of hosts, which an
    /// operator must have emptied. If such a host lives, it finds that out at its next renewal, and
    /// its commands have ended when its TTL has passed.
    fn end_the_unknown(&mut self, asked_ms: u64, alive: &[Alive]) {
        let us = self.host();
        let Some((chain, incarnation)) = self.chain.as_ref().zip(self.incarnation.as_ref()) else {
            return;
        };
        let has_read_all = incarnation.is_settled() && chain.link().position >= incarnation.head;
        let is_unknown =
            |host: &HostId| Some(*host) != us && alive.iter().all(|alive| alive.host != *host);
        let unknown: Vec<HostId> = match has_read_all {
            true => chain.seated().filter(is_unknown).collect(),
            false => return,
        };
        self.unknown_since.retain(|host, _| unknown.contains(host));
        let ttl_ms = self.longest_ttl_ms.max(incarnation.timing.ttl_ms);
        let silent_ms = ttl_ms.saturating_mul(SILENCE).div_ceil(1000);
        let now_ms = self.now.boot_ms;
        for host in unknown {
            let since_ms = *self.unknown_since.entry(host).or_insert(now_ms);
            if asked_ms >= since_ms.saturating_add(silent_ms) {
                self.writer.push_end(Ends { host, evidence: Evidence::Unknown });
            }
        }
    }

    pub(in crate::host) fn gone_away(&mut self, outage: Outage) {
        self.calls.clear();
        self.cut = true;
        self.listen_again();
        self.tell_withdrawn();
        if self.outage.as_ref() != Some(&outage) {
            self.events.push_back(Event::Away(outage.clone()));
            self.outage = Some(outage);
        }
    }

    /// Repeats all unanswered calls. The driver gets [`Event::Back`] only when the engine answers:
    /// it may accept the connection and refuse the calls.
    pub(in crate::host) fn come_back(&mut self) {
        self.cut = false;
        self.forget_calls();
        let now_ms = self.now.boot_ms;
        if self.standing == Standing::Registering {
            if self.registering_ms == u64::MAX {
                self.hear();
            } else {
                self.send_register();
            }
        }
        self.writer.unanswered();
        self.snapshot_keeper.ask_again();
        let Some(incarnation) = &mut self.incarnation else { return };
        if self.obstacle.is_none() {
            incarnation.renew = Some(now_ms);
        }
        incarnation.reconnected_ms = Some(now_ms);
        if incarnation.loading.is_some() {
            self.calls.push_back(incarnation.load(now_ms));
        } else {
            self.confirm_log();
        }
        if let Some(in_flight) = self.writer.in_flight_mut() {
            // Sent again as soon as the log is known to be the one that was read.
            in_flight.asked_ms = None;
        }
    }
}
