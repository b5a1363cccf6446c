//! How text reaches stdout and stderr, and how foreign text is made safe for a terminal.
//!
//! Invariant: data goes to stdout, messages go to stderr, one write per line.

pub(super) mod sanitize;
pub(super) mod stderr;
pub(super) mod stdout;
