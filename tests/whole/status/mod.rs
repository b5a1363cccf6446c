//! What `canal status` shows.

mod choices;
mod kills;
mod locks;
mod notes;
mod questions;
mod waits;
