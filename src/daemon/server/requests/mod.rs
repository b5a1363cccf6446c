//! Serving requests: one file for each message, and what several of them check.

mod acquire;
pub(super) mod deadline_page;
mod enclosing;
mod kill;
mod nodes;
mod owner;
mod quota;
mod reattach;
mod refuse;
mod release;
pub(super) mod renew;
mod resize;
mod stop;
