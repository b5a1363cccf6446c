//! Rest: a host with nothing at stake asks the engine to announce no batches.
//!
//! PostgreSQL wakes each host that listens for each batch. A host that rests reads once per
//! renewal, because the answer shows the length of the log, and before it serves a client.
//!
//! Invariant: a host that rests serves a client only after it has read every batch that was in the
//! log when the client called, unless the engine is away or silent.

use crate::membership::{Event, Member, Now, Standing};
use canal_log::engine::Call;

/// How long clients wait for a read before the engine counts as silent, in milliseconds.
const SILENT_MS: u64 = 500;

/// What the engine announces to this host.
#[derive(Debug, Default)]
pub(in crate::membership) struct Attention {
    /// Whether the engine announces no batches. A new connection gets announcements.
    rests: bool,
    /// Whether this host needs no announcements, and when it last needed them.
    may_rest: bool,
    needed_ms: u64,
    /// Whether a call is in flight.
    asked: bool,
    /// Set while clients wait for a read.
    read: Option<PendingRead>,
    /// Whether a read has ended in this turn.
    pub(in crate::membership) has_read: bool,
    /// Whether the last read took too long.
    is_silent: bool,
    /// How many reads have ended in time.
    #[cfg(test)]
    pub(in crate::membership) reads: u64,
}

/// A read that clients wait for.
#[derive(Debug)]
struct PendingRead {
    until_ms: u64,
    asked: bool,
}

impl Member {
    /// Takes whether something on this host depends on batches of other hosts. Call it at the end
    /// of each turn, before [`Self::take_calls`]. A host that needed none for one renewal rests.
    pub(crate) fn attend(&mut self, now: Now, is_needed: bool) {
        self.now = now;
        self.attention.has_read = false;
        self.attention.may_rest = !is_needed;
        if is_needed {
            self.attention.needed_ms = now.boot_ms;
        }
    }

    /// Whether this host may serve a client now. If not, call [`Self::read_up`].
    pub(crate) fn is_present(&self) -> bool {
        let Attention { rests, has_read, is_silent, .. } = self.attention;
        let cannot_read = is_silent || self.cut || self.obstacle.is_some();
        !rests || has_read || cannot_read || self.standing != Standing::Member
    }

    /// Reads the log for the clients that call. [`Event::Present`] follows.
    pub(crate) fn read_up(&mut self, now: Now) {
        self.now = now;
        let until_ms = now.boot_ms + SILENT_MS;
        self.attention.read.get_or_insert(PendingRead { until_ms, asked: false });
        #[cfg(test)]
        if crate::sim::is_broken(crate::sim::Rule::RestingHostsReadFirst) {
            self.has_read_up();
        }
    }

    /// The number of reads for clients that have ended in time, and whether one is pending.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> (u64, bool) {
        (self.attention.reads, self.attention.read.is_some())
    }

    /// Asks for the announcements that this host needs, and for the read that its clients wait for.
    pub(in crate::membership) fn attend_next(&mut self) {
        let Some(incarnation) = &self.incarnation else { return };
        let attention = &mut self.attention;
        let may_ask = self.standing == Standing::Member && incarnation.is_settled() && !self.cut;
        if !may_ask || attention.asked {
            return;
        }
        let since_ms = attention.needed_ms.max(self.registering_ms);
        let rest_at = since_ms.saturating_add(incarnation.timing.renewal_ms);
        let rests = attention.may_rest && (attention.rests || self.now.boot_ms >= rest_at);
        if rests != attention.rests || attention.read.is_some() {
            attention.asked = true;
            attention.read.iter_mut().for_each(|read| read.asked = true);
            self.calls.push_back(Call::Attend { listens: !rests });
        }
    }

    /// Notes whether the engine announces batches now. All batches until then have been read.
    pub(in crate::membership) fn attends(&mut self, listens: bool) {
        let is_settled = self.incarnation.as_ref().is_some_and(|it| it.is_settled());
        let attention = &mut self.attention;
        attention.asked = false;
        attention.is_silent = false;
        attention.rests = !listens;
        let Some(read) = attention.read.as_mut().filter(|read| read.asked) else { return };
        if is_settled {
            self.has_read_up();
        } else {
            // The log is loaded again first.
            read.asked = false;
        }
    }

    fn has_read_up(&mut self) {
        #[cfg(test)]
        {
            self.attention.reads += 1;
        }
        self.end_read();
    }

    /// Serves the clients that wait for a read.
    pub(in crate::membership) fn end_read(&mut self) {
        if self.attention.read.take().is_some() {
            self.events.push_back(Event::Present);
        }
    }

    /// Until when clients wait for a read, in milliseconds of CLOCK_BOOTTIME.
    pub(in crate::membership) fn read_due(&self) -> Option<u64> {
        self.attention.read.as_ref().map(|read| read.until_ms)
    }

    /// Serves clients without the read if the engine is silent.
    pub(in crate::membership) fn read_on_time(&mut self) {
        if self.read_due().is_some_and(|until_ms| until_ms <= self.now.boot_ms) {
            self.attention.is_silent = true;
            self.end_read();
        }
    }

    /// Handles the loss of the connection. The next one gets announcements.
    pub(in crate::membership) fn listen_again(&mut self) {
        self.end_read();
        self.attention = Attention {
            needed_ms: self.now.boot_ms,
            #[cfg(test)]
            reads: self.attention.reads,
            ..Attention::default()
        };
    }
}
