//! Opens or inspects the engine that an address names.

#[cfg(feature = "etcd")]
use crate::engine::etcd;
#[cfg(feature = "postgres")]
use crate::engine::postgres;
use crate::engine::{Engine, Inspection, OpenError, Source};
#[cfg(any(test, feature = "sim"))]
use crate::sim::engine as simulated;

/// Begins to connect to the engine with this scheme of addresses (`etcd` of `etcd://…`). `label` is
/// this host's name in messages.
///
/// # Errors
/// [`OpenError`].
pub fn open(scheme: &str, source: Source, label: &str) -> Result<Box<dyn Engine>, OpenError> {
    // Unused in a build without an engine.
    let _ = (&source, label);
    match scheme {
        #[cfg(any(test, feature = "sim"))]
        simulated::SCHEME => simulated::open().ok_or_else(|| missing(scheme)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Box::new(postgres::open(source, label)?)),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Box::new(etcd::open(source)?)),
        _ => Err(missing(scheme)),
    }
}

/// Inspects the engine with this scheme of addresses, and changes nothing there. Waits for its
/// answers, for a bounded time.
///
/// # Errors
/// [`OpenError`]. A refusal by the engine is part of the result.
pub fn inspect(scheme: &str, url: &str, label: &str) -> Result<Inspection, OpenError> {
    // Unused in a build without an engine.
    let _ = (url, label);
    match scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres::inspect(url, label),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => etcd::inspect(url),
        _ => Err(missing(scheme)),
    }
}

/// The error for an address of which this build has no engine.
fn missing(scheme: &str) -> OpenError {
    match scheme {
        "postgres" | "postgresql" => OpenError::LeftOut("postgres"),
        "etcd" | "etcds" => OpenError::LeftOut("etcd"),
        _ => OpenError::Unknown(scheme.to_owned()),
    }
}
