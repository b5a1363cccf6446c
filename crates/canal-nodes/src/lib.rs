//! Decides for a request over nodes: one lock on several daemons that share nothing.
//!
//! A *coordinator* asks each node for its part, confirms the parts with one token, publishes until
//! when the command may run, renews, and releases everything. It uses no socket, clock, thread or
//! random number. The *driver* passes it each event ([`Input`]) with its time, and carries out the
//! returned effects ([`Effect`]) in their order.
//!
//! The driver must obey these rules:
//!
//! - There is one connection to each node. [`Call::Connect`] closes the old one, if there is one,
//!   and opens another; one `Reached(None)` or one [`Event::Away`] answers it. One `Away`
//!   reports a connection that breaks later. The driver passes on no message from a connection that
//!   is closed, broken, or reported as `Away`. After [`Call::Cancel`] it passes on nothing about
//!   the node before the next `Connect`.
//! - Each [`Call::Ask`] has another lease number, and so another handle and another tag, which
//!   the driver derives from a secret, the node and that number. A late message about an earlier
//!   lease cannot touch a later one.
//! - Before it carries out the effects of a call of [`Coordinator::handle`], the driver hands
//!   [`Coordinator::checkpoint`], if it changed, to the process that stays by the command. With
//!   that, another coordinator can take over.
//! - `sent` is the time of the clock *before* the first byte of the call was written.
//! - The driver may pass on messages from several connections in any order.
//!
//! The coordinator relies on these properties of each node:
//!
//! - A collecting grant and a waiting request end with their connection.
//! - `ConfirmAt` is void if the grant of its tag and handle is gone.
//! - `Renew` succeeds only for a confirmed lease: a collecting one would end with its connection,
//!   and must not count.
//! - `Release` by handle also ends a collecting grant. After its answer no late `ConfirmAt` can
//!   make that grant firm.
//!
//! Times are milliseconds of CLOCK_BOOTTIME. A node is named by its index in [`Plan::nodes`].

mod coordinator;
pub mod deadlock;
mod inputs_and_effects;
pub mod leader_by_majority;
mod plan;
#[cfg(test)]
mod sim;

pub use coordinator::{Coordinator, Timing};
pub use inputs_and_effects::{Call, Change, Effect, Event, Held, Input, Outcome, Refusal};
pub use plan::{Asking, Checkpoint, Part, Plan, Require, Task};

/// A time or a duration, in milliseconds. Times are those of CLOCK_BOOTTIME.
pub type Millis = u64;
