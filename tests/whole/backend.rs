//! The place of a world's table: the journal of one machine, or an engine. Over an engine the
//! clients of a world are spread over two hosts.
//!
//! Each test runs over the journal. [`over_engines`] names the tests that also run over each
//! engine, and why. `OVER=etcd` and `OVER=postgres` run every test over that engine instead.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::shared_servers;
use crate::world::hosts::Log;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Engine {
    Etcd,
    Postgres,
}

/// The engine of all tests, if the person who runs them asks for one.
static OF_ALL: LazyLock<Option<Engine>> = LazyLock::new(|| {
    let name = std::env::var("OVER").ok()?;
    match &*name {
        "etcd" => Some(Engine::Etcd),
        "postgres" => Some(Engine::Postgres),
        _ => panic!("OVER={name}: neither etcd nor postgres"),
    }
});

thread_local! {
    /// The engine of the test that this thread runs.
    static OF_THIS: Cell<Option<Engine>> = const { Cell::new(None) };
}

fn engine() -> Option<Engine> {
    OF_THIS.get().or(*OF_ALL)
}

/// Whether an engine keeps the table of this test.
pub(crate) fn is_engine() -> bool {
    engine().is_some()
}

/// A log for one world; `None` without an engine.
pub(crate) fn log() -> Option<Log> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let log = match engine()? {
        Engine::Etcd => shared_servers::log_in_etcd(number),
        Engine::Postgres => shared_servers::log_in_postgres(number),
    };
    Some(log)
}

/// Runs a test over an engine, if that is installed.
pub(crate) fn over(engine: Engine, test: fn()) {
    struct Reset;
    impl Drop for Reset {
        // The harness may run the next test in this thread.
        fn drop(&mut self) {
            OF_THIS.set(None);
        }
    }
    let installed = match engine {
        Engine::Etcd => shared_servers::has_etcd(),
        Engine::Postgres => shared_servers::has_postgres(),
    };
    if installed {
        OF_THIS.set(Some(engine));
        let _reset = Reset;
        test();
    }
}

/// Makes a test over each engine of each test that is named, in the modules `etcd` and `postgres`.
/// The text says what an engine could change there.
macro_rules! over_engines {
    ($($why:literal: $($name:ident),+ $(,)?;)+) => {
        #[cfg(feature = "etcd")]
        mod etcd {
            $($(#[doc = $why] #[test] fn $name() {
                crate::backend::over(crate::backend::Engine::Etcd, super::$name);
            })+)+
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $($(#[doc = $why] #[test] fn $name() {
                crate::backend::over(crate::backend::Engine::Postgres, super::$name);
            })+)+
        }
    };
}
pub(crate) use over_engines;
