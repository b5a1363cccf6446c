//! Which newer system calls to use.

/// A facility that an older kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `SO_PEERPIDFD`, Linux 6.5.
    PeerPidfd,
    /// pidfs: pidfds have unique inodes, Linux 6.9.
    Pidfs,
    /// `close_range`, Linux 5.9 (with `CLOSE_RANGE_CLOEXEC` 5.11).
    CloseRange,
}

/// Whether a facility may be used: false where `CANAL_KERNEL=MAJOR.MINOR` in the environment (a
/// switch for tests) names a kernel older than the one that brought it. A true says nothing about
/// the running kernel: callers still fall back on ENOSYS, EINVAL and ENOPROTOOPT.
#[must_use]
pub fn allows(feature: Feature) -> bool {
    let _ = feature;
    todo!()
}
