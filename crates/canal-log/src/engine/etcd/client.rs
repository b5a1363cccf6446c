//! A connection to one member of an etcd.
//!
//! Invariant: every call ends within the bound on one call. A lost connection stays lost: the next
//! one may lead to another history, which is checked first.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::client::legacy::connect::HttpConnector;
use prost::Message;
use tokio::time::timeout;
use tokio_stream::{Stream, StreamExt};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::address::{Address, Tls, User};
use super::error::{EtcdError, certificate};
use super::messages::{
    Authenticate, Authenticated, Filter, KeyValue, Nothing, Status as MemberStatus, Txn, TxnDone,
    WatchAsk, WatchCreate, WatchRequest, Watched, end_of,
};
use crate::engine::Era;
use crate::engine::calls::innermost;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How often to ping a silent connection. etcd closes those that are pinged more often than every 5
/// s (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(10);

/// How long a connection may be silent after a ping.
const PING_WITHIN: Duration = Duration::from_secs(5);

/// The bound on one call before a time to live is known. etcd itself gives up on a proposal after
/// 7 s with its default election timeout.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(7);

/// The bound on one call, which every connection of an engine shares.
#[derive(Clone, Debug)]
pub(crate) struct CallTimeout(Arc<AtomicU64>);

impl CallTimeout {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(u64::try_from(CALL_MAX.as_millis()).unwrap_or(u64::MAX))))
    }

    /// A call that takes a third of the time to live has failed, so that there is time for another.
    pub(crate) fn suit(&self, ttl_ms: u64) {
        let max = u64::try_from(CALL_MAX.as_millis()).unwrap_or(u64::MAX);
        self.0.store((ttl_ms / 3).clamp(500, max), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// A connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    channel: Channel,
    user: Option<User>,
    token: Arc<Mutex<Option<MetadataValue<Ascii>>>>,
    patience: CallTimeout,
    pub last_seen: LastSeen,
}

/// Connects once.
#[derive(Debug)]
struct SingleUseConnector(Option<HttpConnector>);

impl SingleUseConnector {
    fn within(patience: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(patience));
        Self(Some(connector))
    }
}

impl Service<Uri> for SingleUseConnector {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.0 {
            Some(connector) => connector.poll_ready(context).map_err(Into::into),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        match self.0.take() {
            Some(mut connector) => {
                let connecting = connector.call(target);
                Box::pin(async { Ok(connecting.await?) })
            }
            None => Box::pin(async { Err("the connection was closed".into()) }),
        }
    }
}

impl Client {
    /// Connects to one of the endpoints.
    pub(crate) async fn connect(
        address: &Address,
        endpoint: &str,
        patience: CallTimeout,
        last_seen: LastSeen,
    ) -> Result<Self, EtcdError> {
        let target = dial(address, endpoint, patience.get())?;
        let connecting = target.connect_with_connector(SingleUseConnector::within(patience.get()));
        let channel = match timeout(patience.get(), connecting).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(refused(&error, endpoint, address.tls.is_some())),
            Err(_) => {
                return Err(EtcdError::Away(format!("etcd at {endpoint}: does not answer")));
            }
        };
        let user = address.user.clone();
        Ok(Self { channel, user, token: Arc::default(), patience, last_seen })
    }

    /// Bounds calls by a time to live from now on, on later connections too.
    pub(crate) fn suit(&self, ttl_ms: u64) {
        self.patience.suit(ttl_ms);
    }

    /// Sends one question and returns its answer.
    pub(crate) async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A, EtcdError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        match self.ask_once(path, question.clone()).await {
            // The call was not carried out.
            Err(EtcdError::Token) => {
                self.log_in().await?;
                self.ask_once(path, question).await.map_err(no_token)
            }
            done => done,
        }
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Result<TxnDone, EtcdError> {
        let done: TxnDone = self.ask("/etcdserverpb.KV/Txn", txn).await?;
        self.last_seen.reaches(done.revision());
        Ok(done)
    }

    /// The member's report about itself.
    pub(crate) async fn status(&self) -> Result<MemberStatus, EtcdError> {
        self.ask("/etcdserverpb.Maintenance/Status", Nothing {}).await
    }

    /// A stream of questions and a stream of answers. etcd ends it when its member sees no leader.
    pub(crate) async fn stream<Q, A>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut request = self.request(questions);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let codec = ProstCodec::<Q, A>::default();
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(path);
        let answer = self.within(grpc.streaming(request, path, codec)).await?;
        Ok(answer.into_inner())
    }

    /// Waits for a stream's next message, within the bound on one call.
    pub(crate) async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, EtcdError> {
        match timeout(self.patience.get(), answer).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(EtcdError::Away("etcd does not answer".into())),
        }
    }

    /// Gets a token, if the address names a user.
    pub(crate) async fn log_in(&self) -> Result<(), EtcdError> {
        let Some(User { name, password }) = self.user.clone() else {
            return Ok(());
        };
        // Without the old token, which etcd would refuse here too.
        let question = Request::new(Authenticate { name, password });
        let asked = self.unary("/etcdserverpb.Auth/Authenticate", question);
        let Authenticated { token } = match asked.await {
            Err(EtcdError::Away(why)) if why.contains("authentication is not enabled") => {
                tracing::warn!("etcd asks for no password: its authentication is not enabled");
                return Ok(());
            }
            done => done?,
        };
        let token = MetadataValue::try_from(token)
            .map_err(|_| EtcdError::Away("etcd sent an unusable token".into()))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
        Ok(())
    }

    async fn ask_once<Q, A>(&self, path: &'static str, question: Q) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.unary(path, self.request(question)).await
    }

    async fn unary<Q, A>(&self, path: &'static str, request: Request<Q>) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        Ok(self.within(grpc.unary(request, path, codec)).await?.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, EtcdError> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        match timeout(self.patience.get(), grpc.ready()).await {
            Ok(Ok(())) => Ok(grpc),
            Ok(Err(error)) => Err(EtcdError::Away(innermost(&error))),
            Err(_) => Err(EtcdError::Away("etcd does not answer".into())),
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        request
    }
}

