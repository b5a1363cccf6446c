//! How a daemon starts and ends, and what it reads from the journal of the one before it.

mod recovery;
mod reload;
mod start_and_end;
