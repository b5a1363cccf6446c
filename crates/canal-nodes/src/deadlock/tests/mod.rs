//! Tests deadlocks over nodes with real tables.

mod looks;
mod random;
mod rings;
mod world;