/// The error for a token that etcd issued and does not accept. Without a user there is no token.
fn no_token(error: EtcdError) -> EtcdError {
    match error {
        EtcdError::Token => EtcdError::Away("etcd refuses the token that it issued".into()),
        other => other,
    }
}

fn dial(address: &Address, endpoint: &str, within: Duration) -> Result<Endpoint, EtcdError> {
    let scheme = if address.tls.is_some() { "https" } else { "http" };
    let bad = |why: String| EtcdError::Refused { why, hint: None };
    let target = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
        .map_err(|error| bad(format!("`{endpoint}`: {}", innermost(&error))))?
        .connect_timeout(within)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    let Some(tls) = &address.tls else {
        return Ok(target);
    };
    target.tls_config(tls_config(tls)?).map_err(|error| {
        bad(format!("cannot use the certificates for etcd: {}", innermost(&error)))
    })
}

fn tls_config(tls: &Tls) -> Result<ClientTlsConfig, EtcdError> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| EtcdError::Refused {
            why: format!("cannot read `{}`: {}", path.display(), innermost(&error)),
            hint: None,
        })
    };
    let mut config = ClientTlsConfig::new();
    config = match &tls.authorities {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(config)
}

fn refused(error: &tonic::transport::Error, endpoint: &str, tls: bool) -> EtcdError {
    let why = innermost(error);
    if let Some(error) = certificate(&why) {
        return error;
    }
    // A peer that closes with unread data resets the connection.
    let closes = why.contains("handshake eof") || why.contains("connection reset");
    let why = match (closes, tls) {
        (true, true) => {
            "closes the connection when TLS begins; if it does not use TLS, write etcd://"
        }
        (true, false) => CLOSES_AT_ONCE,
        (false, _) => &why,
    };
    EtcdError::Away(format!("etcd at {endpoint}: {why}"))
}

/// The message for a member that is contacted without TLS.
pub(crate) const CLOSES_AT_ONCE: &str =
    "closes the connection immediately; if it uses TLS, write etcds://";

/// This daemon's knowledge of the etcd from all its connections: the greatest revision that it has
/// seen, and the era at that time.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastSeen {
    revision: Arc<AtomicI64>,
    era: Arc<Mutex<Option<Era>>>,
}

impl LastSeen {
    /// Records that the store has reached this revision.
    pub(crate) fn reaches(&self, revision: i64) {
        self.revision.fetch_max(revision, Ordering::Relaxed);
    }

    /// Records that the log names this era at a revision.
    pub(crate) fn settle(&self, revision: i64, era: Option<Era>) {
        self.revision.store(revision, Ordering::Relaxed);
        *self.era.lock().unwrap_or_else(PoisonError::into_inner) = era;
    }

    pub(crate) fn known(&self) -> Known {
        let era = self.era.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Known { revision: self.revision.load(Ordering::Relaxed), era }
    }
}

/// The knowledge in a [`LastSeen`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub revision: i64,
    pub era: Option<Era>,
}

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
