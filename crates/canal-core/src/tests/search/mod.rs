//! Generated histories: random ones, and all histories of a small world.

mod explore;
pub(in crate::tests) mod random;
mod states;
