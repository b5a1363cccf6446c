//! The calls that only a request over nodes makes, to several independent daemons.
//!
//! They have a separate interface, so that a daemon without it answers with an error instead of
//! ignoring unknown fields.

pub(crate) mod collect;
pub(crate) mod confirm_at;
pub(crate) mod identify;
pub(crate) mod refusal;
pub(crate) mod report;
pub(crate) mod restrict;
pub(crate) mod waits_near;
