//! Options that control how a command is ended.

pub(super) mod on_lost;
pub(super) mod signal;
