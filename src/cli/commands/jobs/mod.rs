//! Background jobs: `canal run --detach`, and the commands about jobs.

pub(in crate::cli) mod log;
pub(in crate::cli) mod priority;
pub(in crate::cli) mod submit;
pub(in crate::cli) mod wait;
