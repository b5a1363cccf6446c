//! What `canal status` shows.

mod choices;
mod hostile;
mod kills;
mod locks;
mod notes;
mod questions;
mod waits;
