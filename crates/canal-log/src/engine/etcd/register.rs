//! Registers a new incarnation.
//!
//! The number comes from a key that only registrations compare, so a registration conflicts only
//! with other registrations.

use super::connection::error::EtcdError;
use super::connection::messages::{Lease, LeaseGrant, LeaseGranted, Nothing, Ranged, Txn, TxnDone};
use super::connection::transaction::{
    all, delete, one, put, put_leased, reads, revision_is, value_is, version_is,
};
use super::layout::{Meta, Name, State, decode, encode};
use super::renew::keep;
use super::shared::{OwnIncarnation, Shared};
use crate::engine::{Answer, Claimant, FORMAT, Identity, thread};
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
