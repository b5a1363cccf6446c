//! The command line: the input that it accepts and refuses, and its view of a running daemon.

mod live;
mod locks;
mod usage;
