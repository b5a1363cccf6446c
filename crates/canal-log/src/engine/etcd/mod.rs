//! An etcd, 3.4 or later, as the engine.
//!
//! A separate thread talks gRPC to it, so that a call never blocks the daemon. `layout` lists the
//! keys. Every change is one transaction that compares its conditions, and every read is
//! linearizable. `worker` keeps the promises of [`engine`](super) about calls and answers.
//!
//! Invariant: the position of a batch is the revision of the transaction that appended it.

mod connection;
mod inspect;
mod layout;
mod log;
mod membership;
mod shared;
mod worker;

pub use connection::address::{Address, AddressError};
pub use log::append::BODY_MAX;

use std::fmt;
use std::task::{Context, Poll};
use std::thread;

use tokio::sync::mpsc;

use super::retry::RenewBy;
use super::{Answer, Call, Engine, Inspection, OpenError, Source};
use worker::Endpoints;

/// An etcd.
///
/// Dropping it ends its thread and connection, and undoes nothing.
pub struct Etcd {
    address: Address,
    calls: mpsc::UnboundedSender<Call>,
    answers: mpsc::UnboundedReceiver<Answer>,
    renew_by: RenewBy,
}

impl Etcd {
    /// Begins to connect. Reports a failure to connect by [`Answer::Away`].
    ///
    /// # Errors
    /// The address is invalid, or the system has no thread or no descriptors left.
    pub fn open(mut source: Source) -> Result<Self, OpenError> {
        let url = source().map_err(|outage| OpenError::Address(outage.why))?;
        let address: Address =
            url.parse().map_err(|error: AddressError| OpenError::Address(error.to_string()))?;
        let (calls, called) = mpsc::unbounded_channel();
        let (answer, answers) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let renew_by = RenewBy::default();
        let endpoints = Endpoints::new(&address, source, renew_by.clone());
        thread::Builder::new()
            .name("canal-etcd".into())
            .spawn(move || runtime.block_on(worker::work(endpoints, called, answer)))?;
        Ok(Self { address, calls, answers, renew_by })
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.address)
    }
}

impl Engine for Etcd {
    fn call(&mut self, call: Call) {
        // The thread ends only after this side has dropped its end.
        let _ = self.calls.send(call);
    }

    fn renew_by(&mut self, times: [u64; 2]) {
        self.renew_by.set(times);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match self.answers.poll_recv(context) {
            Poll::Ready(Some(answer)) => Poll::Ready(answer),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Inspects an etcd, and changes nothing there.
///
/// # Errors
/// [`OpenError`]
pub fn inspect(url: &str) -> Result<Inspection, OpenError> {
    let address: Address =
        url.parse().map_err(|error: AddressError| OpenError::Address(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(inspect::inspect(&address)))
}
