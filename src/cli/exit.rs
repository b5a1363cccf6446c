//! The exit codes, as timeout(1) has them. 1, 2 and 255 are never canal's own: they are the
//! commonest codes of commands.

/// Not acquired: full and not to wait, the wait is over, or refused as a deadlock (EX_TEMPFAIL).
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// canal itself failed: usage, no daemon, permission.
pub(crate) const FAILED: u8 = 125;
/// The command was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
