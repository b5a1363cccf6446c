//! Tests of the table as a whole.

mod brute;
mod examples;
mod order;
mod random;
mod reentry;
mod resize;
mod world;
