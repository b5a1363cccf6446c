//! Writes text to stdout and stderr, and makes foreign text safe for a terminal.
//!
//! Invariant: data goes to stdout and messages go to stderr, one write per line.

pub(super) mod columns;
pub(super) mod sanitize;
pub(crate) mod stderr;
pub(crate) mod stdout;
