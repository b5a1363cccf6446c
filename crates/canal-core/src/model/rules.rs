//! The version of the rules by which a table decides, and their default limit.

/// How many times a waiter may be overtaken unless a policy sets another limit.
pub const BYPASS_MAX_DEFAULT: u32 = 64;

/// The version of the rules by which a table decides. A journal names the rules under which it was
/// written. A daemon with other rules rebuilds its table from the recorded outcomes and decides
/// nothing again.
pub const RULES_VERSION: u32 = 1;
