//! Serving requests: one file for each message, and what several of them check.

pub(super) mod acquire;
pub(super) mod deadline_page;
pub(super) mod enclosing;
pub(super) mod kill;
pub(super) mod nodes;
pub(super) mod owner;
pub(super) mod quota;
pub(super) mod reattach;
pub(super) mod refuse;
pub(super) mod release;
pub(super) mod renew;
pub(super) mod resize;
pub(super) mod stop;
