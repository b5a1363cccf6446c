//! Background jobs, which `crates/canal-run/src/job_files.rs` records.

mod log;
mod priority;
mod submit;
mod wait;

pub(crate) use log::log;
pub(crate) use priority::priority;
pub(crate) use submit::submit;
pub(crate) use wait::wait;
