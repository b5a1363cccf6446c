//! Admission: order, conflicts, re-entrancy and views.

mod buckets;
mod examples;
pub(in crate::tests) mod locks;
mod nested;
mod order;
mod reentry;
mod resize;
mod supersede;
mod upgrade;
