//! An operator's calls to the daemon itself.

pub(in crate::protocol) mod configuration;
pub(in crate::protocol) mod metrics;
pub(in crate::protocol) mod stop;
