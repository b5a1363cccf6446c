//! What `canal status` shows.

mod locks;
mod waits;
