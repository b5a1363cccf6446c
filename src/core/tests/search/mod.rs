//! Histories that nobody wrote by hand: random ones, and all of a small world.

mod explore;
pub(in crate::core::tests) mod random;
mod states;
