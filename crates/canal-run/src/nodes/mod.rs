//! Runs a command under a lock over nodes.
//!
//! `canal run --on` has three processes:
//!
//! - The *child* becomes the command when the lock is held.
//! - The *parent* supervises it as with an engine: it reads the deadline page and never touches the
//!   network.
//! - The *coordinator* (`coordinator_process`) speaks to the nodes, each by its socket or by an
//!   ssh, and writes the page. It belongs to no terminal and no job. If it dies, the parent starts
//!   another one, which continues with the same leases (`takeover`). If the parent dies, the
//!   coordinator alone ends the command in time.
//!
//! For `canal acquire --on`, such a coordinator takes a lease, and the process that asked prints
//! its handle. With the handle, [`on_lease`] renews and releases it without further processes.
//!
//! `canal leader --on` takes no lock: `leader_watch` asks the nodes which request holds the key.
//!
//! [`canal_nodes`] makes all decisions about the lock; `driver` carries them out.

mod connect_and_identify;
mod coordinator_parent;
mod coordinator_process;
mod deadlock_watcher;
mod driver;
mod leader_watch;
mod node_connection;
mod node_wording;
mod nodes_request;
mod takeover;
mod waits_reader;

pub use coordinator_parent::{ChildEnd, OverNodes};
pub use deadlock_watcher::watch_for_deadlocks;
pub use driver::on_lease;
pub use leader_watch::{LeaderAtNodes, LeaderView, NodeState, NodeView};
pub use node_wording::{LOST_HINT, unread};
pub use nodes_request::{
    Around, BeforeStart, Ending, Host, Line, News, NodesRequest, NotHeld, PartAnswer, PartSaid,
    PartTrouble, Purpose, Start, Wish,
};
