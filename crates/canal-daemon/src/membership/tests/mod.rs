//! The rules of `docs/many-hosts.md`, one by one, with one host and an engine that the test
//! controls.

mod appending;
pub(crate) mod direct;
mod joining;
mod reading;
mod recovering;
