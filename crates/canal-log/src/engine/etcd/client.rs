//! A connection to one member of an etcd.
//!
//! Invariant: every call ends within the bound on one call. A lost connection stays lost: the next
//! one may lead to another history, which is checked first.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
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
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::address::{Address, Tls, User};
use super::error::{EtcdError, LOST, Result, SILENT, certificate};
use super::messages::{
    Authenticate, Authenticated, Header, KeyValue, NO_DELETE, Range, Ranged,
    Status as MemberStatus, Txn, TxnDone, WatchCreate, WatchRequest, Watched, end_of, get,
};
use crate::engine::Outage;
use crate::engine::calls::innermost;
use crate::engine::era::Era;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How often to ping a silent connection. etcd closes those that are pinged more often than every 5
/// s (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(10);

/// How long a connection may be silent after a ping.
const PING_WITHIN: Duration = Duration::from_secs(5);

/// The bound on one call before a time to live is known. etcd itself gives up on a proposal after
/// 7 s with its default election timeout.
const CALL_MAX: Duration = Duration::from_secs(7);

/// The message for a member that is contacted without TLS.
const CLOSES_AT_ONCE: &str = "closes the connection immediately; if it uses TLS, write etcds://";

/// This daemon's knowledge of the etcd, which all its connections share.
#[derive(Debug)]
pub(crate) struct Known {
    /// The bound on one call.
    patience: Cell<Duration>,
    /// The greatest revision that was seen, and the era at that time.
    pub revision: Cell<i64>,
    pub era: RefCell<Option<Era>>,
}

impl Default for Known {
    fn default() -> Self {
        Self { patience: Cell::new(CALL_MAX), revision: Cell::default(), era: RefCell::default() }
    }
}

impl Known {
    /// Bounds calls by a time to live. A call that takes a third of it has failed, so that there is
    /// time for another.
    pub(crate) fn suit(&self, ttl_ms: u64) {
        let third = Duration::from_millis(ttl_ms / 3);
        self.patience.set(third.clamp(Duration::from_millis(500), CALL_MAX));
    }

    /// Records that the log names this era at a revision.
    pub(crate) fn settle(&self, revision: i64, era: Option<Era>) {
        self.revision.set(revision);
        self.era.replace(era);
    }
}

/// A connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    channel: Channel,
    user: Option<User>,
    token: Rc<RefCell<Option<MetadataValue<Ascii>>>>,
    pub known: Rc<Known>,
}

impl Client {
    /// Connects to one of the endpoints. Errors do not name it.
    pub(crate) async fn connect(
        address: &Address,
        endpoint: &str,
        known: &Rc<Known>,
    ) -> Result<Self> {
        let patience = known.patience.get();
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(patience));
        // Connects once.
        let mut connector = Some(connector);
        let once = service_fn(move |target: Uri| {
            let connecting = connector.take().map(|mut connector| connector.call(target));
            async { Ok::<_, BoxError>(connecting.ok_or("the connection was closed")?.await?) }
        });
        let target = dial(address, endpoint, patience)?;
        let connecting = target.connect_with_connector(once);
        let channel = match timeout(patience, connecting).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(refused(&error, address.tls.is_some())),
            Err(_) => return Err(EtcdError::away("does not answer")),
        };
        let (user, known) = (address.user.clone(), Rc::clone(known));
        Ok(Self { channel, user, token: Rc::default(), known })
    }

    /// Does some work, and once more with a new token if etcd refuses the present one: the work was
    /// then not done.
    pub(crate) async fn with_token<T>(&self, work: impl AsyncFn() -> Result<T>) -> Result<T> {
        match work().await {
            Err(EtcdError::Token) => {}
            done => return done,
        }
        self.log_in().await?;
        work().await
    }

    /// Sends one question and returns its answer.
    pub(crate) async fn ask<A: Message + Default + 'static>(
        &self,
        path: &'static str,
        question: impl Message + Clone + 'static,
    ) -> Result<A> {
        self.with_token(async || self.unary(path, self.request(question.clone())).await).await
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Result<TxnDone> {
        let done: TxnDone = self.ask("/etcdserverpb.KV/Txn", txn).await?;
        self.known.revision.set(self.known.revision.get().max(done.header.revision));
        Ok(done)
    }

    /// Reads these ranges at one revision, which includes everything that was answered before this
    /// call. The header has that revision.
    pub(crate) async fn read<const N: usize>(
        &self,
        ranges: [Range; N],
    ) -> Result<(Header, [Ranged; N])> {
        let done = self.txn(Txn { success: ranges.map(get).into(), ..Txn::default() }).await?;
        Ok((done.header.clone(), done.found()))
    }

    /// The member's report about itself.
    pub(crate) async fn status(&self) -> Result<MemberStatus> {
        self.ask("/etcdserverpb.Maintenance/Status", ()).await
    }

    /// A stream of questions and a stream of answers. etcd ends it when its member sees no leader.
    pub(crate) async fn stream<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>> {
        let mut request = self.request(questions);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let (mut grpc, path) = (self.ready().await?, PathAndQuery::from_static(path));
        let answers = grpc.streaming(request, path, ProstCodec::<Q, A>::default());
        Ok(self.within(answers).await?.into_inner())
    }

    /// Watches every put below a prefix from a revision on.
    ///
    /// Fails with [`EtcdError::OtherRevision`], here or later, if the wanted revisions were
    /// compacted.
    pub(crate) async fn watch(&self, prefix: Vec<u8>, revision: i64) -> Result<Watch> {
        let create = WatchCreate {
            range_end: end_of(&prefix),
            key: prefix,
            start_revision: revision,
            progress_notify: true,
            // Batches are deleted when a snapshot covers them; readers need no event for that.
            filters: vec![NO_DELETE],
            fragment: true,
        };
        let watch = self.with_token(async || {
            let ask = WatchRequest { create: Some(create.clone()) };
            // The watch ends when the stream of questions ends.
            let asks = tokio_stream::once(ask).chain(tokio_stream::pending());
            let mut watch = Watch(self.stream("/etcdserverpb.Watch/Watch", asks).await?);
            unless_canceled(self.within(watch.0.message()).await?)?;
            Ok(watch)
        });
        // A new token does not help: the right is missing.
        watch.await.map_err(|it| if it == EtcdError::Token { EtcdError::forbidden() } else { it })
    }

    /// Waits for a stream's next message, within the bound on one call.
    pub(crate) async fn within<T, E: Into<EtcdError>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        let done = timeout(self.known.patience.get(), answer).await;
        done.map_err(|_| EtcdError::away(SILENT))?.map_err(Into::into)
    }

    /// Gets a token, if the address names a user.
    pub(crate) async fn log_in(&self) -> Result<()> {
        let Some(User { name, password }) = self.user.clone() else { return Ok(()) };
        // Without the old token, which etcd would refuse here too.
        let question = Request::new(Authenticate { name, password });
        let asked = self.unary("/etcdserverpb.Auth/Authenticate", question);
        let Authenticated { token } = match asked.await {
            Err(EtcdError::Outage(outage))
                if outage.why.contains("authentication is not enabled") =>
            {
                tracing::warn!("etcd asks for no password: its authentication is not enabled");
                return Ok(());
            }
            done => done?,
        };
        let token = MetadataValue::try_from(token)
            .map_err(|_| EtcdError::away("etcd sent an unusable token"))?;
        self.token.replace(Some(token));
        Ok(())
    }

    async fn unary<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        request: Request<Q>,
    ) -> Result<A> {
        let (mut grpc, path) = (self.ready().await?, PathAndQuery::from_static(path));
        let answer = grpc.unary(request, path, ProstCodec::<Q, A>::default());
        Ok(self.within(answer).await?.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let ready =
            async { grpc.ready().await.map_err(|error| EtcdError::away(innermost(&error))) };
        self.within(ready).await?;
        Ok(grpc)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.token.borrow().clone() {
            request.metadata_mut().insert("token", token);
        }
        request
    }
}

