//! Deadlocks: sessions that hold something and wait for each other.
//!
//! Invariant: nothing here changes the table. It names the request to refuse; `transition` refuses
//! it in the entry that closed the cycle.

mod detect;
pub(crate) mod graph_reduction;
mod partial_table;
mod upgrade_and_bypass;

pub use detect::shortest_cycle;
pub use partial_table::PartialTable;
