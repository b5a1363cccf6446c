//! Faults at the processes, links and machines of runs over nodes.

mod campaign;
mod cut;
pub(crate) mod killed;
mod rebooted;
