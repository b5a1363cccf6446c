//! PostgreSQL (13 or later) as the engine of many hosts.
//!
//! One thread holds one connection, which belongs to this host alone and passes through no pooler.
//! It carries out calls in their order, and reads what other hosts append when the server announces
//! it (`NOTIFY`).
//!
//! Invariant: no lock that another host waits for (the row of the head) is ever held at the
//! discretion of this side. An append is one message, which the server alone carries through. So a
//! host that is stopped or cut off at any instant blocks no other host.

mod connect_and_serve;
mod era;
mod error;
mod hosts;
mod inspect;
mod log;
mod notification;
mod rows;
mod schema;
mod session;
mod settings;

use super::engine_thread::runtime;
use super::{EngineThread, Inspection, OpenError, Source};
use session::Session;
use settings::url::Settings;

/// Begins to connect. The address has libpq's form (`postgres://USER@HOST/DATABASE?OPTIONS`), and
/// may contain `canal_schema=NAME`. `label` is the name by which users know this host.
///
/// Answers report whether the server can be used.
///
/// # Errors
/// [`OpenError`].
pub fn open(mut source: Source, label: &str) -> Result<EngineThread, OpenError> {
    let table = Settings::parse(&source(), label)?.table();
    let label = label.to_owned();
    EngineThread::start("canal-postgres", true, |caller| {
        connect_and_serve::work(table, label, source, caller)
    })
}

/// Inspects a server without changing it.
///
/// # Errors
/// [`OpenError`]
pub fn inspect(url: &str, label: &str) -> Result<Inspection, OpenError> {
    let settings = Settings::parse(url, label)?;
    Ok(runtime()?.block_on(Session::inspect(&settings)))
}
