//! The daemon as a bare peer sees it: frames over a socket, nothing of the client library.
//!
//! No test sleeps to hope; each waits for a condition with a bound. What needs root or a namespace
//! says so on stderr when it is skipped.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod again;
mod cancel;
mod daemon;
mod described;
mod journal;
mod limits;
mod order;
mod peer;
mod progress;
mod service;
mod upkeep;
