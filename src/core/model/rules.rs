//! The rules by which a table decides.

/// How often a waiter may be overtaken if no policy says otherwise.
pub const BYPASS_MAX_DEFAULT: u32 = 64;

/// The number of the rules by which a table decides; it changes with them. A journal names the
/// rules it was written under. A daemon with other rules rebuilds its table from the recorded
/// outcomes and decides nothing again.
pub const RULES_VERSION: u32 = 1;
