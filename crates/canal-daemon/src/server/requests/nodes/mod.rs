//! Serves requests over nodes: this daemon is one of several independent daemons, and each grants
//! its part.

pub(super) mod collect;
pub(super) mod confirm_at;
pub(super) mod identify;
pub(super) mod report;
pub(super) mod restrict;
pub(super) mod waits_near;
