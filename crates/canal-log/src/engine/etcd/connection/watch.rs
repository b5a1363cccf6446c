//! A watch on the batches.

use tokio_stream::StreamExt;
use tonic::Streaming;

use super::client::Client;
use super::error::EtcdError;
use super::messages::{Filter, KeyValue, WatchAsk, WatchCreate, WatchRequest, Watched};
use super::transaction::end_of;

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// Reports every put below a prefix from a revision on, in the order of revisions.
#[derive(Debug)]
pub(crate) struct Watch {
    answers: Streaming<Watched>,
}

impl Watch {
    /// Fails with [`EtcdError::OtherRevision`], here or later, if the wanted revisions were
    /// compacted.
    pub(crate) async fn new(
        client: &Client,
        prefix: Vec<u8>,
        revision: i64,
    ) -> Result<Self, EtcdError> {
        match Self::create(client, prefix.clone(), revision).await {
            Err(EtcdError::Token) => {
                client.log_in().await?;
                Self::create(client, prefix, revision).await.map_err(forbidden)
            }
            done => done,
        }
    }

    async fn create(client: &Client, prefix: Vec<u8>, revision: i64) -> Result<Self, EtcdError> {
        let create = WatchCreate {
            range_end: end_of(&prefix),
            key: prefix,
            start_revision: revision,
            progress_notify: true,
            // Batches are deleted when a snapshot covers them; readers need no event for that.
            filters: vec![Filter::NoDelete as i32],
            fragment: true,
        };
        let ask = WatchRequest { ask: Some(WatchAsk::Create(create)) };
        // The watch ends when the stream of questions ends.
        let asks = tokio_stream::once(ask).chain(tokio_stream::pending());
        let mut answers = client.stream(PATH, asks).await?;
        let created = client.within(answers.message()).await?;
        unless_canceled(created)?;
        Ok(Self { answers })
    }

    /// The next puts, perhaps none. Waits without a limit.
    pub(crate) async fn next(&mut self) -> Result<Vec<KeyValue>, EtcdError> {
        let answer = unless_canceled(self.answers.message().await?)?;
        let puts = answer.events.into_iter().filter(|event| event.kind == 0);
        Ok(puts.filter_map(|event| event.kv).collect())
    }
}

/// The error of a new watch. Its token was just issued, so the token is not the cause.
fn forbidden(error: EtcdError) -> EtcdError {
    match error {
        EtcdError::Token => EtcdError::forbidden(),
        other => other,
    }
}

fn unless_canceled(answer: Option<Watched>) -> Result<Watched, EtcdError> {
    match answer {
        None => Err(EtcdError::Away("etcd ended the watch".into())),
        Some(answer) if answer.compact_revision > 0 => Err(EtcdError::OtherRevision),
        // The member gives this reason for a missing right, but also for a token that it does not
        // know.
        Some(answer) if answer.cancel_reason.contains("ermission") => Err(EtcdError::Token),
        Some(answer) if answer.canceled => {
            Err(EtcdError::Away(format!("etcd ended the watch: {}", answer.cancel_reason)))
        }
        Some(answer) => Ok(answer),
    }
}
