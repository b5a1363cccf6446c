//! Serves requests over nodes: this daemon is one of several independent daemons, and each grants
//! its part.

pub(crate) mod collect;
pub(crate) mod confirm_at;
pub(crate) mod identify;
pub(crate) mod report;
pub(crate) mod restrict;
pub(crate) mod waits_near;
