//! The configuration in force: the start and each reload put it in force, and clients can read it.

pub(crate) mod in_force;
mod reload;
mod report;
