//! Background jobs: `canal run --detach`, and the commands about jobs.

pub(crate) mod log;
pub(crate) mod priority;
pub(crate) mod submit;
pub(crate) mod wait;
