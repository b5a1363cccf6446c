//! Which request is granted and which is refused, as a peer is told.

mod deadlock;
mod nested;
mod read_write;
mod stopped;
mod waits;
