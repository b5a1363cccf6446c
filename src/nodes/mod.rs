//! What a request over nodes decides: one lock on several daemons that share nothing.
//!
//! A *coordinator* asks each node for its part, confirms the parts with one token, says until when
//! the command may run, renews, and gives everything back. It uses no socket, clock, thread or
//! random number: the *driver* tells it what happened ([`Input`]), with the time, and carries out
//! what it answers ([`Effect`]), in that order.
//!
//! What the driver must keep to:
//!
//! - There is one connection to each node. [`Effect::Connect`] closes the old one, if there is one,
//!   and opens another; it is answered by one [`Input::Reached`] or one [`Input::Away`]. A
//!   connection that breaks later is told by one `Away`. Nothing that was read from a connection is
//!   told after it was closed, broken, or told as `Away`; after [`Effect::Cancel`] nothing is told of
//!   the node before the next `Connect`.
//! - Each [`Effect::Ask`] has another lease number, and so another handle and another tag, which the
//!   driver derives from a secret, the node and that number. A late message about an earlier lease
//!   cannot touch a later one.
//! - Before the effects of a call of [`Coordinator::handle`] are carried out,
//!   [`Coordinator::standing`] is handed to the process that stays by the command, if it changed: it
//!   lets another coordinator take over.
//! - `sent` is the time at which the clock stood *before* the first byte of the call was written.
//! - What the caller reads from several connections may be told in any order.
//!
//! What the coordinator relies on at each node:
//!
//! - A collecting grant and a waiting request end with their connection.
//! - `ConfirmAt` is void if the grant of its tag and handle is gone.
//! - `Renew` is answered with success for a confirmed lease only: a collecting one would end with its
//!   connection, and must not count.
//! - `Release` by handle also ends a collecting grant. After its answer no late `ConfirmAt` can make
//!   that grant firm.
//!
//! Times are milliseconds of CLOCK_BOOTTIME. A node is named by its index in [`Plan::nodes`].

mod change;
mod coordinator;
pub mod deadlock;
mod effect;
mod input;
pub mod leadership;
mod plan;
#[cfg(test)]
mod sim;
mod standing;

pub use change::Change;
pub use coordinator::Coordinator;
pub use effect::{Deadline, Effect, Outcome};
pub use input::{Input, Refusal};
pub use plan::{Plan, Require, Timing};
pub use standing::{Asking, Part, Standing};

/// A time or a duration, in milliseconds. Times are those of CLOCK_BOOTTIME.
pub type Millis = u64;
