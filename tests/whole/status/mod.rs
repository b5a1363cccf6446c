//! The contents of `canal status`.

mod choices;
mod hostile;
mod kills;
mod locks;
mod notes;
mod questions;
mod waits;
