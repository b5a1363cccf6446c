//! Starting a daemon that has nothing to do with the process that started it.

use std::ffi::OsString;
use std::io;
use std::path::Path;

/// Starts `program` with `argv` so that nothing of the caller's job clings to it: forked twice
/// (the caller gets no unknown child), in a session of its own, folder `/`, umask 077, environment
/// of only `environment`, no descriptor but /dev/null as 0 and 1 and `log` (else /dev/null) as 2,
/// signals at their defaults and unblocked, limits, nice value, affinity and the like reset as far
/// as allowed.
///
/// Descriptor 3 of the new process is the write end of a pipe: what it writes there until it
/// closes it is returned, so that a daemon that cannot start can say why. An empty answer means it
/// is up. Waits for that at most `timeout_ms`, then returns `TimedOut`.
pub fn start(
    program: &Path,
    argv: &[OsString],
    environment: &[(OsString, OsString)],
    log: Option<&Path>,
    timeout_ms: u64,
) -> io::Result<String> {
    let _ = (program, argv, environment, log, timeout_ms);
    todo!()
}
