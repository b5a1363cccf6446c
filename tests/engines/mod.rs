//! The engines against real servers: the duties of each (`engine_contract`), and what is special to
//! etcd and to PostgreSQL.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
