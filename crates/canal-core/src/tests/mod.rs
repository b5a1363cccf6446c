//! Tests of the table as a whole.

mod admission;
mod brute;
mod deadlock;
mod leader;
mod membership;
mod rooms;
mod search;
mod world;
