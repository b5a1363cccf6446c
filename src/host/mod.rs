//! How one host takes part in a table that many share.
//!
//! A [`Member`] speaks to an engine on one side (by [`Call`](crate::log::engine::Call)s and
//! [`Answer`](crate::log::engine::Answer)s) and to the owner of a table on the other: what the
//! owner proposes comes back as entries, in the order of the log, among those of all other hosts.
//! It knows no socket, no clock and no process; its rules are those of `docs/many-hosts.md`.
//!
//! Invariant: the entries that a member gives out are those of the log, in its order and each once,
//! and none of an incarnation that had ended before.

mod chain;
mod encoding;
mod event;
mod failure_detector;
mod incarnation;
mod label;
mod member;
mod memory;
mod settings;
#[cfg(test)]
pub(crate) mod sim;
mod snapshot_keeper;
mod writer;

pub use chain::{Known, Mark};
pub use event::{Deadlines, Event, Health, LostWhy, Now, Observed, Standing, Ticket};
pub use member::Member;
pub use memory::Memory;
pub use settings::{Settings, Timing, TooShort};
