//! A command under a lock over nodes.
//!
//! `canal run --on` is three processes. The *child* becomes the command when the lock is held. The
//! *parent* stays by it as over an engine: it reads the deadline page and never touches the network.
//! The *coordinator* (`process`) speaks to the nodes, by an ssh or a bridge each, writes the page,
//! and belongs to no terminal and no job. If it dies, the parent starts another one, which goes on
//! with the same leases (`handover`). If the parent dies, the coordinator ends the command in time
//! alone.
//!
//! A lease (`canal acquire --on`) is taken by such a coordinator for the process that asks for it, which
//! prints its handle (`lease::handle`). By the handle it is renewed and given back without further
//! processes (`lease`).
//!
//! `canal leader --on` takes no lock: `leading` asks the nodes which request holds the key.
//!
//! What is decided about the lock is decided by [`crate::nodes`]; `driver` carries it out.

mod by_handle;
mod channel;
mod driver;
mod handover;
mod host;
mod leading;
mod lease;
mod looking;
mod lookout;
mod meeting;
mod member;
mod parent;
mod process;
mod request;

pub use by_handle::{give_back_lease, renew_lease};
pub use channel::{BeforeStart, Held, Line, NotHeld, Start};
pub use host::{
    Ending, HeldPart, Host, Named, PartAnswer, PartSaid, PartTrouble, Started, StartedPart, Wish,
    Word,
};
pub use leading::{LeaderAtNodes, LeaderView, NodeState, NodeView};
pub use lease::enclosing::EnclosingLeases;
pub use lease::handle::{HandleTooLong, LEASE_HANDLE_CHARS_MAX, LeaseHandle, LeaseHandleError};
pub use lease::secret::Secret;
pub use looking::Around;
pub use lookout::within::WaitWithin;
pub use lookout::{FoundDeadlock, Lookout};
pub use meeting::MeetError;
pub use parent::{ChildEnd, OverNodes};
pub use process::{EndWording, Wording};
pub use request::NodesRequest;

use driver::Driver;

/// Asks the nodes from this process, until the host wants no more or the request is over.
///
/// # Errors
/// The nodes cannot be known, or a system call failed.
pub fn ask(request: &NodesRequest, host: &mut dyn Host) -> Result<Option<Ending>, MeetError> {
    let met = meeting::meet(request, host)?;
    Ok(Driver::new(request, met, None).run(host)?)
}
