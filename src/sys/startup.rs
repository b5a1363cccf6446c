//! What this process was given, recorded before Rust's runtime changes it.
//!
//! The runtime ignores SIGPIPE and opens /dev/null over closed descriptors 0, 1 and 2. A command
//! started by `canal run` must find both as the caller set them.

/// What was found at the very start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup {
    /// Whether SIGPIPE was ignored.
    pub sigpipe_ignored: bool,
    /// Whether descriptors 0, 1 and 2 were open.
    pub open: [bool; 3],
}

/// What was found at the very start (by a function in `.init_array`).
#[must_use]
pub fn recorded() -> Startup {
    todo!()
}

/// Puts SIGPIPE and descriptors 0 to 2 back as they were found; for just before exec, or in a
/// forked child. (A descriptor that was closed is closed again.)
pub fn restore() {
    todo!()
}
