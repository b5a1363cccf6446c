//! Reads the log: from its beginning or a snapshot, batch by batch, and again after a gap.

use crate::membership::batch_chain::{Chain, Step, Trouble, Trust};
use crate::membership::incarnation::{Incarnation, Reading};
use crate::membership::snapshot_keeper::{Kept, read_kept};
use crate::membership::{Event, Known, LostWhy, Member, Standing};
use canal_core::{Change, Entry, Revision};
use canal_log::engine::{Call, Outage, Placed, Position, Stored};

impl Member {
    pub(in crate::membership) fn loaded(&mut self, snapshot: Option<Stored>, batches: &[Placed]) {
        // Applies even if no load is expected: the batches that follow continue from this snapshot.
        let Some(incarnation) = self.incarnation.as_mut() else { return };
        incarnation.has_read(Reading::Loading);
        let epoch = incarnation.epoch;
        let kept = match snapshot.map(|stored| self.read_snapshot(&stored, epoch)).transpose() {
            Ok(kept) => kept,
            Err(why) => {
                let why = format!("cannot use the snapshot in the engine: {why}");
                return self.stall(Outage::refused(why, Some(SAME_VERSION)));
            }
        };
        let Some(incarnation) = self.incarnation.as_mut().filter(|it| !it.is_read) else {
            if self.go_on(kept, epoch, batches) && self.read(batches, Trust::Loaded) {
                self.unstall();
            }
            return;
        };
        match kept {
            Some(kept) => self.restore(kept),
            None => {
                incarnation.is_read = true;
                self.events.push_back(Event::Restore(Box::default()));
            }
        }
        if self.read(batches, Trust::Loaded) {
            self.decide_how_to_join();
        }
    }

    fn read_snapshot(&self, stored: &Stored, epoch: u128) -> Result<Kept, String> {
        let kept = read_kept(&stored.body).map_err(|error| error.to_string())?;
        if !kept.chain.is_of(epoch) {
            return Err("it belongs to another history of the log".to_owned());
        }
        if kept.chain.link.position != stored.position {
            return Err("the engine stores it under a position other than its own".to_owned());
        }
        Ok(kept)
    }

    fn restore(&mut self, Kept { chain, hash, table }: Kept) {
        let Some(incarnation) = &mut self.incarnation else { return };
        (incarnation.chain, incarnation.is_read) = (chain, true);
        if let Err(differs) = self.snapshot_keeper.know(table.globals.revision, hash) {
            return self.differs(differs);
        }
        self.events.push_back(Event::Restore(table.into()));
    }

    /// Continues after the log was loaded again, if it contains everything read before. Returns
    /// whether it does.
    fn go_on(&mut self, kept: Option<Kept>, epoch: u128, batches: &[Placed]) -> bool {
        let Some(mine) = self.incarnation.as_ref().map(|it| it.chain.link) else { return false };
        let mut chain = kept.as_ref().map_or_else(|| Chain::new(epoch), |kept| kept.chain.clone());
        if let Some(kept) = kept.filter(|kept| kept.chain.link.position > mine.position) {
            if chain.knows(mine) == Known::Same {
                return self.skip_to(kept);
            }
        } else {
            let mut earlier = batches.iter().take_while(|placed| placed.position <= mine.position);
            // A batch that cannot be read now was not read before either.
            let _ = earlier.try_for_each(|placed| chain.read(placed, Trust::Loaded).map(drop));
            if chain.link == mine {
                return true;
            }
        }
        self.rewritten();
        false
    }

    /// Continues from a snapshot that covers unread batches. Returns whether the incarnation still
    /// exists.
    fn skip_to(&mut self, kept: Kept) -> bool {
        let seat = self.incarnation.as_ref().and_then(|it| kept.chain.seats.get(&it.host).copied());
        if seat.is_none() && self.standing == Standing::Member {
            let why = "it ended while this host could not read the engine".to_owned();
            self.lose(LostWhy::Fenced { why });
            return false;
        }
        let unheard = kept.table.globals.recovery.iter().flat_map(|recovery| &recovery.unheard);
        if unheard.into_iter().any(|host| self.is_us(*host)) {
            self.present_again();
        }
        self.restore(kept);
        let Some(seat) = seat else { return self.incarnation.is_some() };
        let tickets = self.writer.confirmed(seat.sequence);
        for (revision, ticket) in (seat.first.0..).zip(tickets) {
            if let Some(ticket) = ticket {
                self.events.push_back(Event::Absorbed { ticket, revision: Revision(revision) });
            }
        }
        if self.standing == Standing::Joining {
            self.joined();
        }
        self.incarnation.is_some()
    }

    pub(in crate::membership) fn batches(&mut self, batches: &[Placed]) {
        // While the log is loading, the next batches do not continue those read before.
        let Some(it) = self.incarnation.as_mut().filter(|it| !it.is_loading()) else { return };
        it.has_read(Reading::Confirming);
        self.read(batches, Trust::Live);
        if let Some(incarnation) = &mut self.incarnation
            && incarnation.chain.link.position >= incarnation.head
        {
            incarnation.has_read(Reading::Behind);
        }
        self.store_due();
    }

    /// Reads batches until one cannot be read. Returns whether all were read.
    fn read(&mut self, batches: &[Placed], trust: Trust) -> bool {
        batches.iter().all(|placed| self.read_one(placed, trust))
    }

