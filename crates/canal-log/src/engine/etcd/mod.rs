//! An etcd, 3.4 or later, as the engine.
//!
//! A separate thread talks gRPC to it. `keys` lists the keys. Every change is one transaction
//! that compares its conditions, and every read is linearizable. `connect_and_serve` keeps the
//! promises of [`engine`](super) about calls and answers.
//!
//! The messages are written by hand, because `etcd-client` needs protoc to build. etcd's JSON
//! gateway can be switched off, and silence on its watch proves nothing.
//!
//! Invariants: the position of a batch is the revision of the transaction that appended it. An
//! incarnation ends only by a batch that ends it, never by its lease alone.

mod address;
mod client;
mod connect_and_serve;
mod era;
mod error;
mod hosts;
mod inspect;
mod keys;
mod log;
mod messages;
mod shared;

pub use log::BODY_MAX;

use super::engine_thread::runtime;
use super::{EngineThread, Inspection, OpenError, Source};
use address::Address;
use keys::Keys;

/// Begins to connect to an etcd. Reports a failure to connect by
/// [`Answer::Away`](super::Answer::Away).
///
/// # Errors
/// The address is invalid, or the system has no thread or no descriptors left.
pub fn open(mut source: Source) -> Result<EngineThread, OpenError> {
    let keys = Keys::new(&Address::parse(&source())?.prefix);
    EngineThread::start("canal-etcd", false, |caller| connect_and_serve::work(keys, source, caller))
}

/// Inspects an etcd, and changes nothing there.
///
/// # Errors
/// [`OpenError`]
pub fn inspect(url: &str) -> Result<Inspection, OpenError> {
    let address = Address::parse(url)?;
    Ok(runtime()?.block_on(inspect::inspect(&address)))
}
