//! The engine keeps the one log of many hosts, and knows which hosts live. It does nothing else.
//!
//! A host talks to it by [`Call`]s and [`Answer`]s. Between the two, anything may be delayed, lost
//! or repeated, so every call may be repeated, and every answer names its call.
//! `docs/many-hosts.md` states the rules.
//!
//! Invariant: two hosts that get batches get the same ones in the same order, without a gap from
//! where they began.

#![cfg_attr(
    not(any(feature = "etcd", feature = "postgres")),
    allow(dead_code, reason = "what the engines share is unused where both are left out")
)]

mod calls;
pub mod encoding;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod engine_thread;
pub(crate) mod era;
#[cfg(feature = "etcd")]
pub mod etcd;
mod inspection;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;

use std::fmt;
use std::task::{Context, Poll};

pub use calls::{
    Alive, Answer, Append, Batch, Call, Claimant, Ends, Evidence, Hash, Identity, Link, Outage,
    Placed, Position, Read, Registration, Sign, Stored,
};
pub use encoding::FORMAT;
#[cfg(any(feature = "etcd", feature = "postgres"))]
pub use engine_thread::EngineThread;
pub use era::NO_HOST;
pub use inspection::{Inspection, ServerClock, TableSize, Transport};
pub use open::{inspect, open};

/// Returns the address of the engine. Called before each attempt to connect: passwords and
/// certificates change while a daemon runs.
pub type Source = Box<dyn FnMut() -> String + Send>;

/// Why no engine could be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is missing or invalid.
    #[error(transparent)]
    Address(#[from] Outage),
    /// The engine's thread, or the runtime on it, cannot start.
    #[error("cannot start a thread for the engine: {0}")]
    Thread(#[from] std::io::Error),
    /// This build lacks the engine of the address; carries the name of its feature.
    #[error("this canal was built without support for {0}")]
    LeftOut(&'static str),
    /// No engine has such an address.
    #[error("`{0}` does not name a known engine")]
    Unknown(String),
}

/// An engine, as one host sees it.
pub trait Engine: fmt::Debug {
    /// Sends a call. Never waits.
    fn call(&mut self, call: Call);

    /// Sets the times at which commands of this host are signalled to end and are killed unless it
    /// renews first, in milliseconds of CLOCK_BOOTTIME; 0 if no command depends on it. An engine
    /// that is away is tried often enough to be back by then.
    fn renew_by(&mut self, _times: [u64; 2]) {}

    /// Whether a host spares the engine work while no batches are announced to it.
    fn lets_rest(&self) -> bool {
        false
    }

    /// The next answer.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer>;
}
