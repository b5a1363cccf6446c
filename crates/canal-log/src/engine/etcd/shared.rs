//! The state that the tasks of an engine share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::client::Client;
use super::error::{EtcdError, FULL, ROOM};
use super::layout::{Keys, State, decode};
use super::messages::{one, reads};
use crate::engine::Answer;
use canal_core::HostId;

/// How long a call waits before it is repeated on a full etcd.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// The state that outlives a connection.
#[derive(Clone, Debug)]
pub(super) struct EngineState {
    pub(super) keys: Keys,
    answers: mpsc::UnboundedSender<Answer>,
    own: Arc<Mutex<BTreeMap<HostId, OwnIncarnation>>>,
    /// When the leases of incarnations that have not ended were first found to be gone.
    lapsed: Arc<Mutex<BTreeMap<HostId, Instant>>>,
    /// The position of the last batch, if known.
    head: Arc<watch::Sender<u64>>,
    /// Whether etcd was full when last seen.
    full: Arc<AtomicBool>,
}

impl EngineState {
    pub(super) fn new(keys: Keys, answers: mpsc::UnboundedSender<Answer>) -> Self {
        Self {
            keys,
            answers,
            own: Arc::default(),
            lapsed: Arc::default(),
            head: Arc::new(watch::Sender::new(0)),
            full: Arc::default(),
        }
    }

    /// Sends an answer. Ignores a missing receiver, which other code detects.
    pub(super) fn say(&self, answer: Answer) {
        let _ = self.answers.send(answer);
    }

    /// Records whether etcd accepts writes. Logs and reports each change.
    pub(super) fn has_room(&self, has: bool) {
        match (self.full.swap(!has, Ordering::Relaxed), has) {
            (false, false) => {
                tracing::error!("{FULL}; {ROOM}");
                self.say(Answer::Full(Some(EtcdError::Full.into())));
            }
            (true, true) => {
                tracing::info!("etcd accepts writes again");
                self.say(Answer::Full(None));
            }
            (true, false) | (false, true) => {}
        }
    }
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
    pub(super) engine: EngineState,
    /// Whether a missing lease proves that it was not renewed in time.
    pub(super) exact: bool,
}

impl Shared {
    pub(super) fn keys(&self) -> &Keys {
        &self.engine.keys
    }

    pub(super) fn say(&self, answer: Answer) {
        self.engine.say(answer);
    }

    pub(super) fn remember(&self, host: HostId, own: OwnIncarnation) {
        self.engine.own.lock().unwrap_or_else(PoisonError::into_inner).insert(host, own);
    }

    /// The incarnation of this daemon with that number; `None` if it has ended.
    pub(super) async fn own(&self, host: HostId) -> Result<Option<OwnIncarnation>, EtcdError> {
        let known =
            self.engine.own.lock().unwrap_or_else(PoisonError::into_inner).get(&host).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let keys = self.keys();
        let ranges = [one(keys.name(host)), one(keys.state(host)), one(keys.host(host))];
        let [name, state, lease] = self.client.txn(reads(ranges)).await?.found();
        let (Some(name), Some(state)) = (name.first(), state.first()) else {
            return Ok(None);
        };
        let State { ttl_ms, .. } = decode(state)?;
        let lease = lease.first().map_or(0, |kv| kv.lease);
        let own = OwnIncarnation { name: name.value.clone(), lease, ttl_ms };
        self.remember(host, own.clone());
        Ok(Some(own))
    }

    /// For how long the leases of these hosts have been known to be gone. All other hosts have a
    /// lease.
    ///
    /// The clock stops during suspend, which only makes the time longer.
    pub(super) fn lapsed(&self, hosts: &[HostId]) -> Vec<Duration> {
        let mut lapsed = self.engine.lapsed.lock().unwrap_or_else(PoisonError::into_inner);
        lapsed.retain(|host, _| hosts.contains(host));
        let now = Instant::now();
        hosts.iter().map(|&host| now - *lapsed.entry(host).or_insert(now)).collect()
    }

    /// Publishes the end of the log to readers: an earlier one than before if the log was
    /// recreated.
    pub(super) fn reaches(&self, head: u64) {
        self.engine.head.send_if_modified(|known| std::mem::replace(known, head) != head);
    }

    /// Returns when the log is known to reach beyond a position.
    pub(super) async fn beyond(&self, position: u64) {
        let mut head = self.engine.head.subscribe();
        // The sender is in `self`.
        let _ = head.wait_for(|head| *head > position).await;
    }

    /// Waits until a full etcd may accept writes again.
    pub(super) async fn wait_for_room(&self) {
        self.engine.has_room(false);
        tokio::time::sleep(FULL_PAUSE).await;
    }
}
