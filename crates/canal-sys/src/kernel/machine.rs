//! The processors and the memory of this machine, or of the container around this process.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use rustix::system::sysinfo;

/// The processors that this process may use: those of its affinity, within its cgroups' quota.
#[must_use]
pub fn processors() -> u64 {
    available_parallelism().map_or(1, |count| count.get() as u64)
}

/// The memory in bytes, within the limits of this process's cgroups (version 2). `None` if the
/// kernel does not report it.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let info = sysinfo();
    let machine = info.totalram.checked_mul(u64::from(info.mem_unit))?;
    Some(cgroup_limit().map_or(machine, |limit| limit.min(machine))).filter(|bytes| *bytes > 0)
}

/// The smallest `memory.max` of this process's cgroup and those above it. See cgroups(7).
fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let folder = root.join(path);
    let levels = folder.ancestors().take_while(|level| level.starts_with(root));
    levels
        .filter_map(|level| fs::read_to_string(level.join("memory.max")).ok()?.trim().parse().ok())
        .min()
}
