//! Reaches a daemon over the user's own ssh.

mod command;
mod failure;

pub use command::arguments;
pub use failure::{NodeFailure, explain, older};
