//! PostgreSQL (13 or later) as the engine of many hosts.
//!
//! One thread holds one connection, which belongs to this host alone and passes through no pooler.
//! It carries out calls in their order, and reads what other hosts append when the server announces
//! it (`NOTIFY`).
//!
//! Invariant: no lock that another host waits for (the row of the head) is ever held at the
//! discretion of this side. An append is one message, which the server alone carries through. So a
//! host that is stopped or cut off at any instant blocks no other host.

mod error;
mod event;
mod log;
mod membership;
mod notification;
mod session;
mod settings;
mod worker;

use std::task::{Context, Poll};
use std::thread;

use tokio::sync::mpsc;

use super::retry::RenewBy;
use super::{Answer, Call, Engine, Inspection, OpenError, Source};

use event::WorkerEvent;
use session::connection::Session;
use settings::url::Settings;
pub use settings::url::UrlError;
use worker::Endpoint;

/// An engine in PostgreSQL, as one host sees it.
///
/// When the connection breaks, the thread reports that once ([`Answer::Away`]), discards the calls
/// made in the meantime, retries with growing pauses, and reports [`Answer::Back`].
#[derive(Debug)]
pub struct Postgres {
    events: mpsc::UnboundedSender<WorkerEvent>,
    answers: mpsc::UnboundedReceiver<Answer>,
    renew_by: RenewBy,
}

impl Postgres {
    /// Begins to connect. The address has libpq's form (`postgres://USER@HOST/DATABASE?OPTIONS`),
    /// and may contain `canal_schema=NAME`. `label` is the name by which users know this host.
    ///
    /// Answers report whether the server can be used.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(mut source: Source, label: &str) -> Result<Self, OpenError> {
        let url = source().map_err(|outage| OpenError::Address(outage.why))?;
        let settings =
            Settings::parse(&url, label).map_err(|error| OpenError::Address(error.to_string()))?;
        let endpoint = Endpoint::new(&settings, source, label);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (events, to_do) = mpsc::unbounded_channel();
        let (tell, answers) = mpsc::unbounded_channel();
        let wake = events.clone();
        let renew_by = RenewBy::default();
        let pauses = renew_by.clone();
        thread::Builder::new().name("canal-postgres".to_owned()).spawn(move || {
            runtime.block_on(worker::run(endpoint, pauses, wake, to_do, tell));
        })?;
        Ok(Self { events, answers, renew_by })
    }
}

impl Engine for Postgres {
    fn call(&mut self, call: Call) {
        // The thread ends only after it receives `Quit`.
        let _ = self.events.send(WorkerEvent::Call(call));
    }

    fn renew_by(&mut self, times: [u64; 2]) {
        self.renew_by.set(times);
    }

    fn lets_rest(&self) -> bool {
        true
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match self.answers.poll_recv(context) {
            Poll::Ready(Some(answer)) => Poll::Ready(answer),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.events.send(WorkerEvent::Quit);
    }
}

/// Inspects a server without changing it.
///
/// # Errors
/// [`OpenError`]
pub fn inspect(url: &str, label: &str) -> Result<Inspection, OpenError> {
    let settings =
        Settings::parse(url, label).map_err(|error| OpenError::Address(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(Session::inspect(&settings)))
}
