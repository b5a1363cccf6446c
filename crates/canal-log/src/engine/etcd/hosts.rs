//! Incarnations: registers and withdraws them, and renews their leases.
//!
//! The number of an incarnation comes from a key that only registrations compare, so a registration
//! conflicts only with other registrations.

use std::collections::BTreeSet;
use std::time::Duration;

use super::error::EtcdError;
use super::layout::{Meta, Name, State, decode, encode, position};
use super::messages::{
    Lease, LeaseGrant, LeaseGranted, LeaseKept, Nothing, Ranged, Txn, TxnDone, all, delete, one,
    put, put_leased, reads, revision_is, value_is, version_is,
};
use super::shared::{OwnIncarnation, Shared};
use crate::engine::{Alive, Answer, Claimant, FORMAT, Identity, Position, Sign, thread};
use canal_core::HostId;

/// How many times other registrations may come first.
const TRIES: usize = 100;

/// A request to register.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub identity: Identity,
    pub nonce: u128,
    pub ttl_ms: u64,
    pub asked_at: u64,
}

/// The registered incarnations, all at one revision.
struct Registry {
    meta: Option<Meta>,
    /// The last number, and the revision of its key.
    next: (u64, i64),
    names: Vec<(HostId, Name)>,
    /// The leases of the incarnations that have one.
    leases: Vec<(HostId, i64)>,
}

pub(crate) async fn register(shared: Shared, registration: Registration) -> Result<(), EtcdError> {
    let lease = grant(&shared, &registration).await?;
    for _ in 0..TRIES {
        let seen = look(&shared).await?;
        if let Some(answer) = again(&shared, &registration, &seen).await? {
            revoke(&shared, lease.id).await?;
            shared.say(answer);
            return Ok(());
        }
        if let Some(answer) = enter(&shared, &registration, &seen, &lease).await? {
            shared.say(answer);
            return Ok(());
        }
    }
    Err(EtcdError::Away("too many daemons are registering at the same time".into()))
}

/// Withdraws an incarnation that has appended nothing.
pub(crate) async fn withdraw(shared: Shared, host: HostId) -> Result<(), EtcdError> {
    if let Some(own) = shared.own(host).await? {
        let keys = shared.keys();
        // Only its registration has put the key of its state.
        let compare = vec![value_is(keys.name(host), own.name), version_is(keys.state(host), 1)];
        let success = [keys.name(host), keys.state(host), keys.host(host)].map(delete).into();
        let txn = Txn { compare, success, failure: Vec::new() };
        if shared.client.txn(txn).await?.succeeded && own.lease != 0 {
            revoke(&shared, own.lease).await?;
        }
    }
    shared.say(Answer::Withdrawn { host });
    Ok(())
}

