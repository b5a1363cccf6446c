//! The rules by which a table decides.

/// How often a waiter may be overtaken if no policy says otherwise.
pub const BYPASS_MAX_DEFAULT: u32 = 64;

/// The rules by which a table decides. A journal names the rules that it was written under. A
/// daemon with other rules rebuilds its table from the recorded outcomes and decides nothing again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// What DESIGN and manual describe.
    #[default]
    Current,
    /// Serves the newest waiter first; exists so that tests can show that a change of the rules
    /// decides nothing again.
    NewestFirst,
}

impl Rules {
    /// The number that stands in the log.
    #[must_use]
    pub fn version(self) -> u32 {
        match self {
            Self::Current => 4,
            Self::NewestFirst => 1_000_004,
        }
    }
}
