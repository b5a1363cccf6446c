//! Hosts for the tests of etcd, and the conditions that these wait for.

use std::time::{Duration, Instant};

use canal::log::engine::{Alive, Answer, Call, Position, Registration};

use super::open;
use crate::engine_contract::peer::{BOUND, Peer, read_of};

/// How long a test waits to confirm that no answer comes.
pub(crate) const WHILE: Duration = Duration::from_millis(400);

/// How often a reading host renews.
const RENEWAL: Duration = Duration::from_secs(1);

/// A host for an address.
pub(crate) fn peer(address: &str, label: &str) -> Peer {
    Peer::with(open(address), label)
}

/// A host for an address, registered and reading.
pub(crate) fn joined(address: &str, label: &str) -> Peer {
    let mut peer = peer(address, label);
    peer.register();
    peer.load();
    peer
}

/// Registers with a TTL. Returns the granted TTL.
pub(crate) fn register_for(peer: &mut Peer, ttl_ms: u64) -> u64 {
    let (identity, nonce) = (peer.identity(), crate::engine_contract::peer::nonce());
    peer.call(Call::Register(Registration { identity, nonce, ttl_ms, asked_at: 1 }));
    let (host, ttl_ms) = peer.until("Registered", |answer| match answer {
        Answer::Registered { host, ttl_ms, .. } => Some((*host, *ttl_ms)),
        _ => None,
    });
    peer.host = host;
    ttl_ms
}

pub(crate) fn away(peer: &mut Peer) -> String {
    peer.until("Away", |answer| match answer {
        Answer::Away(outage) => Some(outage.why.clone()),
        _ => None,
    })
}

pub(crate) fn back(peer: &mut Peer) {
    peer.until("Back", |answer| matches!(answer, Answer::Back).then_some(()));
}

pub(crate) fn unable(peer: &mut Peer) -> (String, String) {
    peer.until("a refusal", |answer| match answer {
        Answer::Away(it) if it.refused => {
            Some((it.why.clone(), it.hint.clone().unwrap_or_default()))
        }
        _ => None,
    })
}

/// The reason for the refusal of a renewal.
pub(crate) fn fenced_renewal(peer: &mut Peer) -> String {
    peer.call(Call::Renew { host: peer.host, asked_at: 2 });
    peer.until("Fenced", |answer| match answer {
        Answer::Fenced { why, .. } => Some(why.clone()),
        _ => None,
    })
}

/// Renews. Returns the living hosts, `Some(None)` if fenced, or `None` if etcd did not answer soon
/// enough.
pub(crate) fn renew_unless_away(peer: &mut Peer) -> Option<Option<Vec<Alive>>> {
    let me = peer.host;
    peer.call(Call::Renew { host: me, asked_at: 3 });
    peer.until("answer to Renew", |answer| match answer {
        Answer::Renewed { hosts, .. } => Some(Some(Some(hosts.clone()))),
        Answer::Fenced { host, .. } if *host == me => Some(Some(None)),
        Answer::Away(_) => Some(None),
        _ => None,
    })
}

/// Fails if any answer comes within a while.
pub(crate) fn nothing_comes(peer: &mut Peer) {
    let end = Instant::now() + WHILE;
    if let Some(answer) = peer.poll(end - Instant::now()) {
        panic!("{answer:?} came");
    }
}

/// Follows the log from its last batch on.
pub(crate) fn read_on(peer: &mut Peer) {
    let after = peer.log.last().map(read_of);
    peer.call(Call::Follow { after });
}

/// Appends the next batch, over as many connections as necessary.
pub(crate) fn append_at_last(peer: &mut Peer, body: &[u8]) -> Position {
    peer.sequence += 1;
    let sequence = peer.sequence;
    loop {
        peer.ask(sequence, body, None);
        let appended = peer.until("Appended or Back", |answer| match answer {
            Answer::Appended { sequence: n, position, .. } if *n == sequence => {
                Some(Some(*position))
            }
            Answer::Back => Some(None),
            Answer::Fenced { why, .. } => panic!("{why}"),
            _ => None,
        });
        match appended {
            Some(position) => return position,
            None => read_on(peer),
        }
    }
}

/// Reads until it has `count` batches, over as many connections as necessary. It renews repeatedly,
/// as a host does: a renewal shows what a watch has missed.
pub(crate) fn read_at_last(peer: &mut Peer, count: usize) {
    let mut latest = Instant::now();
    while peer.log.len() < count {
        match peer.poll(RENEWAL) {
            Some(Answer::Batches(batches)) => {
                peer.log.extend(batches);
                latest = Instant::now();
            }
            Some(Answer::Back) => read_on(peer),
            Some(answer @ (Answer::Rewritten | Answer::Compacted)) => {
                panic!("{answer:?}")
            }
            Some(answer) => peer.kept.push_back(answer),
            None => peer.call(Call::Renew { host: peer.host, asked_at: 0 }),
        }
        let (late, read) = (latest.elapsed() > BOUND, peer.log.len());
        assert!(!late, "{read} of {count} were read, then came {:?}", peer.kept);
    }
}
