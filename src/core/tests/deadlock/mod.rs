//! Deadlocks: which are found, and who is refused.

mod detection;
mod flaws;
mod rings;
