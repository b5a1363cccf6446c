//! An engine in memory, and the network to it, for tests.
//!
//! A test can offer its own engine to the daemons of its thread: their configuration then names
//! `simulated://…` as the address.

#![expect(missing_docs, reason = "only tests use it")]

#[cfg(test)]
mod contract;
mod link;
mod server;

use std::cell::{Cell, RefCell};

pub use link::Link;
pub use server::{Counts, Flavour, Server};

use crate::engine::Engine;

/// The scheme of its address.
pub(super) const SCHEME: &str = "simulated";

type Open = Box<dyn Fn() -> Box<dyn Engine>>;

thread_local! {
    static OFFERED: RefCell<Option<Open>> = const { RefCell::new(None) };
    static SNAPSHOT_BATCHES: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Opens this engine for each daemon that starts on this thread from now on. The daemon makes a
/// snapshot after this many batches.
pub fn offer(snapshot_batches: u64, open: impl Fn() -> Box<dyn Engine> + 'static) {
    OFFERED.set(Some(Box::new(open)));
    SNAPSHOT_BATCHES.set(Some(snapshot_batches));
}

/// Opens the engine that was offered.
pub(super) fn open() -> Option<Box<dyn Engine>> {
    OFFERED.with_borrow(|open| open.as_ref().map(|open| open()))
}

/// The number of batches between two snapshots, if an engine was offered on this thread.
pub fn snapshot_batches() -> Option<u64> {
    SNAPSHOT_BATCHES.get()
}
