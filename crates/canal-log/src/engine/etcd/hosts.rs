//! Incarnations: registers and withdraws them, and renews their leases.
//!
//! The number of an incarnation comes from a key that only registrations compare, so a registration
//! conflicts only with other registrations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::error::{EtcdError, Result};
use super::keys::{Format, Meta, Name, State, decode, position};
use super::messages::{
    Lease, LeaseGrant, LeaseLives, Range, Ranged, Txn, all, delete, one, put, put_leased,
    revision_is, value_is, version_is,
};
use super::shared::{OwnIncarnation, Shared, declared_gone};
use crate::engine::encoding::json;
use crate::engine::engine_thread::random;
use crate::engine::{Alive, Answer, Claimant, FORMAT, Position, Registration, Sign};
use canal_core::HostId;

/// How many times other registrations may come first.
const TRIES: usize = 100;

/// How many times a renewal is repeated because the leader changed meanwhile.
const RENEW_TRIES: usize = 3;

/// The registered incarnations, all at one revision.
struct Registry {
    meta: Option<Meta>,
    /// The last number, and the revision of its key.
    next: (u64, i64),
    names: BTreeMap<HostId, Name>,
    /// The leases of the incarnations that have one.
    leases: BTreeMap<HostId, i64>,
}

pub(crate) async fn register(shared: Shared, registration: Registration) -> Result<()> {
    let ttl_s = i64::try_from(registration.ttl_ms.div_ceil(1000)).unwrap_or(i64::MAX).max(1);
    let lease: LeaseLives =
        shared.client.ask("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl_s }).await?;
    for _ in 0..TRIES {
        let seen = look(&shared).await?;
        let mut mine = again(&shared, &registration, &seen).await?;
        if mine.is_some() {
            revoke(&shared, lease.id).await?;
        } else {
            mine = enter(&shared, &registration, &seen, &lease).await?;
        }
        let Some((host, own, epoch)) = mine else { continue };
        let Registration { identity, asked_at, .. } = registration;
        let ttl_ms = own.ttl_ms;
        shared.engine.known.suit(ttl_ms);
        shared.engine.remember(host, own);
        let claimant = |(other, name): (HostId, Name)| {
            let claims = other != host && name.identity.label == identity.label;
            let nonce = u128::from_be_bytes(name.nonce);
            claims.then_some(Claimant { host: other, nonce, identity: name.identity })
        };
        let others = seen.names.into_iter().filter_map(claimant).collect();
        let epoch = u128::from_be_bytes(epoch);
        shared.engine.say(Answer::Registered { host, ttl_ms, asked_at, epoch, others });
        return Ok(());
    }
    Err(EtcdError::away("too many daemons are registering at the same time"))
}

/// Withdraws an incarnation that has appended nothing.
pub(crate) async fn withdraw(shared: Shared, host: HostId) -> Result<()> {
    if let Some(own) = shared.own(host).await? {
        let keys = shared.keys();
        // Only its registration has put the key of its state.
        let compare = vec![value_is(keys.name(host), own.name), version_is(keys.state(host), 1)];
        let success = [keys.name(host), keys.state(host), keys.host(host)].map(delete).into();
        let txn = Txn { compare, success, ..Txn::default() };
        if shared.client.txn(txn).await?.succeeded && own.lease != 0 {
            revoke(&shared, own.lease).await?;
        }
    }
    shared.engine.say(Answer::Withdrawn { host });
    Ok(())
}

/// Revokes an unneeded lease.
async fn revoke(shared: &Shared, id: i64) -> Result<()> {
    match shared.client.ask("/etcdserverpb.Lease/LeaseRevoke", Lease { id }).await {
        Ok(()) | Err(EtcdError::NoLease) => Ok(()),
        Err(other) => Err(other),
    }
}

async fn look(shared: &Shared) -> Result<Registry> {
    let keys = shared.keys();
    let ranges = [one(keys.meta()), one(keys.next()), all(keys.names()), all(keys.hosts())];
    let (_, [meta, next, names, hosts]) = shared.client.read(ranges).await?;
    let (meta, next) = (meta_of(&meta)?, next.value()?.unwrap_or_default());
    let names = names.of_hosts(keys.names()).map(|(host, kv)| Ok((host, decode(kv)?)));
    let names = names.collect::<Result<_>>()?;
    let leases = hosts.of_hosts(keys.hosts()).map(|(host, kv)| (host, kv.lease)).collect();
    Ok(Registry { meta, next, names, leases })
}

/// The format and epoch of the log, if it exists and this program can read it.
pub(crate) fn meta_of(found: &Ranged) -> Result<Option<Meta>> {
    let Some(kv) = found.kvs.first() else { return Ok(None) };
    let Format { format } = decode(kv)?;
    if format == FORMAT {
        return decode(kv).map(Some);
    }
    let why = format!(
        "the log in etcd has format {format}, but this canal needs {FORMAT}: all hosts need the \
         same format"
    );
    let hint = "install the same version as on the other hosts, or use another prefix";
    Err(EtcdError::refused(why, hint))
}

/// An incarnation of this daemon, and the epoch of the log.
type Mine = (HostId, OwnIncarnation, [u8; 16]);

/// The incarnation with the nonce of a repeated request, if it still lives.
///
/// Renews its lease, which may have been granted before this request.
async fn again(shared: &Shared, asked: &Registration, seen: &Registry) -> Result<Option<Mine>> {
    let nonce = asked.nonce.to_be_bytes();
    let known = seen.names.iter().find(|(_, name)| name.nonce == nonce);
    let leased = known.and_then(|(host, name)| Some((*host, name, *seen.leases.get(host)?)));
    let (Some((host, name, lease)), Some(meta)) = (leased, &seen.meta) else { return Ok(None) };
    let (ttl_ms, _) = keep(shared, host, lease).await?;
    let own = OwnIncarnation { name: json(name), lease, ttl_ms };
    Ok((ttl_ms > 0).then_some((host, own, meta.epoch)))
}

/// Takes the next number, unless another host has taken it.
async fn enter(
    shared: &Shared,
    asked: &Registration,
    seen: &Registry,
    lease: &LeaseLives,
) -> Result<Option<Mine>> {
    let keys = shared.keys();
    let (last, revision) = seen.next;
    let host = HostId(last + 1);
    let ttl_ms = lease.ttl_ms();
    let (identity, nonce) = (asked.identity.clone(), asked.nonce.to_be_bytes());
    let name = json(&Name { identity, nonce });
    let state = State { sequence: 0, body: String::new(), ttl_ms };
    let mut txn = Txn {
        compare: vec![revision_is(keys.next(), revision)],
        success: vec![
            put(keys.next(), json(&host)),
            put(keys.name(host), name.clone()),
            put(keys.state(host), json(&state)),
            put_leased(keys.host(host), lease.id),
        ],
        failure: Vec::new(),
    };
    let epoch = match &seen.meta {
        Some(meta) => meta.epoch,
        None => {
            let epoch = random()?.to_be_bytes();
            txn.compare.push(revision_is(keys.meta(), 0));
            txn.success.push(put(keys.meta(), json(&Meta { format: FORMAT, epoch })));
            epoch
        }
    };
    let done = match shared.client.txn(txn).await {
        // The lease ended before it was used: the next request gets a new one.
        Err(EtcdError::NoLease) => return Err(EtcdError::away("etcd took longer than the TTL")),
        done => done?,
    };
    let own = OwnIncarnation { name, lease: lease.id, ttl_ms };
    Ok(done.succeeded.then_some((host, own, epoch)))
}

/// Renews the lease of an incarnation, and reads the other hosts' leases.
pub(crate) async fn renew(shared: Shared, host: HostId, asked_at: u64) -> Result<()> {
    let lost = Answer::Fenced { host, why: format!("etcd lost the lease of host {host}") };
    let answer = match shared.own(host).await? {
        None => declared_gone(host),
        Some(own) if own.lease == 0 => lost,
        Some(own) => {
            let (ttl_ms, [name, hosts, states, head]) = keep(&shared, host, own.lease).await?;
            let key = shared.keys().host(host);
            let is_held = hosts.kvs.iter().any(|kv| kv.key == key && kv.lease == own.lease);
            if name.kvs.first().is_none_or(|kv| kv.value != own.name) {
                declared_gone(host)
            } else if ttl_ms == 0 || !is_held {
                lost
            } else {
                let head = head.kvs.first().map_or(Position(0), |kv| position(kv.mod_revision));
                shared.engine.reaches(head.0);
                Answer::Renewed { asked_at, ttl_ms, head, hosts: alive(&shared, &hosts, &states)? }
            }
        }
    };
    shared.engine.say(answer);
    Ok(())
}

/// Renews the lease, then reads this host's name, all hosts and states, and the head.
///
/// A leader that was cut off or stopped may renew a lease when there is already a new leader, which
/// does not know of it. So the read, which etcd confirms with a majority, comes after the renewal,
/// and both must be answered in the same term.
async fn keep(shared: &Shared, host: HostId, lease: i64) -> Result<(u64, [Ranged; 4])> {
    let keys = shared.keys();
    for _ in 0..RENEW_TRIES {
        // On a separate stream, so that an answer cannot be mistaken for that to another request.
        let client = &shared.client;
        let kept = client.with_token(async || {
            let question = tokio_stream::once(Lease { id: lease });
            let mut kept = client.stream("/etcdserverpb.Lease/LeaseKeepAlive", question).await?;
            client.within(kept.message()).await
        });
        let kept: Option<LeaseLives> = kept.await?;
        let kept = kept.ok_or_else(|| EtcdError::away("etcd ended the renewal"))?;
        let hosts = Range { keys_only: true, ..all(keys.hosts()) };
        let ranges = [one(keys.name(host)), hosts, all(keys.states()), one(keys.head())];
        let (header, found) = client.read(ranges).await?;
        if kept.header.raft_term == header.raft_term {
            return Ok((kept.ttl_ms(), found));
        }
    }
    Err(EtcdError::away("etcd is electing a leader"))
}

/// All incarnations that have not ended, and which of them live.
///
/// An etcd before 3.4.31 or 3.5.13 may revoke leases that were renewed: a leader that hung causes
/// its successor to revoke them (etcd#15247). With these versions, a missing lease counts only
/// after another time to live, plus a tenth for the difference between clocks. By then, its owner
/// also knows or has given up.
fn alive(shared: &Shared, hosts: &Ranged, states: &Ranged) -> Result<Vec<Alive>> {
    let keys = shared.keys();
    let watched: BTreeSet<HostId> = hosts.of_hosts(keys.hosts()).map(|(host, _)| host).collect();
    let states = states.of_hosts(keys.states()).map(|(host, kv)| {
        Ok(Alive { host, ttl_ms: decode::<State>(kv)?.ttl_ms, sign: Sign::Watched })
    });
    let mut alive = states.collect::<Result<Vec<Alive>>>()?;
    alive.sort_by_key(|alive| alive.host);
    let mut gone: Vec<_> = alive.iter_mut().filter(|it| !watched.contains(&it.host)).collect();
    let lapsed = shared.engine.lapsed(&gone.iter().map(|it| it.host).collect::<Vec<_>>());
    for (its, since) in gone.iter_mut().zip(lapsed) {
        let surely = Duration::from_millis(its.ttl_ms + its.ttl_ms.div_ceil(10));
        if shared.exact || since >= surely {
            its.sign = Sign::Lapsed;
        }
    }
    Ok(alive)
}
