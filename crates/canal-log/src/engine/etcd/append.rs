//! Appends a batch in one transaction, which also returns the reason if it was not carried out. It
//! does not compare the author's lease: an incarnation whose lease has expired has not ended until
//! another host's batch ends it, and until then its batches (above all, releases) are valid. Its
//! deadline prevents a late grant. The transaction compares no key that other appends write, so
//! concurrent appends do not conflict.

use super::connection::error::EtcdError;
use super::connection::messages::{Compare, KeyValue, Operation, Txn};
use super::connection::transaction::{delete, get, is_there, one, put, value_is, version_is};
use super::layout::{State, decode, encode, position};
use super::shared::{OwnIncarnation, Shared};
use crate::engine::{Answer, Append, Ends, Evidence, Hash};

/// The largest body of a batch, in bytes: etcd accepts requests of up to 1.5 MiB.
pub const BODY_MAX: usize = 1 << 20;

pub(crate) async fn append(shared: Shared, append: Append) -> Result<(), EtcdError> {
    if append.body.len() > BODY_MAX {
        let why = format!("a batch of {} bytes exceeds etcd's limit", append.body.len());
        return Err(EtcdError::Refused { why, hint: None });
    }
    let answer = loop {
        match append_once(&shared, &append).await {
            Err(EtcdError::Full) => shared.wait_for_room().await,
            done => break done?,
        }
    };
    shared.engine.has_room(true);
    shared.say(answer);
    Ok(())
}

async fn append_once(shared: &Shared, append: &Append) -> Result<Answer, EtcdError> {
    if let Some(Ends { evidence: Evidence::Silent { .. }, .. }) = append.ends {
        // etcd expires leases itself; one host's view of another's silence proves nothing.
        let Append { host, sequence, ends, .. } = *append;
        return Ok(Answer::Overtaken { host, sequence, ends });
    }
    let Some(own) = shared.own(append.host).await? else {
        return Ok(ended(append));
    };
    let txn = Txn {
        compare: conditions(shared, append, &own),
        success: changes(shared, append, &own)?,
        failure: questions(shared, append),
    };
    let done = shared.client.txn(txn).await?;
    if done.succeeded {
        let position = position(done.revision());
        shared.reaches(position.0);
        return Ok(Answer::Appended { host: append.host, sequence: append.sequence, position });
    }
    let [name, state, batch] = done.found();
    let lives = name.first().is_some_and(|kv| kv.value == own.name);
    verdict(append, state.first().filter(|_| lives), batch.first())
}

fn conditions(shared: &Shared, append: &Append, own: &OwnIncarnation) -> Vec<Compare> {
    let keys = shared.keys();
    let version = i64::try_from(append.sequence).unwrap_or(i64::MAX);
    let mut conditions = vec![
        value_is(keys.name(append.host), own.name.clone()),
        version_is(keys.state(append.host), version),
    ];
    if let Some(Ends { host, evidence }) = append.ends {
        conditions.push(match evidence {
            Evidence::Unknown => version_is(keys.state(host), 0),
            _ => is_there(keys.state(host)),
        });
        if evidence == Evidence::Lapsed {
            conditions.push(version_is(keys.host(host), 0));
        }
    }
    conditions
}

fn changes(
    shared: &Shared,
    append: &Append,
    own: &OwnIncarnation,
) -> Result<Vec<Operation>, EtcdError> {
    let keys = shared.keys();
    let mut changes = vec![
        put(keys.batch(append.host, append.sequence), append.body.clone()),
        put(keys.head(), Vec::new()),
    ];
    let ends = append.ends.map(|ends| ends.host);
    // A transaction may put a key only once.
    if ends != Some(append.host) {
        let body = Hash::of(&append.body).to_string();
        let state = State { sequence: append.sequence, body, ttl_ms: own.ttl_ms };
        changes.push(put(keys.state(append.host), encode(&state)?));
    }
    if let Some(host) = ends {
        changes.extend([keys.name(host), keys.state(host), keys.host(host)].map(delete));
    }
    Ok(changes)
}

fn questions(shared: &Shared, append: &Append) -> Vec<Operation> {
    let keys = shared.keys();
    let batch = keys.batch(append.host, append.sequence);
    [keys.name(append.host), keys.state(append.host), batch].map(|key| get(one(key))).into()
}

/// Why it was not carried out. `state` is `None` if the author has ended.
fn verdict(
    append: &Append,
    state: Option<&KeyValue>,
    batch: Option<&KeyValue>,
) -> Result<Answer, EtcdError> {
    let Append { host, sequence, .. } = *append;
    let appended =
        |kv: &KeyValue| Answer::Appended { host, sequence, position: position(kv.mod_revision) };
    let fenced = |why: String| Answer::Fenced { host, why };
    if let Some(batch) = batch {
        return Ok(if batch.value == append.body {
            appended(batch)
        } else {
            fenced(format!("another daemon is appending as host {}", append.host))
        });
    }
    let Some(kv) = state else {
        return Ok(ended(append));
    };
    let State { sequence: last, body, .. } = decode(kv)?;
    Ok(if last.checked_add(1) == Some(sequence) {
        Answer::Overtaken { host, sequence, ends: append.ends }
    } else if last == sequence && body == Hash::of(&append.body).to_string() {
        // A snapshot has covered it meanwhile.
        appended(kv)
    } else if last < sequence {
        fenced(format!("the log in etcd lost batches of host {}", append.host))
    } else {
        fenced(format!("another daemon is appending as host {}", append.host))
    })
}

fn ended(append: &Append) -> Answer {
    Answer::Fenced { host: append.host, why: format!("host {} was declared gone", append.host) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_core::HostId;

    fn ask(sequence: u64) -> Append {
        Append { host: HostId(1), sequence, body: b"body".into(), ends: None }
    }

    fn state(sequence: u64, body: &[u8]) -> KeyValue {
        let state = State { sequence, body: Hash::of(body).to_string(), ttl_ms: 1000 };
        KeyValue { value: encode(&state).unwrap(), mod_revision: 7, ..KeyValue::default() }
    }

    #[test]
    fn a_batch_that_a_snapshot_covered_counts_as_appended_if_it_is_the_same() {
        let same = verdict(&ask(3), Some(&state(3, b"body")), None).unwrap();
        assert!(matches!(same, Answer::Appended { sequence: 3, position, .. } if position.0 == 7));
        let other = verdict(&ask(3), Some(&state(3, b"other")), None).unwrap();
        assert!(matches!(other, Answer::Fenced { .. }));
    }

    #[test]
    fn only_a_batch_that_could_have_been_appended_is_overtaken() {
        let next = verdict(&ask(3), Some(&state(2, b"before")), None).unwrap();
        assert!(matches!(next, Answer::Overtaken { sequence: 3, .. }));
        let gap = verdict(&ask(3), Some(&state(1, b"before")), None).unwrap();
        assert!(matches!(gap, Answer::Fenced { why, .. } if why.contains("lost batches")));
        let old = verdict(&ask(3), Some(&state(4, b"after")), None).unwrap();
        assert!(matches!(old, Answer::Fenced { .. }));
        assert!(matches!(verdict(&ask(3), None, None).unwrap(), Answer::Fenced { .. }));
    }
}
