//! Messages for users: why a request was refused, and why it waits.

pub(super) mod reason;
pub(super) mod refusal;
pub(super) mod text;
