//! The engines against real servers: the duties of each (`engine_contract`), and what is special to
//! etcd and to PostgreSQL.

#[cfg(any(feature = "etcd", feature = "postgres"))]
use canal::log::engine::Source;

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;

/// An address that never changes.
#[cfg(any(feature = "etcd", feature = "postgres"))]
fn fixed(url: &str) -> Source {
    let url = url.to_owned();
    Box::new(move || url.clone())
}
