//! Serves requests over nodes: this daemon is one of several independent daemons, and each grants
//! its part.

mod collect_and_confirm;
mod identify;
mod waits_near;
