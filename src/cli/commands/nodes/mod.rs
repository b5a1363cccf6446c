//! What is done over nodes: several daemons that are asked for one lock.

pub(in crate::cli) mod bridge;
mod list;
pub(in crate::cli) mod run;
