//! The calls that only a request over nodes makes, to several independent daemons.
//!
//! They have a separate interface, so that a daemon without it answers with an error instead of
//! ignoring unknown fields.

pub(in crate::protocol) mod collect;
pub(in crate::protocol) mod confirm_at;
pub(in crate::protocol) mod identify;
pub(in crate::protocol) mod refusal;
pub(in crate::protocol) mod report;
pub(in crate::protocol) mod restrict;
pub(in crate::protocol) mod waits_near;
