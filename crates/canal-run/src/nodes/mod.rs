//! Runs a command under a lock over nodes.
//!
//! `canal run --on` has three processes:
//!
//! - The *child* becomes the command when the lock is held.
//! - The *parent* supervises it as with an engine: it reads the deadline page and never touches the
//!   network.
//! - The *coordinator* (`process`) speaks to the nodes, each by its socket or by an ssh, and writes
//!   the page. It belongs to no terminal and no job. If it dies, the parent starts another one,
//!   which continues with the same leases (`takeover`). If the parent dies, the coordinator alone
//!   ends the command in time.
//!
//! For `canal acquire --on`, such a coordinator takes a lease, and the process that asked prints
//! its handle. With the handle, [`on_lease`] renews and releases it without further processes.
//!
//! `canal leader --on` takes no lock: `leading` asks the nodes which request holds the key.
//!
//! [`canal_nodes`] makes all decisions about the lock; `driver` carries them out.

mod deadlock_watcher;
mod driver;
mod identify;
mod leader_watch;
mod member;
mod parent;
mod process;
mod request;
mod takeover;
mod waits_reader;
mod wording;

pub use deadlock_watcher::watch_for_deadlocks;
pub use leader_watch::{LeaderAtNodes, LeaderView, NodeState, NodeView};
pub use parent::{ChildEnd, OverNodes};
pub use request::{
    Around, BeforeStart, Ending, Host, Line, News, NodesRequest, NotHeld, PartAnswer, PartSaid,
    PartTrouble, Purpose, Start, Wish,
};
pub use wording::{LOST_HINT, unread};

use std::io;

use canal_lock::client::nodes::lease::LeaseHandle;
use canal_nodes::Task;
use driver::Driver;

/// Renews or releases a lease from this process, which must have one thread. `request` is
/// [`NodesRequest::of_lease`]. Calls [`Host::start`] when enough nodes have renewed it; if the host
/// then continues, keeps the lease until the host stops. Returns `None` if the host stopped.
///
/// # Errors
/// A system call failed.
pub fn on_lease(
    task: Task,
    handle: &LeaseHandle,
    request: &NodesRequest,
    host: &mut dyn Host,
) -> io::Result<Option<Ending>> {
    Driver::of_lease(request, handle, task).run(host)
}
