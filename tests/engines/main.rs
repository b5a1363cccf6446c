//! The engines against real servers: the duties of each (`engine_contract`), and what is special to
//! etcd and to PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a test says so by failing")]

#[path = "../engine_contract/mod.rs"]
mod engine_contract;
#[path = "../fixtures/isolation.rs"]
mod isolation;

#[cfg(feature = "etcd")]
#[expect(dead_code, reason = "the tests of hosts use the rest")]
#[path = "../fixtures/etcd_server/mod.rs"]
mod etcd_server;
#[cfg(feature = "postgres")]
#[path = "../fixtures/postgres_server.rs"]
mod postgres_server;

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
