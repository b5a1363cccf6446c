//! Messages for users: why a request waits, why it was refused, and why a daemon cannot start.

mod failures;
mod wait_reason;
mod write_refusal;

pub use failures::StartError;
pub(crate) use failures::{
    bad, cannot, denied, given_up, not_held, owner_gone, owner_words, pid_of, time,
};
pub(crate) use wait_reason::{ABOUT_TO_BE_GRANTED, conflict, count, paused_clause, reason};
pub(crate) use write_refusal::{
    Use, count_in_text, deadlock, item_of, refusal, refused, superseded, superseded_by, timeout,
    timeout_while_paused, too_many_wait, used_as,
};
