//! The whole program on several hosts that share one table, over real engines.
//!
//! Each host is a [`world::World`] of its own, with a daemon of its own that its clients start;
//! between each daemon and the engine lies a proxy that can be cut. What is not installed is said
//! when it is skipped.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
#![expect(clippy::print_stderr, reason = "what is skipped is said")]

#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../etcd_server/mod.rs"]
mod etcd_server;
#[path = "../whole/over.rs"]
mod over;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../whole/peer.rs"]
mod peer;
#[expect(dead_code, reason = "its other tests use the rest")]
#[path = "../postgres_server/mod.rs"]
mod postgres_server;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../whole/process.rs"]
mod process;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../whole/record.rs"]
mod record;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../whole/spread.rs"]
mod spread;
#[expect(dead_code, reason = "the whole program's tests use the rest")]
#[path = "../whole/world/mod.rs"]
mod world;

mod away;
mod campaign;
mod campaign_faults;
mod commands;
mod compacted;
mod escapes;
mod figures;
mod forgotten;
mod leader;
mod mended;
mod outage;
mod restart;
mod restored;
mod scene;
mod starting;
mod stopped;
mod together;
mod tokens;

/// One test of each function over each engine.
macro_rules! over_each_engine {
    ($($name:ident),* $(,)?) => {
        mod etcd {
            $(#[test]
            fn $name() {
                if let Some(engine) = crate::scene::etcd() {
                    super::$name(&engine);
                }
            })*
        }
        mod postgres {
            $(#[test]
            fn $name() {
                if let Some(engine) = crate::scene::postgres() {
                    super::$name(&engine);
                }
            })*
        }
    };
}
use over_each_engine;
