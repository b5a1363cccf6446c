//! Background jobs: `canal run --detach`, and the commands about jobs.

mod fate;
pub(in crate::cli) mod log;
pub(in crate::cli) mod priority;
mod prune;
pub(in crate::cli) mod submit;
pub(in crate::cli) mod wait;
