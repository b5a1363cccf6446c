//! A simulated engine, the network to it, and a faulty disk, for tests.

#![expect(missing_docs, reason = "only tests use it")]

#[cfg(test)]
mod contract;
pub mod disk_faults;
pub mod engine;
pub mod network;
