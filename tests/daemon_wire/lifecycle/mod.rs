//! How a daemon starts and ends, and how it reads the journal of the previous daemon.

mod recovery;
mod reload;
mod start_and_end;