    fn read_one(&mut self, placed: &Placed, trust: Trust) -> bool {
        let Some(it) = self.incarnation.as_mut().filter(|it| it.is_read) else { return false };
        let step = match it.chain.read(placed, trust) {
            Ok(Step::Divergent) | Err(Trouble::Gap(_)) if trust == Trust::Live => {
                self.reload();
                return false;
            }
            Ok(step) => step,
            Err(trouble) => {
                let is_unreadable = matches!(trouble, Trouble::Unreadable(_));
                let hint = is_unreadable.then_some(SAME_VERSION);
                self.stall(Outage::refused(trouble.to_string(), hint));
                return false;
            }
        };
        let is_ours = self.is_us(placed.host);
        match step {
            Step::Known => true,
            Step::Divergent if is_ours => {
                self.rewritten();
                false
            }
            Step::Void | Step::Divergent => self.after_batch(),
            Step::Counts { .. } if is_ours && self.writer.is_foreign(placed) => {
                let why = "another process is appending to the log in its name".to_owned();
                self.lose(LostWhy::Fenced { why });
                false
            }
            Step::Counts { first, entries } => {
                self.apply(placed, first, entries) && self.after_batch()
            }
        }
    }

    /// Delivers the entries of a batch. Returns whether the incarnation still exists after it.
    fn apply(&mut self, batch: &Placed, first: Revision, entries: Vec<Entry>) -> bool {
        let us = self.incarnation.as_ref().map(|incarnation| incarnation.host);
        let ours = us == Some(batch.host);
        let tickets = if ours { self.writer.confirmed(batch.sequence) } else { Vec::new() };
        let tickets = tickets.into_iter().chain(std::iter::repeat(None));
        let (mut end, mut differs) = (None, None);
        for ((revision, ticket), entry) in (first.0..).zip(tickets).zip(entries) {
            let revision = Revision(revision);
            match &entry.change {
                Change::HostGone { host: old, by } | Change::HostAdopt { old, new: by }
                    if Some(*old) == us =>
                {
                    end = Some(*by);
                    // The driver looks up our holds before the table loses them. If this host
                    // leaves, it has none.
                    if !self.leaving || Some(*by) != us {
                        self.tell_lost(LostWhy::Gone { by: *by });
                    }
                }
                Change::HostJoin { host, label, identity } => {
                    self.note_join(*host, label, identity);
                }
                Change::Era { .. } => self.present_again(),
                Change::Checkpoint { revision, table } => {
                    differs = differs.or(self.snapshot_keeper.claimed(*revision, table).err());
                }
                _ => {}
            }
            self.events.push_back(Event::Entry { revision, entry, ticket });
        }
        if let Some(differs) = differs {
            self.differs(differs);
            return false;
        }
        if let Some(by) = end {
            if self.leaving && Some(by) == us {
                // The intended end: nothing is lost.
                self.begin_anew();
                self.leaving = false;
                self.standing = Standing::Idle;
            } else {
                self.give_up();
            }
            return false;
        }
        if ours && self.standing == Standing::Joining {
            self.joined();
        }
        true
    }

    fn after_batch(&mut self) -> bool {
        let Some(incarnation) = &self.incarnation else { return false };
        if incarnation.chain.batches.is_multiple_of(self.settings.snapshot_batches.max(1)) {
            let chain = Box::new(incarnation.chain.clone());
            self.events.push_back(Event::SnapshotWanted(chain));
        }
        self.store_due();
        true
    }

    /// Stores a snapshot of this host if this host is the first member, once other hosts have had
    /// time to read what it contains, and only while it is known that the log is still the one from
    /// which the snapshot was made.
    pub(in crate::membership) fn store_due(&mut self) {
        let may_store = |it: &&Incarnation| it.is_settled() && !self.cut;
        let Some(incarnation) = self.incarnation.as_ref().filter(may_store) else { return };
        let chain = &incarnation.chain;
        // The incarnation that joined first, of those that have not ended.
        if self.host().is_none_or(|us| chain.seats.keys().next() != Some(&us)) {
            return;
        }
        let ttl_ms = self.failure_detector.longest_ttl_ms(incarnation.timing.ttl_ms);
        let due = self.snapshot_keeper.due(chain, self.now.boot_ms, ttl_ms);
        self.calls.extend(due.map(Call::Store));
    }

    pub(in crate::membership) fn stored(&mut self, position: Position) {
        if let Some(checkpoint) = self.snapshot_keeper.stored(position)
            && self.standing == Standing::Member
        {
            self.writer.push(checkpoint, self.now.unix, None);
        }
    }

    /// Loads the log again: without that, the next batches cannot be read.
    pub(in crate::membership) fn reload(&mut self) {
        if let Some(incarnation) = self.incarnation.as_mut().filter(|it| !it.is_loading()) {
            self.calls.push_back(incarnation.load(self.now.boot_ms));
        }
    }

    pub(in crate::membership) fn rewritten(&mut self) {
        if self.incarnation.as_ref().is_some_and(|incarnation| incarnation.is_read) {
            self.memory.lost = true;
            self.lose(LostWhy::Rewritten);
        }
    }
}

const SAME_VERSION: &str = "run the same version of canal on all hosts of one engine";
