//! What a status report covers.

/// What a status report covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::commands) enum Scope<'a> {
    /// Everything, with long queues cut short.
    Overview,
    /// Everything.
    Everything,
    /// One key and those below it.
    Key(&'a str),
}
