//! An operator's calls to the daemon itself.

pub(crate) mod configuration;
pub(crate) mod metrics;
pub(crate) mod stop;
