//! Reports about the whole table, which may be long, and about the history.

mod history;
mod status;
mod waits;
