//! Deadlocks: a request of one session is refused, and all others go on.

mod kills;
mod restarts;
mod slots;
mod steps;
mod victim;
