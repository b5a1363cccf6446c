//! A host's part in the [recovery](Recovery) of a table whose log may have lost entries. It reports
//! which tokens its clients received, and proposes that the longest TTL has passed.

use crate::membership::failure_detector::silence_ms;
use crate::membership::incarnation::{Incarnation, Recovering};
use crate::membership::{Known, Mark, Member, Standing};
use canal_core::{Change, Recovery, Token};

impl Member {
    /// Records that a client on this host receives a token.
    pub(crate) fn tell(&mut self, token: Token) {
        self.memory.told = self.memory.told.max(token);
    }

    fn loaded_incarnation(&self) -> Option<&Incarnation> {
        self.incarnation.as_ref().filter(|incarnation| incarnation.is_read)
    }

    /// How far the log was read; for [`Self::knows`], also by a later daemon of this host.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.loaded_incarnation().map(|incarnation| incarnation.chain.mark())
    }

    /// Whether the history read at a mark is part of the current history.
    pub(crate) fn knows(&self, mark: Mark) -> Known {
        self.loaded_incarnation().map_or(Known::TooOld, |it| it.chain.knows_mark(mark))
    }

    /// Takes the recovery of the table, and the longest TTL in the table. Call it after each
    /// [`crate::membership::Event::Entry`] and [`crate::membership::Event::Restore`] that changed
    /// them.
    pub(crate) fn recovers(&mut self, recovery: Option<&Recovery>, longest_ttl_ms: u64) {
        self.longest_ttl_ms = longest_ttl_ms;
        let from = recovery.and_then(|recovery| recovery.ttl_from);
        let same = self.recovering.filter(|it| Some(it.from) == from);
        // The wait begins now: the entry was in the log before this host read it.
        let since_ms = self.now.boot_ms;
        self.recovering = same.or(from.map(|from| Recovering { from, since_ms, said: false }));
    }

    /// When the longest TTL will have passed since the entry from which the recovery counts, in
    /// milliseconds of CLOCK_BOOTTIME.
    pub(crate) fn recovered_at(&self) -> Option<u64> {
        let Recovering { since_ms, .. } = self.recovering?;
        let own_ms = self.incarnation.as_ref().map_or(self.settings.ttl_ms, |it| it.timing.ttl_ms);
        let longest_ms = self.longest_ttl_ms.max(own_ms);
        let wait_ms = silence_ms(self.failure_detector.longest_ttl_ms(longest_ms));
        #[cfg(test)]
        let wait_ms = crate::sim::unless_broken(crate::sim::Rule::RecoveriesWait, wait_ms, 0);
        Some(since_ms.saturating_add(wait_ms))
    }

    /// Whether a change proposed now comes before this host's own end.
    pub(in crate::membership) fn may_propose(&self) -> bool {
        self.standing == Standing::Member && !self.leaving
    }

    /// When to propose that the longest TTL has passed, unless this host has already.
    pub(in crate::membership) fn recovery_due(&self) -> Option<u64> {
        let waits = self.recovering.is_some_and(|recovering| !recovering.said);
        self.recovered_at().filter(|_| waits && self.may_propose())
    }

    /// Proposes that the longest TTL has passed.
    pub(in crate::membership) fn say_recovered(&mut self) {
        if let Some(recovering) = &mut self.recovering {
            recovering.said = true;
            let from = recovering.from;
            self.writer.push(Change::TtlPassed { from }, self.now.unix, None);
        }
    }

    /// Reports the received tokens again, because the log names another era.
    pub(in crate::membership) fn present_again(&mut self) {
        let incarnation = self.incarnation.as_ref().filter(|_| self.may_propose());
        if let Some(Incarnation { host, timing, .. }) = incarnation {
            let present = self.memory.present(*host, timing.ttl_ms, self.now.unix);
            self.writer.push(present, self.now.unix, None);
        }
    }

    /// Reports the received tokens again if the log lost entries that an earlier incarnation or
    /// daemon had read, unless the host has already reported that. Called when the host has joined
    /// and has read the log up to that point, because only then is the loss certain.
    pub(in crate::membership) fn present_what_was_lost(&mut self) {
        let Some(mark) = self.memory.mark.take() else {
            self.memory.lost = false;
            return;
        };
        let said = std::mem::take(&mut self.memory.lost);
        if self.knows(mark) == Known::Other && !said {
            self.memory.lost = true;
            self.present_again();
            self.memory.lost = false;
        }
    }
}
