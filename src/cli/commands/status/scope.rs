//! Defines the extent of a status report.

/// The extent of a status report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    /// Everything, with long queues cut short.
    Overview,
    /// Everything.
    Everything,
    /// One key and the keys below it.
    Key(&'a str),
}
