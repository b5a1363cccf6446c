//! What is done over nodes: several daemons that are asked for one lock.

pub(in crate::cli) mod acquire;
pub(in crate::cli) mod bridge;
pub(in crate::cli) mod lookout;
pub(in crate::cli) mod release;
pub(in crate::cli) mod renew;
pub(in crate::cli) mod run;

mod lost;
