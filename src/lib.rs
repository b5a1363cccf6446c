//! canal limits how many commands run at once, and shows who runs, who waits and why.
//!
//! # Theory of operation
//!
//! A daemon holds a lock table. The table ([`core`]) is a deterministic state machine: it is
//! nothing but the entries of a [`log`], applied in order. The daemon ([`daemon`]) turns what
//! happens outside (messages, deaths of processes, timers) into entries, writes them with their
//! outcomes to the log, and only then answers. Clients ([`client`]) talk to it over a Unix socket
//! ([`protocol`]); `canal run` ([`run`]) takes the lock and becomes the command.
//!
//! Start reading at [`core::Entry`] (what can happen), [`core::Outcome`] (what was decided) and
//! [`core::Table`].

mod duration_text;

pub mod cli;
pub mod client;
pub mod core;
pub mod daemon;
pub mod host;
pub mod json;
pub mod log;
pub mod protocol;
pub mod run;
#[cfg(test)]
mod sim;
pub mod sys;
