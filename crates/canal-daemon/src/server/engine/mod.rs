//! The server's part of an engine: joins the table that many hosts share, and ends commands in
//! time. `dispatch/follow.rs` carries out the events of the log.
//! [`Cluster`](crate::cluster::Cluster) owns the state.

mod end_commands;
mod join;
mod recovering;
mod rest;
