//! Generated histories: random ones, and all histories of a small world.

mod explore;
pub(in crate::core::tests) mod random;
mod states;
