//! An engine that a test offers to the daemons of its thread.

use std::cell::RefCell;

use crate::log::engine::Engine;

/// The scheme of its address.
pub(super) const SCHEME: &str = "simulated";

type Open = Box<dyn Fn() -> Box<dyn Engine>>;

thread_local! {
    static OFFERED: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// Opens this engine for each daemon that starts on this thread from now on.
pub(crate) fn offer(open: impl Fn() -> Box<dyn Engine> + 'static) {
    OFFERED.set(Some(Box::new(open)));
}

/// Opens the engine that was offered.
pub(super) fn open() -> Option<Box<dyn Engine>> {
    OFFERED.with_borrow(|open| open.as_ref().map(|open| open()))
}
