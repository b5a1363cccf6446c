//! Joins. An incarnation needs a label that no other host has. It adopts an earlier incarnation of
//! this host that still counts, or joins once everything that an earlier one left is dead.

use std::collections::BTreeMap;

use crate::membership::batch_chain::Chain;
use crate::membership::failure_detector::silence_ms;
use crate::membership::incarnation::{Incarnation, Others};
use crate::membership::proposal_queue::entry;
use crate::membership::ttl::too_short;
use crate::membership::{Event, Member, Standing};
use canal_core::{Change, HostId};
use canal_log::engine::{Call, Claimant, Ends, Evidence, Identity, Outage, Sign};

/// This host's knowledge of an incarnation with its label.
enum Claim {
    Gone(Option<Evidence>),
    Lives,
    /// With the first sign seen of it.
    Unknown(Option<Sign>),
}

impl Member {
    pub(in crate::membership) fn registered(
        &mut self,
        (host, ttl_ms): (HostId, u64),
        asked_at: u64,
        epoch: u128,
        others: Vec<Claimant>,
    ) {
        if self.standing != Standing::Registering || asked_at < self.registering_ms {
            return;
        }
        self.memory.lost |= self.memory.epoch.is_some_and(|before| before != epoch);
        self.memory.epoch = Some(epoch);
        let timing = match self.settings.check(ttl_ms) {
            Ok(timing) => timing,
            Err(error) => {
                let why = format!("the engine grants a TTL other than the requested one: {error}");
                self.hinder(too_short(why));
                self.calls.push_back(Call::Withdraw { host });
                return;
            }
        };
        let others = self.sort(others.into_iter().filter(|other| other.host != host));
        self.register = None;
        let incarnation = self.incarnation.insert(Incarnation {
            host,
            epoch,
            timing,
            since_ms: self.registering_ms,
            renew: Some(self.now.boot_ms),
            others,
            chain: Chain::new(epoch),
            ..Incarnation::default()
        });
        self.standing = Standing::Reading;
        self.calls.push_back(incarnation.load(self.now.boot_ms));
    }

    /// Sorts the incarnations with this host's label that have not ended.
    fn sort(&self, all: impl Iterator<Item = Claimant>) -> Others {
        let (mut others, us) = (Others::default(), &self.identity);
        for Claimant { host, nonce, identity: who } in all {
            let same_place = (&who.label, &who.machine, who.uid, &who.dir)
                == (&us.label, &us.machine, us.uid, &us.dir);
            // Every process of an earlier boot must be gone. Only this place's own record of that
            // boot proves it: machines and containers made from one image have the same machine id,
            // the same folders and often the same name, but each has its own boot.
            let has_rebooted = same_place && who.boot != us.boot && self.boots.contains(&who.boot);
            if has_rebooted || self.lost.contains(&nonce) {
                others.dead.push(host);
            } else if who == *us {
                others.ours.push(host);
            } else {
                others.foreign.insert(host, (described(&who), None));
            }
        }
        others
    }

    /// Joins, if it can decide how. Called when the log was read, and whenever more is known about
    /// the incarnations with this label.
    pub(in crate::membership) fn decide_how_to_join(&mut self) {
        let Some(Incarnation { chain, others, .. }) = &mut self.incarnation else { return };
        let has_joined = |host: &HostId| chain.seats.contains_key(host);
        // The label belongs to this host while one of its joined incarnations has it. Incarnations
        // that have not joined wait for it.
        if others.ours.iter().chain(&others.dead).any(has_joined) {
            others.foreign.retain(|host, _| has_joined(host));
        }
        let adopt = others.ours.iter().copied().filter(has_joined).max();
        let mut waiting = BTreeMap::new();
        for (host, (who, first)) in others.foreign.clone() {
            match self.claim(host, first) {
                Claim::Gone(None) => {}
                Claim::Gone(Some(evidence)) => self.writer.push_end(Ends { host, evidence }),
                Claim::Lives => {
                    let why = format!("another host has the name `{}`: {who}", self.identity.label);
                    let hint = "give this host another name with --host";
                    self.hinder(Outage::refused(why, Some(hint)));
                    self.label_taken_by = Some(host);
                    return;
                }
                Claim::Unknown(sign) => {
                    waiting.insert(host, (who, sign));
                }
            }
        }
        let first = waiting.keys().next().copied();
        if let Some(incarnation) = &mut self.incarnation {
            incarnation.others.foreign = waiting;
        }
        if let Some(by) = first {
            self.standing = Standing::LabelInUse { by };
        } else if adopt.is_some() {
            self.join(adopt);
        } else {
            self.standing = Standing::Clearing;
            self.events.push_back(Event::Clear);
        }
    }

