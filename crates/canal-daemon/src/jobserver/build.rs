//! Counts the job tokens of one build.
//!
//! Invariant: `out` is at least the number of bytes that the processes of the build can have, apart
//! from bytes that they wrote themselves. Bytes beyond `out` are discarded.

use std::io;
use std::time::{Duration, Instant};

use crate::jobserver::pipes::Pipes;
use crate::jobserver::share::{PATIENCE, Standing};
use canal_core::{Key, Token};

/// The longest time for which the daemon skips a build that did not take its offer.
const PASSED_OVER_MAX: Duration = Duration::from_secs(60);

/// A build with a jobserver.
#[derive(Debug)]
pub(crate) struct Build {
    /// The hold of the build itself.
    pub token: Token,
    pub key: Key,
    /// `None` if the FIFOs were removed while no daemon ran. The build then gets no offers, and all
    /// its tokens count as taken.
    pub(super) pipes: Option<Pipes>,
    /// The number of bytes that the daemon wrote, or is about to write, and has not read back.
    out: usize,
    /// Whether one of these bytes must be written once the decision is recorded.
    pending: bool,
    /// The number of returned bytes that were read and are still counted in `out`.
    returned: usize,
    /// When the daemon made an offer that may still be untaken.
    offered: Option<Instant>,
    /// How long the daemon skips the build if it does not take the next offer.
    patience: Duration,
    /// The time until which the daemon skips the build.
    passed_over_until: Option<Instant>,
    /// The number of its latest offer among those of all builds.
    latest: u64,
    /// Whether the table refuses it a slot in this round.
    pub barred: bool,
}

impl Build {
    pub(crate) fn new(token: Token, key: Key, pipes: Option<Pipes>) -> Self {
        let out = pipes.as_ref().map_or(usize::MAX, Pipes::recorded_out);
        Self {
            token,
            key,
            pipes,
            out,
            pending: false,
            returned: 0,
            offered: None,
            patience: PATIENCE,
            passed_over_until: None,
            latest: 0,
            barred: false,
        }
    }

    /// Reads the tokens that were returned, before a job takes them again from a single FIFO.
    pub(super) fn take_returned(&mut self) {
        if let Some(pipes) = &self.pipes {
            self.returned += pipes.take_returned(usize::from(self.offered.is_some()));
        }
    }

    /// Whether tokens were read that are not counted yet.
    pub(super) fn has_returned(&self) -> bool {
        self.returned > 0
    }

    /// Counts the tokens that were taken and returned. `held` is the number of its tokens in the
    /// table.
    pub(crate) fn count(&mut self, held: usize) {
        self.barred = false;
        self.take_returned();
        let returned = std::mem::take(&mut self.returned);
        let Some(pipes) = &self.pipes else { return };
        // Counted after the read, because each returned token had been taken before.
        let untaken = pipes.untaken();
        let surplus = untaken.saturating_sub(self.out);
        let untaken = untaken - pipes.withdraw(surplus).min(untaken);
        // An offer that is not written yet cannot be taken.
        let taken = self.out.saturating_sub(untaken + usize::from(self.pending));
        if returned > 0 {
            self.set_out(self.out - returned.min(taken));
        }
        if self.offered.is_some() && untaken == 0 && !self.pending {
            (self.offered, self.passed_over_until) = (None, None);
            self.patience = PATIENCE;
        } else if untaken > 0 && self.offered.is_none() {
            // An earlier daemon made the offer.
            self.offered = Some(canal_sys::clock::now());
        }
        // A hold that was released by force no longer has a slot.
        self.withdraw(self.out.saturating_sub(held));
    }

    fn set_out(&mut self, out: usize) {
        self.out = out;
        if let Some(pipes) = &self.pipes
            && let Err(error) = pipes.record_out(out)
        {
            tracing::warn!(%error, "cannot write the count of a jobserver");
        }
    }

    /// Withdraws at most `most` untaken tokens. Returns whether there was one.
    pub(crate) fn withdraw(&mut self, most: usize) -> bool {
        let Some(pipes) = &self.pipes else { return false };
        let count = pipes.withdraw(most);
        if count == 0 {
            return false;
        }
        self.set_out(self.out.saturating_sub(count));
        if pipes_are_empty(self.pipes.as_ref()) {
            self.offered = None;
        }
        true
    }

    /// Withdraws an offer in favour of another build. The daemon then skips this build for a while,
    /// longer each time.
    pub(crate) fn lose_offer(&mut self, now: Instant) -> bool {
        let lost = self.withdraw(1);
        if lost {
            self.pass_over(now);
        }
        lost
    }

    /// Skips the build for a while, longer each time.
    pub(crate) fn pass_over(&mut self, now: Instant) {
        self.passed_over_until = Some(now + self.patience);
        self.patience = (self.patience * 2).min(PASSED_OVER_MAX);
    }

    /// Notes an offer, which [`Self::deliver`] writes.
    pub(crate) fn offer(&mut self, now: Instant, number: u64) {
        self.out += 1;
        self.pending = true;
        self.offered = Some(now);
        self.latest = number;
    }

    /// Writes the offer that was noted. The decision must be recorded first.
    pub(crate) fn deliver(&mut self) {
        if !std::mem::take(&mut self.pending) {
            return;
        }
        let Some(pipes) = &self.pipes else { return };
        // In this order, if the daemon is killed between the two calls, the slot stays held until
        // the build ends. In the other order, a slot could be held twice.
        let written = pipes.record_out(self.out).and_then(|()| pipes.offer());
        if let Err(error) = written {
            tracing::warn!(%error, "cannot offer a token");
            self.set_out(self.out.saturating_sub(1));
            self.offered = None;
        }
    }

    /// How many of `held` tokens are not out.
    pub(crate) fn spare(&self, held: usize) -> usize {
        held.saturating_sub(self.out)
    }

    /// The state of the build for comparison with others of its key. `None` if the build cannot get
    /// an offer.
    pub(crate) fn standing(&self, held: usize, now: Instant) -> Option<Standing> {
        let pipes = self.pipes.as_ref()?;
        let untaken = pipes.untaken() + usize::from(self.pending);
        let untaken_for = (untaken > 0)
            .then(|| self.offered.map_or(PATIENCE, |since| now.saturating_duration_since(since)));
        let ready_in =
            self.passed_over_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        Some(Standing {
            in_use: self.out.saturating_sub(untaken),
            spare: self.spare(held),
            untaken_for,
            ready_in,
            latest: self.latest,
            barred: self.barred,
        })
    }

    pub(crate) fn ends(&self) -> io::Result<crate::jobserver::pipes::BuildEnds> {
        match &self.pipes {
            Some(pipes) => pipes.ends(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn pipes_are_empty(pipes: Option<&Pipes>) -> bool {
    pipes.is_none_or(|pipes| pipes.untaken() == 0)
}
