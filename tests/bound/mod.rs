//! How long a test waits for what must come. A test binary includes this folder by path.

use std::time::Duration;

/// How long anything may take before a test gives up: far longer than on a slow and busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(120);
