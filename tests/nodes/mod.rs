//! Locks over nodes: several daemons that share nothing, and the commands that join them.
//!
//! Each node is a `World` of its own.

mod bridge;
mod deadlock;
mod faults;
mod leader;
mod lease;
mod nested;
mod over_ssh;
mod run;
mod waiting;
