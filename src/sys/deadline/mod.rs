//! The deadline page: memory that the daemon shares with supervisors. It contains the time until
//! which the holds of a host are safe.
//!
//! A daemon with an engine creates one page for each incarnation ([`Writer`]) and moves the
//! deadline at each renewal. A supervisor of a command gets the page's descriptors with the grant
//! ([`Reader`]) and acts on the same numbers as the daemon. It does so even when the daemon is
//! stopped or gone: then the page stays as it is.
//!
//! All times are milliseconds of CLOCK_BOOTTIME, which is the same for all processes of a machine
//! (of a time namespace).
//!
//! Invariant: once a page says that the incarnation is lost, it says so forever.

mod layout;
mod reader;
mod writer;

pub use reader::Reader;
pub use writer::Writer;

/// Until when holds are safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// When the engine was last known to be reachable: just before the last answered renewal was
    /// sent.
    pub reached_at: u64,
    /// From this time on, commands are asked to end (TERM), and no command is started.
    pub term_at: u64,
    /// From this time on, commands are killed.
    pub kill_at: u64,
}

/// An incarnation has lost its holds.
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
    /// The engine could not be reached for too long.
    Away = 1,
    /// Another host declared the incarnation gone.
    Gone = 2,
    /// The engine's history differs from the history that was read (a fail-over, a restored
    /// backup).
    Rewritten = 3,
    /// Another process writes in the name of the incarnation.
    Taken = 4,
    /// Any other reason, such as a reason of a later version.
    Other = 5,
    /// Too few nodes hold the lock, of a request over nodes.
    Fewer = 6,
}

impl Why {
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
        let all = [Self::Away, Self::Gone, Self::Rewritten, Self::Taken, Self::Fewer];
        all.into_iter().find(|why| why.word() == word).unwrap_or(Self::Other)
    }

    pub(crate) fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Away,
            2 => Self::Gone,
            3 => Self::Rewritten,
            4 => Self::Taken,
            6 => Self::Fewer,
            _ => Self::Other,
        }
    }
}

/// The content of a page at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Until when the holds are safe.
    pub deadline: Deadline,
    /// Set once the holds are lost.
    pub lost: Option<Lost>,
}

impl State {
    /// Whether no command may be started any more at `now`.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.lost.is_some() || now >= self.deadline.term_at
    }
}

#[cfg(test)]
mod tests;