async fn grant(shared: &Shared, registration: &Registration) -> Result<LeaseGranted, EtcdError> {
    let ttl_s = i64::try_from(registration.ttl_ms.div_ceil(1000)).unwrap_or(i64::MAX).max(1);
    shared.client.ask("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl_s }).await
}

/// Revokes an unneeded lease.
async fn revoke(shared: &Shared, id: i64) -> Result<(), EtcdError> {
    match shared.client.ask("/etcdserverpb.Lease/LeaseRevoke", Lease { id }).await {
        Ok(Nothing {}) | Err(EtcdError::NoLease) => Ok(()),
        Err(other) => Err(other),
    }
}

async fn look(shared: &Shared) -> Result<Registry, EtcdError> {
    let keys = shared.keys();
    let ranges = [one(keys.meta()), one(keys.next()), all(keys.names()), all(keys.hosts())];
    let [meta, next, names, hosts] = shared.client.txn(reads(ranges)).await?.found();
    let meta = meta_of(&meta)?;
    let next = match next.first() {
        Some(kv) => (decode(kv)?, kv.mod_revision),
        None => (0, 0),
    };
    let name = |(host, kv)| Ok((host, decode(kv)?));
    let mut names =
        names.of_hosts(&keys.names()).map(name).collect::<Result<Vec<_>, EtcdError>>()?;
    names.sort_by_key(|(host, _)| *host);
    let leases = hosts.of_hosts(&keys.hosts()).map(|(host, kv)| (host, kv.lease)).collect();
    Ok(Registry { meta, next, names, leases })
}

/// The format and epoch of the log, if it exists and this program can read it.
pub(crate) fn meta_of(found: &Ranged) -> Result<Option<Meta>, EtcdError> {
    let Some(kv) = found.first() else { return Ok(None) };
    let meta: Meta = decode(kv)?;
    if meta.format == FORMAT {
        return Ok(Some(meta));
    }
    let why = format!(
        "the log in etcd has format {}, but this canal needs {FORMAT}: all hosts need the same \
         format",
        meta.format
    );
    Err(EtcdError::refused(
        why,
        "install the same version as on the other hosts, or use another prefix",
    ))
}

/// The answer to a repeated request: the incarnation with the same nonce, if it still lives.
///
/// Renews its lease, which may have been granted before this request.
async fn again(
    shared: &Shared,
    registration: &Registration,
    seen: &Registry,
) -> Result<Option<Answer>, EtcdError> {
    let nonce = hex(registration.nonce);
    let Some((host, name)) = seen.names.iter().find(|(_, name)| name.nonce == nonce) else {
        return Ok(None);
    };
    let Some((_, lease)) = seen.leases.iter().find(|(other, _)| other == host) else {
        return Ok(None);
    };
    let (ttl_ms, _) = keep(shared, *host, *lease).await?;
    if ttl_ms == 0 {
        return Ok(None);
    }
    shared.client.suit(ttl_ms);
    shared.remember(*host, OwnIncarnation { name: encode(name)?, lease: *lease, ttl_ms });
    registered(registration, seen, *host, ttl_ms, seen.meta.as_ref()).map(Some)
}

/// Takes the next number, unless another host has taken it.
async fn enter(
    shared: &Shared,
    registration: &Registration,
    seen: &Registry,
    lease: &LeaseGranted,
) -> Result<Option<Answer>, EtcdError> {
    let keys = shared.keys();
    let (last, revision) = seen.next;
    let host = HostId(last + 1);
    let ttl_ms = u64::try_from(lease.ttl_s).unwrap_or_default() * 1000;
    let name =
        encode(&Name { identity: registration.identity.clone(), nonce: hex(registration.nonce) })?;
    let state = State { sequence: 0, body: String::new(), ttl_ms };
    let mut txn = Txn {
        compare: vec![revision_is(keys.next(), revision)],
        success: vec![
            put(keys.next(), encode(&host)?),
            put(keys.name(host), name.clone()),
            put(keys.state(host), encode(&state)?),
            put_leased(keys.host(host), lease.id),
        ],
        failure: Vec::new(),
    };
    let meta = match &seen.meta {
        Some(meta) => meta.clone(),
        None => {
            let meta = Meta { format: FORMAT, epoch: hex(random()?) };
            txn.compare.push(revision_is(keys.meta(), 0));
            txn.success.push(put(keys.meta(), encode(&meta)?));
            meta
        }
    };
    let TxnDone { succeeded, .. } = shared.client.txn(txn).await.map_err(no_lease)?;
    if !succeeded {
        return Ok(None);
    }
    shared.client.suit(ttl_ms);
    shared.remember(host, OwnIncarnation { name, lease: lease.id, ttl_ms });
    registered(registration, seen, host, ttl_ms, Some(&meta)).map(Some)
}

/// The error for a lease that ended before it was used: the next request gets a new one.
fn no_lease(error: EtcdError) -> EtcdError {
    match error {
        EtcdError::NoLease => EtcdError::Away("etcd took longer than the TTL".into()),
        other => other,
    }
}

fn registered(
    registration: &Registration,
    seen: &Registry,
    host: HostId,
    ttl_ms: u64,
    meta: Option<&Meta>,
) -> Result<Answer, EtcdError> {
    let epoch = meta.and_then(|meta| u128::from_str_radix(&meta.epoch, 16).ok());
    let epoch = epoch.ok_or_else(|| {
        EtcdError::refused(
            "the log in etcd has no epoch",
            "use another prefix, or delete everything below this one",
        )
    })?;
    let others = seen.names.iter().filter(|(other, name)| {
        *other != host && name.identity.label == registration.identity.label
    });
    let others = others.map(|(other, name)| Claimant {
        host: *other,
        // An unreadable nonce matches no daemon.
        nonce: u128::from_str_radix(&name.nonce, 16).unwrap_or_default(),
        identity: name.identity.clone(),
    });
    let others = others.collect();
    Ok(Answer::Registered { host, ttl_ms, asked_at: registration.asked_at, epoch, others })
}

fn hex(number: u128) -> String {
    format!("{number:032x}")
}

pub(crate) fn random() -> Result<u128, EtcdError> {
    thread::random().map_err(|why| EtcdError::Refused { why, hint: None })
}

/// How many times a renewal is repeated because the leader changed meanwhile.
const RENEW_TRIES: usize = 3;

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
    for _ in 0..RENEW_TRIES {
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
