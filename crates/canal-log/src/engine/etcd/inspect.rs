//! Inspects an etcd that no daemon uses yet.
//!
//! Invariant: it changes nothing. The only transaction with a write has a comparison that never
//! holds: etcd checks the user's rights, and writes nothing.

use std::rc::Rc;

use super::address::Address;
use super::client::{Client, explained};
use super::connect_and_serve::connect;
use super::error::{EtcdError, Result};
use super::hosts::meta_of;
use super::keys::{Keys, Name, decode};
use super::messages::{Range, Status, Txn, all, one, put, version_is};
use crate::engine::{Inspection, Outage, TableSize, Transport};

/// Inspects the members that an address names, and through the first usable one the table in that
/// etcd.
pub(super) async fn inspect(address: &Address) -> Inspection {
    let mut seen = Inspection {
        transport: if address.tls.is_some() { Transport::Encrypted } else { Transport::Plain },
        user: address.user.as_ref().map(|user| user.name.clone()),
        ..Inspection::default()
    };
    let mut usable = None;
    for endpoint in &address.endpoints {
        let version = match connect(address, endpoint, &Rc::default()).await {
            Ok((client, status, _)) => {
                let version = format!("etcd {}", status.version);
                usable.get_or_insert((client, status));
                Ok(version)
            }
            Err(error) => Err(explained(error, endpoint, address)),
        };
        seen.servers.push((endpoint.clone(), version));
    }
    if let Some((client, status)) = usable
        && let Err(error) = look(&client, &status, &Keys::new(&address.prefix), &mut seen).await
    {
        seen.obstacles.push(error.into());
    }
    seen
}

async fn look(client: &Client, status: &Status, keys: &Keys, seen: &mut Inspection) -> Result<()> {
    for alarm in &status.errors {
        if alarm.contains("NOSPACE") {
            seen.obstacles.push(Outage::from(EtcdError::Full));
        } else {
            let what = format!("etcd reports an alarm: {alarm}");
            seen.remarks.push((what, "see `etcdctl alarm list`"));
        }
    }
    let everything = Range { limit: 1, keys_only: true, ..all(keys.everything()) };
    let log = Range { limit: 1, keys_only: true, ..all(keys.log()) };
    let ranges = [everything, one(keys.meta()), all(keys.names()), log];
    let (_, [_, meta, names, log]) = client.read(ranges).await?;
    if seen.obstacles.is_empty() {
        // Checks that the user may write below the prefix. The version of a key is never less than
        // 0, so nothing is written.
        let compare = vec![version_is(keys.meta(), -1)];
        let success = vec![put(keys.never_written(), Vec::new())];
        client.txn(Txn { compare, success, ..Txn::default() }).await?;
    }
    if meta_of(&meta)?.is_none() {
        return Ok(());
    }
    seen.table = Some(TableSize {
        batches: u64::try_from(log.count).unwrap_or_default(),
        bytes: u64::try_from(status.db_size).unwrap_or_default(),
        of_server: true,
    });
    let name = |kv| decode::<Name>(kv).map(|name| name.identity);
    seen.hosts = names.kvs.iter().map(name).collect::<Result<_>>()?;
    Ok(())
}
