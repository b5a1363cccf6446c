//! Handles processes of holders and waiters that end, stop or come back, and the ends of
//! connections.

mod process_ends;
pub(super) mod stopped_and_returning_waiters;
