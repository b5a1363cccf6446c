//! The server's part of an engine: joins the table that many hosts share, follows its log, and ends
//! commands in time. [`Cluster`](crate::daemon::cluster::Cluster) owns the state.

mod end_commands;
mod follow;
mod join;
mod recovering;
mod rest;
