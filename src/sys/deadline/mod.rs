//! The deadline page: until when the holds of a host are sure, in memory that the daemon shares
//! with those who run its holders' commands.
//!
//! A daemon that works over an engine makes one page for each incarnation ([`Writer`]) and moves
//! the deadline on at each renewal. Whoever runs a command under a hold gets the page's
//! descriptors with the grant ([`Reader`]) and acts on the same numbers as the daemon, also when
//! the daemon is stopped or gone: then the page just does not move.
//!
//! All times are milliseconds of CLOCK_BOOTTIME, which is the same for all processes of a machine
//! (of a time namespace).
//!
//! Invariant: once a page says that the incarnation is lost, it says so for ever.

mod layout;
mod reader;
mod writer;

pub use reader::Reader;
pub use writer::Writer;

/// Until when holds are sure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// When the engine was last known to be reached: before the last renewal that it answered was
    /// sent.
    pub reached_at: u64,
    /// Commands are asked to end (TERM) from then on, and none is started.
    pub term_at: u64,
    /// Commands are killed from then on.
    pub kill_at: u64,
}

/// That an incarnation has lost its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub why: Why,
    /// Since when the daemon knows.
    pub at: u64,
}

/// Why an incarnation has lost its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// The engine could not be reached for too long.
    Away = 1,
    /// Another host declared it gone.
    Gone = 2,
    /// The engine's history is not the one that was read (a fail-over, a restored backup).
    Rewritten = 3,
    /// Somebody else writes in its name.
    Taken = 4,
    /// Anything else, such as a reason of a later version.
    Other = 5,
}

impl Why {
    /// The reason in one word, as it is sent.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Gone => "gone",
            Self::Rewritten => "rewritten",
            Self::Taken => "taken",
            Self::Other => "other",
        }
    }

    /// What a word means.
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        let all = [Self::Away, Self::Gone, Self::Rewritten, Self::Taken];
        all.into_iter().find(|why| why.word() == word).unwrap_or(Self::Other)
    }

    pub(crate) fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Away,
            2 => Self::Gone,
            3 => Self::Rewritten,
            4 => Self::Taken,
            _ => Self::Other,
        }
    }
}

/// What a page says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Until when the holds are sure.
    pub deadline: Deadline,
    /// That they are lost, and why.
    pub lost: Option<Lost>,
}

impl State {
    /// Whether a command may not be started any more at `now`.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.lost.is_some() || now >= self.deadline.term_at
    }
}

#[cfg(test)]
mod tests;
