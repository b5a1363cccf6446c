//! What `canal status` shows.

mod locks;
mod notes;
mod waits;
