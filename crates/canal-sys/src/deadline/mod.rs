//! The deadline page: memory that the daemon shares with supervisors. A daemon with an engine
//! creates a page for each incarnation ([`Writer`]) with the time until which its holds are safe,
//! and moves that time at each renewal. Supervisors read it ([`Reader`]), even when the daemon is
//! stopped or gone. All times are milliseconds of CLOCK_BOOTTIME, which is the same for all
//! processes in a time namespace.
//!
//! Invariant: a page that reports a loss reports it forever.

mod layout;
mod reader;
mod writer;

pub use reader::Reader;
pub use writer::Writer;

/// The time until which holds are safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// When the engine was last known to be reachable: just before the daemon sent the last renewal
    /// that was answered.
    pub reached_at: u64,
    /// From this time on, canal asks commands to end (TERM) and starts none.
    pub term_at: u64,
    /// From this time on, canal kills commands.
    pub kill_at: u64,
}

/// The loss of an incarnation's holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The reason.
    pub why: Why,
    /// When the daemon noticed the loss.
    pub at: u64,
}

/// Why an incarnation has lost its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// The engine was unreachable for too long.
    Away = 1,
    /// Another host declared the incarnation gone.
    Gone = 2,
    /// The engine's history differs from the history that the daemon read (a fail-over, a restored
    /// backup).
    Rewritten = 3,
    /// Another process writes under the incarnation's name.
    Taken = 4,
    /// Any other reason, including those of later versions.
    Other = 5,
    /// For a request over nodes: too few nodes hold the lock.
    Fewer = 6,
}

impl Why {
    /// The reasons except [`Self::Other`].
    const KNOWN: [Self; 5] = [Self::Away, Self::Gone, Self::Rewritten, Self::Taken, Self::Fewer];

    /// The word for the reason in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Gone => "gone",
            Self::Rewritten => "rewritten",
            Self::Taken => "taken",
            Self::Other => "other",
            Self::Fewer => "fewer",
        }
    }

    /// The reason for a word.
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        Self::KNOWN.into_iter().find(|why| why.word() == word).unwrap_or(Self::Other)
    }

    /// The deadline whose number is in the shared page.
    pub fn from_number(number: u64) -> Self {
        Self::KNOWN.into_iter().find(|why| *why as u64 == number).unwrap_or(Self::Other)
    }
}

/// The content of a page at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The time until which the holds are safe.
    pub deadline: Deadline,
    /// Set once the holds are lost.
    pub lost: Option<Lost>,
}

impl State {
    /// Whether it is too late to start a command at `now`.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.lost.is_some() || now >= self.deadline.term_at
    }
}

#[cfg(test)]
mod tests;
