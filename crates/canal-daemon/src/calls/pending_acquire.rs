//! A request on its way to the table.

use std::sync::Arc;
use std::time::Instant;

use crate::processes::identity::OwnerFound;
use canal_core::{Command, HostId, Item, OnLost, Owner, Request, Tag, Wait};
use canal_sys::pidfd::Pidfd;

/// A request on its way to the table.
#[derive(Debug)]
pub(crate) struct PendingAcquire {
    pub request: Arc<Request>,
    /// The pidfd of the owner, if it is already open.
    pub pidfd: Option<Pidfd>,
    pub more: bool,
    /// The end of the deferral, if the daemon deferred the request instead of refusing it.
    pub deferred_until: Option<Instant>,
    /// The limit on waiting requests, if the user has reached it. The daemon then grants this
    /// request immediately or refuses it.
    pub crowd: Option<usize>,
    /// Whether the client only asks what it would be granted.
    pub is_question: bool,
}

impl PendingAcquire {
    /// A request that already waited, for the next membership of this host. The limit on waiting
    /// requests does not apply to it, and it supersedes no others again.
    pub(crate) fn again(mut request: Arc<Request>, more: bool, pidfd: Option<Pidfd>) -> Self {
        if request.max_waiting.is_some() || request.supersede.is_some() {
            let request = Arc::make_mut(&mut request);
            request.max_waiting = None;
            request.supersede = request.supersede.take().map(|it| it.but_none());
        }
        let (deferred_until, crowd) = (None, None);
        Self { request, pidfd, more, deferred_until, crowd, is_question: false }
    }

    /// The state for reports to the client while the shared log delays the request, if the request
    /// may wait.
    pub(crate) fn patience(&self) -> Option<Patience> {
        let Wait::Yes { until } = self.request.wait else { return None };
        let key =
            self.request.items.first().map(|item| item.key.text().clone()).unwrap_or_default();
        Some(Patience { until, untold: self.more, key })
    }

    /// Whether the request belongs to this owner.
    pub(crate) fn is_of(&self, owner: &OwnerFound) -> bool {
        self.request.owner == owner.owner && self.request.uid == owner.uid
    }
}

/// A request for these items that asks for nothing else, and does not wait.
pub(crate) fn plain_request(
    tag: Tag,
    host: HostId,
    (owner, uid): (Owner, u32),
    items: Vec<Item>,
) -> Request {
    Request {
        tag,
        host,
        owner,
        parent: None,
        uid,
        command: Command::default(),
        note: None,
        items,
        wait: Wait::No,
        priority: 0,
        max_waiting: None,
        supersede: None,
        max_run_ms: None,
        provisional: false,
        children: false,
        ttl_ms: None,
        on_lost: OnLost::default(),
        asker: None,
        over_nodes: None,
        above: None,
    }
}

/// The facts about a request that may wait, while the shared log delays it.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// When its wait expires, in milliseconds of CLOCK_BOOTTIME.
    pub until: Option<u64>,
    /// Whether the client accepts progress messages and has received none yet.
    pub untold: bool,
    /// The first key that it asks for.
    pub key: Arc<str>,
}
