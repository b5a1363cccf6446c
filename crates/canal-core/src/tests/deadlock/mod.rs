//! Deadlocks: how they are found, and which request is refused.

mod detection;
mod flaws;
mod rings;
