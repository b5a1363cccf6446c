//! The configuration in force: put in force at the start and by a reload, and shown.

pub(in crate::daemon) mod in_force;
mod reload;
mod report;
