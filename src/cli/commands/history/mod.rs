//! The commands about ended requests: `canal history`, `canal stats` and `canal trace`.

mod chart;
pub(crate) mod records;
pub(crate) mod stats;
mod svg;
pub(crate) mod trace;
