//! The largest messages that each side accepts from the other.

/// The most bytes of one call, without the NUL.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The most bytes of one reply, without the NUL: a status may name tens of thousands of waiters.
pub const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
