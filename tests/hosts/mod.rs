//! The whole program on several hosts that share one table, over real engines.
//!
//! Each host is a `World` with its own daemon, which its clients start. A test can cut the
//! proxy between each daemon and the engine. A test without a required program prints that it is
//! skipped.

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
pub(super) use over_each_engine;
