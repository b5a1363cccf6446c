//! Deadlocks over nodes, with real tables.

mod random;
mod rings;
mod world;
