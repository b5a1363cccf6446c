//! Selects the newer system calls that canal may use, measures the machine, and reads lists and
//! fields in /proc.
//!
//! canal never tries a call that is not allowed here, so that a test on a new kernel runs the code
//! for an old kernel.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::{fs, io};

use rustix::system::sysinfo;

pub mod random;
#[cfg(any(test, feature = "sim"))]
pub mod simulated;

/// A facility that older kernels lack: the first version of the kernel that has it.
#[derive(Clone, Copy, Debug)]
pub struct Feature(u32, u32);

impl Feature {
    /// `SO_PEERPIDFD`.
    pub const PEER_PIDFD: Self = Self(6, 5);
    /// pidfs: pidfds have unique inodes.
    pub const PIDFS: Self = Self(6, 9);
    /// `PIDFD_GET_INFO`.
    pub const PIDFD_INFO: Self = Self(6, 13);
    /// `close_range` (with `CLOSE_RANGE_CLOEXEC` since 5.11).
    pub const CLOSE_RANGE: Self = Self(5, 9);
}

/// Whether canal may use a facility. False if `CANAL_KERNEL=MAJOR.MINOR` in the environment (a
/// switch for tests) names a kernel older than the first one that has it. True does not describe
/// the running kernel: callers still fall back on ENOSYS, EINVAL and ENOPROTOOPT.
pub fn allows(feature: Feature) -> bool {
    static PRETENDED: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let pretended = PRETENDED
        .get_or_init(|| std::env::var("CANAL_KERNEL").ok().as_deref().and_then(parse_version));
    has(*pretended, feature)
}

fn has(kernel: Option<(u32, u32)>, Feature(major, minor): Feature) -> bool {
    kernel.is_none_or(|kernel| kernel >= (major, minor))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The processors that this process may use: those of its affinity, within its cgroups' quota.
pub fn processors() -> u64 {
    available_parallelism().map_or(1, |count| count.get() as u64)
}

/// The memory in bytes, within the limits of this process's cgroups (version 2). `None` if the
/// kernel does not report it.
pub fn memory_bytes() -> Option<u64> {
    let info = sysinfo();
    let machine = info.totalram.checked_mul(u64::from(info.mem_unit))?;
    Some(cgroup_limit().map_or(machine, |limit| limit.min(machine))).filter(|bytes| *bytes > 0)
}

/// The cgroup (version 2) of this process.
pub(crate) fn own_cgroup() -> Option<String> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    own.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The smallest `memory.max` of this process's cgroup and those above it. See cgroups(7).
fn cgroup_limit() -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup");
    let folder = root.join(own_cgroup()?.strip_prefix('/')?);
    let levels = folder.ancestors().take_while(|level| level.starts_with(root));
    levels
        .filter_map(|level| fs::read_to_string(level.join("memory.max")).ok()?.trim().parse().ok())
        .min()
}

/// The pids in /proc, whichever namespace it belongs to.
pub(crate) fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

/// The links to the files that a process visibly has open.
pub(crate) fn open_files(pid: u32) -> impl Iterator<Item = PathBuf> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"));
    links.into_iter().flatten().flatten().map(|link| link.path())
}

/// The value of a field in a file that has one field a line.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_lacks_later_features() {
        let old = parse_version("5.10");
        assert_eq!(old, Some((5, 10)));
        assert!(has(old, Feature::CLOSE_RANGE));
        assert!(!has(old, Feature::PEER_PIDFD));
        assert!(!has(old, Feature::PIDFS));
        assert!(!has(old, Feature::PIDFD_INFO));
        assert!(!has(parse_version("5.8"), Feature::CLOSE_RANGE));
        assert!(has(parse_version("6.5"), Feature::PEER_PIDFD));
        assert!(!has(parse_version("6.8"), Feature::PIDFS));
        assert!(has(parse_version("6.10"), Feature::PIDFS), "10 is more than 9");
    }

    #[test]
    fn no_or_a_senseless_version_forbids_nothing() {
        for text in ["", "6", "new", "6.x", ".5"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
        assert!(has(None, Feature::PIDFD_INFO));
    }
}
