//! Deadlocks: canal refuses a request of one session, and all other sessions continue.

mod kills;
mod restarts;
mod steps;
mod victim;
