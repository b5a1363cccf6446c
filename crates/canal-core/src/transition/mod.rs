//! Applies an entry and decides everything that follows from it.
//!
//! Invariant: an entry is applied completely. When `Table::apply` returns, no waiter can be
//! granted, there is no deadlock and there is no empty frame.

mod apply;
mod commit;
mod decide_request;
mod grant_pass;
mod node_spares;
mod supersede;
