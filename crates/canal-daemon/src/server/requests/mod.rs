//! Serves requests: one file for each message, and the checks that several of them share.

mod acquire;
pub(super) mod deadline_page;
mod enclosing;
mod kill;
mod nodes;
mod owner;
mod prioritize;
mod reattach;
mod refuse;
mod release;
mod renew;
mod resize;
mod stop;