    /// `first` is the first sign seen of the incarnation.
    fn claim(&self, host: HostId, first: Option<Sign>) -> Claim {
        let Some(incarnation) = &self.incarnation else { return Claim::Unknown(first) };
        let seen = self.failure_detector.seen.get(&host);
        let sign = first.or(seen.map(|seen| seen.alive.sign));
        let Some(renewed_ms) = incarnation.renewed_ms else { return Claim::Unknown(sign) };
        let Some(seen) = seen else {
            // It ended. The log shows which incarnation has its place now.
            let has_read = self.read_to() >= incarnation.head;
            return if has_read { Claim::Gone(None) } else { Claim::Unknown(sign) };
        };
        if let Some(evidence) = self.failure_detector.evidence(host, renewed_ms) {
            return Claim::Gone(Some(evidence));
        }
        let silent_ms = silence_ms(seen.alive.ttl_ms);
        let long = self.now.boot_ms >= self.registering_ms.saturating_add(silent_ms);
        let renewed = first.is_some_and(|first| first != seen.alive.sign);
        if renewed || (seen.alive.sign == Sign::Watched && long) {
            return Claim::Lives;
        }
        Claim::Unknown(sign)
    }

    /// Notes a join of another host while this one waits.
    pub(super) fn note_join(&mut self, host: HostId, label: &str, identity: &str) {
        let waits = matches!(self.standing, Standing::LabelInUse { .. } | Standing::Clearing);
        let Some(incarnation) = self.incarnation.as_mut().filter(|_| waits) else { return };
        if label == self.identity.label && host != incarnation.host {
            incarnation.others.foreign.insert(host, (identity.to_owned(), None));
        }
    }

    /// Appends the first batch.
    pub(in crate::membership) fn join(&mut self, adopt: Option<HostId>) {
        let now = self.now;
        let Some(incarnation) = &mut self.incarnation else { return };
        let (new, seen) = (incarnation.host, incarnation.chain.link);
        incarnation.others.adopting = adopt;
        let memory = &mut self.memory;
        memory.lost |= memory.mark.is_some_and(|it| incarnation.chain.contradicts(it));
        let label = self.identity.label.clone();
        let join = Change::HostJoin { host: new, label, identity: described(&self.identity) };
        let adoption = adopt.map(|old| entry(Change::HostAdopt { old, new }, now.unix));
        let present = self.memory.present(new, incarnation.timing.ttl_ms, now.unix);
        let entries = [entry(join, now.unix)].into_iter().chain(adoption);
        let entries = entries.chain([entry(present, now.unix)]).map(|entry| (entry, None));
        let ends = adopt.map(|host| Ends { host, evidence: Evidence::Own });
        self.standing = Standing::Joining;
        let append = self.writer.send(new, entries.collect(), ends, (seen, now.boot_ms));
        if !self.cut && incarnation.is_settled() {
            self.calls.push_back(Call::Append(append));
        } else if let Some(in_flight) = self.writer.in_flight.as_mut() {
            in_flight.asked_ms = None;
        }
    }

    /// Handles the first batch of the incarnation, which is now in the log.
    pub(in crate::membership) fn joined(&mut self) {
        let Some(incarnation) = &mut self.incarnation else { return };
        let adopted = incarnation.others.adopting.take();
        let dead = std::mem::take(&mut incarnation.others.dead);
        self.standing = Standing::Member;
        self.deadline = incarnation.deadline();
        self.events.push_back(Event::Joined { host: incarnation.host, adopted });
        self.obstacle = None;
        self.label_taken_by = None;
        self.setbacks = 0;
        self.present_what_was_lost();
        for host in dead {
            // After an adoption it is unknown whether their commands live: their own TTL decides.
            if adopted.is_none() {
                self.writer.push_end(Ends { host, evidence: Evidence::Own });
            }
        }
    }

    /// Handles the refusal of an end whose evidence does not hold.
    pub(in crate::membership) fn overtaken(&mut self, sequence: u64, ends: Option<Ends>) {
        let Some(ends) = self.writer.overtaken(sequence, ends) else { return };
        self.failure_detector.look_anew(ends.host, self.now.boot_ms);
        if self.standing == Standing::Joining {
            // The incarnation to adopt has ended: its commands no longer have locks.
            if let Some(incarnation) = &mut self.incarnation {
                incarnation.others.ours.clear();
                incarnation.others.adopting = None;
            }
            self.standing = Standing::Clearing;
            self.events.push_back(Event::Clear);
        }
    }
}

/// Describes an identity for people.
fn described(who: &Identity) -> String {
    let Identity { machine, boot, pid_namespace, uid, dir, dir_number, .. } = who;
    let machine = if machine.is_empty() { "unknown" } else { machine };
    format!(
        "uid {uid}, {dir}, machine {machine}, boot {boot}, pid namespace {pid_namespace}, \
         directory number {dir_number}"
    )
}
