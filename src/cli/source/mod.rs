//! Takes locks for `canal run` and `canal acquire`: from a daemon, or from several nodes.

mod daemon;
mod nodes;
mod request;

use std::time::Duration;

use super::arguments::nodes::NodesArgs;
use crate::cli::{Global, Result, Target};
use crate::protocol::Acquire;
use crate::run::Taken;
use crate::run::nodes::{ChildEnd, Purpose};

pub(crate) use daemon::keys_granted;
pub(crate) use nodes::{Nodes, on_lease, print};
pub(crate) use request::{Asking, NotAcquired, Witness, request};

/// Where a lock is taken.
pub(crate) enum Source {
    /// It is taken from the daemon of this place.
    Daemon(Target),
    /// It is taken from several nodes.
    Nodes(Nodes),
}

impl Source {
    /// The daemon of this place, and how to start it.
    pub(crate) fn target(&self) -> &Target {
        match self {
            Self::Daemon(target) => target,
            Self::Nodes(nodes) => &nodes.target,
        }
    }

    /// The source that the options name, for a lock with this purpose.
    pub(crate) fn of(
        global: &Global,
        args: &NodesArgs,
        ttl: Option<Duration>,
        request: &Acquire,
        purpose: Purpose,
    ) -> Result<Self> {
        if !args.is_given() {
            return Target::of(global).map(Self::Daemon);
        }
        Nodes::of(global, args, ttl, request, purpose).map(Self::Nodes)
    }

    /// Sends the request and shows its progress until it is granted or refused. `end` belongs to a
    /// coordinator that already asks nodes; without one, a lease at nodes gets its own.
    pub(crate) fn take(
        &self,
        asking: &Asking<'_>,
        end: Option<ChildEnd>,
        witness: &mut dyn Witness,
    ) -> Result<Taken, NotAcquired> {
        match (self, end) {
            (Self::Daemon(target), _) => daemon::take(target, asking, witness),
            (Self::Nodes(nodes), Some(end)) => nodes.take(asking, end),
            (Self::Nodes(nodes), None) => nodes.take_lease(asking),
        }
    }
}
