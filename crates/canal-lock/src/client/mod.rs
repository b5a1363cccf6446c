//! A blocking client, without an async runtime because `canal run` must start fast.
//!
//! Other programs use it through [`Lock`](crate::Lock) and [`Client`](crate::Client) of the crate.
//!
//! Invariant: no call hangs because a daemon is stopped, dead or replaced. Every wait is bounded,
//! and the client never repeats a call that must not take effect twice.

mod acquire;
pub mod bridge;
mod calls;
pub mod channel;
pub mod command_environment;
mod connection;
pub mod deadlock_search;
mod error;
mod former_user_daemon;
pub mod hold_monitor;
pub mod nodes;
mod watch;

#[cfg(test)]
mod tests;

pub use acquire::{Acquired, JobserverEnds};
pub use calls::{Client, handle, tag};
pub use connection::daemon_program::{
    OWN, ServiceManager, is_from_outside, is_on_demand_daemon, own_program,
};
pub use connection::options::{Options, Start};
pub use connection::start_daemon::{last_line_of_log, replace_daemon};
pub use connection::time_limits::Limits;
pub use error::ClientError;
pub use hold_monitor::Fate;
pub use watch::Watch;
