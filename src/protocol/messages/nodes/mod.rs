//! The calls that only a request over nodes makes: it asks several daemons that share nothing.
//!
//! They have an interface of their own, so that a daemon that does not know them answers with an
//! error instead of ignoring what it does not understand.

pub(in crate::protocol) mod collect;
pub(in crate::protocol) mod confirm_at;
pub(in crate::protocol) mod identify;
pub(in crate::protocol) mod refusal;
pub(in crate::protocol) mod report;
pub(in crate::protocol) mod restrict;
pub(in crate::protocol) mod waits_near;