fn dial(address: &Address, endpoint: &str, within: Duration) -> Result<Endpoint> {
    let scheme = if address.tls.is_some() { "https" } else { "http" };
    let bad = |why: String| EtcdError::from(Outage::refused(why, None));
    let target = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
        .map_err(|error| bad(format!("`{endpoint}`: {}", innermost(&error))))?
        .connect_timeout(within)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    let Some(Tls { authorities, identity }) = &address.tls else { return Ok(target) };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| {
            bad(format!("cannot read `{}`: {}", path.display(), innermost(&error)))
        })
    };
    let mut config = ClientTlsConfig::new();
    config = match authorities {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = identity {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    target.tls_config(config).map_err(|error| {
        bad(format!("cannot use the certificates for etcd: {}", innermost(&error)))
    })
}

fn refused(error: &tonic::transport::Error, tls: bool) -> EtcdError {
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
    EtcdError::away(why)
}

/// The error of a member, with its name.
pub(crate) fn explained(error: EtcdError, endpoint: &str, address: &Address) -> Outage {
    let outage = Outage::from(error);
    if outage.refused || outage.hint.is_some() {
        return outage;
    }
    let speaks_tls = outage.why.starts_with(LOST) && address.tls.is_none();
    let why = if speaks_tls { CLOSES_AT_ONCE } else { &outage.why };
    Outage::unreachable(format!("etcd at {endpoint}: {why}"))
}

/// Reports every put, in the order of revisions.
#[derive(Debug)]
pub(crate) struct Watch(Streaming<Watched>);

impl Watch {
    /// The next puts, perhaps none. Waits without a limit.
    pub(crate) async fn next(&mut self) -> Result<Vec<KeyValue>> {
        let answer = unless_canceled(self.0.message().await?)?;
        let puts = answer.events.into_iter().filter(|event| event.kind == 0);
        Ok(puts.filter_map(|event| event.kv).collect())
    }
}

fn unless_canceled(answer: Option<Watched>) -> Result<Watched> {
    match answer {
        None => Err(EtcdError::away("etcd ended the watch")),
        Some(answer) if answer.compact_revision > 0 => Err(EtcdError::OtherRevision),
        // The member gives this reason for a missing right, but also for a token that it does not
        // know.
        Some(answer) if answer.cancel_reason.contains("ermission") => Err(EtcdError::Token),
        Some(answer) if answer.canceled => {
            Err(EtcdError::away(format!("etcd ended the watch: {}", answer.cancel_reason)))
        }
        Some(answer) => Ok(answer),
    }
}
