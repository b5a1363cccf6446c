//! The calls that only a request over nodes makes, to several independent daemons.
//!
//! They have a separate interface, so that a daemon without it answers with an error instead of
//! ignoring unknown fields.

pub(crate) mod node;
pub(crate) mod part;
pub(crate) mod waits_near;
