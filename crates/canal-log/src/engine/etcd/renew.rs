//! Renews the lease of an incarnation, and reads the other hosts' leases with the same transaction.

use std::collections::BTreeSet;
use std::time::Duration;

use super::connection::error::EtcdError;
use super::connection::messages::{Lease, LeaseKept, Ranged};
use super::connection::transaction::{all, one, reads};
use super::layout::{State, decode, position};
use super::shared::{OwnIncarnation, Shared};
use crate::engine::{Alive, Answer, Position, Sign};
use canal_core::HostId;

/// How many times a renewal is repeated because the leader changed meanwhile.
const TRIES: usize = 3;

pub(crate) async fn renew(shared: Shared, host: HostId, asked_at: u64) -> Result<(), EtcdError> {
    let answer = match shared.own(host).await? {
        None => ended(host),
        Some(own) if own.lease == 0 => lost(host),
        Some(own) => renew_own(&shared, host, &own, asked_at).await?,
    };
    shared.say(answer);
    Ok(())
}

async fn renew_own(
    shared: &Shared,
    host: HostId,
    own: &OwnIncarnation,
    asked_at: u64,
) -> Result<Answer, EtcdError> {
    let keys = shared.keys();
    let (ttl_ms, [name, hosts, states, head]) = keep(shared, host, own.lease).await?;
    if name.first().is_none_or(|kv| kv.value != own.name) {
        return Ok(ended(host));
    }
    let held = hosts.kvs.iter().any(|kv| kv.key == keys.host(host) && kv.lease == own.lease);
    if ttl_ms == 0 || !held {
        return Ok(lost(host));
    }
    let head = head.first().map_or(Position(0), |kv| position(kv.mod_revision));
    shared.reaches(head.0);
    Ok(Answer::Renewed { asked_at, ttl_ms, head, hosts: alive(shared, &hosts, &states)? })
}

/// Renews the lease, then reads this host's name, all hosts and states, and the head.
///
/// A leader that was cut off or stopped may renew a lease when there is already a new leader, which
/// does not know of it. So the read, which etcd confirms with a majority, comes after the renewal,
/// and both must be answered in the same term.
pub(crate) async fn keep(
    shared: &Shared,
    host: HostId,
    lease: i64,
) -> Result<(u64, [Ranged; 4]), EtcdError> {
    let keys = shared.keys();
    for _ in 0..TRIES {
        let kept = keep_alive(shared, lease).await?;
        let mut hosts = all(keys.hosts());
        hosts.keys_only = true;
        let ranges = [one(keys.name(host)), hosts, all(keys.states()), one(keys.head())];
        let done = shared.client.txn(reads(ranges)).await?;
        if kept.header.is_some_and(|header| header.raft_term == done.raft_term()) {
            let ttl_s = u64::try_from(kept.ttl_s).unwrap_or_default();
            return Ok((ttl_s * 1000, done.found()));
        }
    }
    Err(EtcdError::Away("etcd is electing a leader".into()))
}

async fn keep_alive(shared: &Shared, lease: i64) -> Result<LeaseKept, EtcdError> {
    match keep_alive_once(shared, lease).await {
        Err(EtcdError::Token) => {
            shared.client.log_in().await?;
            keep_alive_once(shared, lease).await
        }
        done => done,
    }
}

/// Renews the lease once, on a separate stream, so that an answer cannot be mistaken for that to
/// another request.
async fn keep_alive_once(shared: &Shared, id: i64) -> Result<LeaseKept, EtcdError> {
    let client = &shared.client;
    let path = "/etcdserverpb.Lease/LeaseKeepAlive";
    let mut kept = client.stream(path, tokio_stream::once(Lease { id })).await?;
    let answer: Option<LeaseKept> = client.within(kept.message()).await?;
    answer.ok_or_else(|| EtcdError::Away("etcd ended the renewal".into()))
}

/// All incarnations that have not ended, and which of them live.
///
/// An etcd before 3.4.31 or 3.5.13 may revoke leases that were renewed: a leader that hung causes
/// its successor to revoke them (etcd#15247). With these versions, a missing lease counts only
/// after another time to live, plus a tenth for the difference between clocks. By then, its owner
/// also knows or has given up.
fn alive(shared: &Shared, hosts: &Ranged, states: &Ranged) -> Result<Vec<Alive>, EtcdError> {
    let keys = shared.keys();
    let watched: BTreeSet<HostId> = hosts.of_hosts(&keys.hosts()).map(|(host, _)| host).collect();
    let mut alive = Vec::new();
    for (host, kv) in states.of_hosts(&keys.states()) {
        let State { ttl_ms, .. } = decode(kv)?;
        alive.push(Alive { host, ttl_ms, sign: Sign::Watched });
    }
    alive.sort_by_key(|alive| alive.host);
    let gone: Vec<_> =
        alive.iter().map(|alive| alive.host).filter(|host| !watched.contains(host)).collect();
    for (host, since) in gone.iter().zip(shared.lapsed(&gone)) {
        let its = alive.iter_mut().find(|alive| alive.host == *host);
        if let Some(its) = its.filter(|its| shared.exact || since >= surely(its.ttl_ms)) {
            its.sign = Sign::Lapsed;
        }
    }
    Ok(alive)
}

fn surely(ttl_ms: u64) -> Duration {
    Duration::from_millis(ttl_ms + ttl_ms.div_ceil(10))
}

fn ended(host: HostId) -> Answer {
    Answer::Fenced { host, why: format!("host {host} was declared gone") }
}

fn lost(host: HostId) -> Answer {
    Answer::Fenced { host, why: format!("etcd lost the lease of host {host}") }
}
