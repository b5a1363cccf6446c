//! The state that the tasks of an engine share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::client::{Client, Known};
use super::error::{EtcdError, FULL, ROOM, Result};
use super::keys::{Keys, State};
use super::messages::one;
use crate::engine::Answer;
use canal_core::HostId;

/// How long a call waits before it is repeated on a full etcd.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// The state that outlives a connection.
#[derive(Debug)]
pub(super) struct EngineState {
    pub(super) keys: Keys,
    pub(super) known: Rc<Known>,
    answers: mpsc::UnboundedSender<Answer>,
    own: RefCell<BTreeMap<HostId, OwnIncarnation>>,
    /// When the leases of incarnations that have not ended were first found to be gone.
    lapsed: RefCell<BTreeMap<HostId, Instant>>,
    /// The position of the last batch, if known.
    head: watch::Sender<u64>,
    /// Whether etcd was full when last seen.
    full: Cell<bool>,
}

impl EngineState {
    pub(super) fn new(keys: Keys, answers: mpsc::UnboundedSender<Answer>) -> Self {
        Self {
            keys,
            known: Rc::default(),
            answers,
            own: RefCell::default(),
            lapsed: RefCell::default(),
            head: watch::Sender::new(0),
            full: Cell::default(),
        }
    }

    /// Sends an answer. Ignores a missing receiver, which other code detects.
    pub(super) fn say(&self, answer: Answer) {
        let _ = self.answers.send(answer);
    }

    /// Records whether etcd accepts writes. Logs and reports each change.
    pub(super) fn has_room(&self, has: bool) {
        if self.full.replace(!has) != has {
            return;
        }
        if has {
            tracing::info!("etcd accepts writes again");
            self.say(Answer::Full(None));
        } else {
            tracing::error!("{FULL}; {ROOM}");
            self.say(Answer::Full(Some(EtcdError::Full.into())));
        }
    }

    pub(super) fn remember(&self, host: HostId, own: OwnIncarnation) {
        self.own.borrow_mut().insert(host, own);
    }

    /// For how long the leases of these hosts have been known to be gone. All other hosts have a
    /// lease.
    ///
    /// The clock stops during suspend, which only makes the time longer.
    pub(super) fn lapsed(&self, hosts: &[HostId]) -> Vec<Duration> {
        let mut lapsed = self.lapsed.borrow_mut();
        lapsed.retain(|host, _| hosts.contains(host));
        let now = Instant::now();
        hosts.iter().map(|&host| now - *lapsed.entry(host).or_insert(now)).collect()
    }

    /// Publishes the end of the log to readers: an earlier one than before if the log was
    /// recreated.
    pub(super) fn reaches(&self, head: u64) {
        self.head.send_if_modified(|known| std::mem::replace(known, head) != head);
    }

    /// Returns when the log is known to reach beyond a position.
    pub(super) async fn beyond(&self, position: u64) {
        // The sender is in `self`.
        let _ = self.head.subscribe().wait_for(|head| *head > position).await;
    }
}

/// The answer to a call in the name of a host that has ended.
pub(super) fn declared_gone(host: HostId) -> Answer {
    Answer::Fenced { host, why: format!("host {host} was declared gone") }
}

/// An incarnation of this daemon.
#[derive(Clone, Debug)]
pub(super) struct OwnIncarnation {
    /// The value of its `names` key. It contains the nonce, so that an incarnation of the same
    /// number in another history is not mistaken for this one.
    pub(super) name: Vec<u8>,
    /// The lease of its `hosts` key; 0 once it has none.
    pub(super) lease: i64,
    /// The TTL that etcd granted.
    pub(super) ttl_ms: u64,
}

/// The state that all tasks of one connection share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) engine: Rc<EngineState>,
    /// Whether a missing lease proves that it was not renewed in time.
    pub(super) exact: bool,
}

impl Shared {
    pub(super) fn keys(&self) -> &Keys {
        &self.engine.keys
    }

    /// The incarnation of this daemon with that number; `None` if it has ended.
    pub(super) async fn own(&self, host: HostId) -> Result<Option<OwnIncarnation>> {
        let known = self.engine.own.borrow().get(&host).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let keys = self.keys();
        let ranges = [one(keys.name(host)), one(keys.state(host)), one(keys.host(host))];
        let (_, [name, state, lease]) = self.client.read(ranges).await?;
        let (Some(name), Some((State { ttl_ms, .. }, _))) = (name.kvs.first(), state.value()?)
        else {
            return Ok(None);
        };
        let lease = lease.kvs.first().map_or(0, |kv| kv.lease);
        let own = OwnIncarnation { name: name.value.clone(), lease, ttl_ms };
        self.engine.remember(host, own.clone());
        Ok(Some(own))
    }

    /// Writes, as soon as etcd has room for it.
    pub(super) async fn once_there_is_room<T>(
        &self,
        write: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match write().await {
                Err(EtcdError::Full) => {
                    self.engine.has_room(false);
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                done => return done,
            }
        }
    }
}
