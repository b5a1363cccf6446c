//! canal's own exit codes.
//!
//! They follow timeout(1), and EX_TEMPFAIL of sysexits for "not acquired". Every other code is the
//! command's.

/// The exit code for success.
pub const SUCCESS: u8 = 0;

/// An exit code that canal itself returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OwnCode {
    /// The lock was not free and canal was not to wait, the wait timed out, or the request was
    /// refused to end a deadlock.
    NotAcquired = 75,
    /// The lock was lost while the command ran.
    LockLost = 122,
    /// The command ran longer than it may and was ended, by KILL too.
    TimeOver = 124,
    /// canal itself failed: usage, no daemon, permission.
    Failed = 125,
    /// The command was found but cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

impl OwnCode {
    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }
}
