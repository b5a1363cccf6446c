//! The commands over nodes: they ask several daemons for one lock.

pub(in crate::cli) mod bridge;
pub(in crate::cli) mod lookout;
pub(in crate::cli) mod release;
pub(in crate::cli) mod renew;

mod lost;
