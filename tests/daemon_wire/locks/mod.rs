//! Tests which request the daemon grants and which it refuses, as a peer sees it.

mod deadlock;
mod nested;
mod read_write;
mod stopped;
mod waits;
