//! The whole program on several hosts that share one table, over real engines.
//!
//! Each host is a [`world::World`] with its own daemon, which its clients start. A test can cut the
//! proxy between each daemon and the engine. A test without a required program prints that it is
//! skipped.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "what is skipped is said")]

#[path = "../fixtures/world/no_engine.rs"]
mod backend;
#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../fixtures/etcd_server/mod.rs"]
mod etcd_server;
#[path = "../fixtures/isolation.rs"]
mod isolation;
#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../fixtures/postgres_server.rs"]
mod postgres_server;
#[expect(dead_code, reason = "the tests of screens use the rest")]
#[path = "../whole/screens/screen.rs"]
mod screen;
#[path = "../fixtures/shared_table/mod.rs"]
mod shared_table;
#[expect(dead_code, reason = "the tests of screens use the rest")]
#[path = "../fixtures/terminal.rs"]
mod terminal;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../fixtures/world/mod.rs"]
mod world;

mod campaigns;
mod daemons;
mod engine;
mod hooks;
mod library;
mod table;
mod top;

/// Makes a test of each function over each engine.
macro_rules! over_each_engine {
    ($($name:ident),* $(,)?) => {
        mod etcd {
            $(#[test]
            fn $name() {
                if let Some(engine) = crate::shared_table::etcd() {
                    super::$name(&engine);
                }
            })*
        }
        mod postgres {
            $(#[test]
            fn $name() {
                if let Some(engine) = crate::shared_table::postgres() {
                    super::$name(&engine);
                }
            })*
        }
    };
}
use over_each_engine;
