//! The capabilities of this process.

use std::fs;
use std::io;

use nix::sys::prctl;
use nix::unistd::{setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::child::UserIds;

/// Whether this process has both capabilities for reading the environment and the open files of any
/// process: CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH for the modes of the files in /proc.
#[must_use]
pub fn may_look_into_others() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status).is_some_and(|effective| effective & NEEDED == NEEDED)
}

/// Makes this process of root a process of another user for good. Of root's capabilities, it and
/// the programs that it executes keep CAP_KILL.
///
/// # Errors
/// This process may not become that user.
pub fn become_user(UserIds { uid, gid, groups }: &UserIds) -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // A kernel that does not know a capability cannot give it.
        if capability.bits().count_ones() == 1 && capability != CapabilitySet::KILL {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    prctl::set_keepcaps(true)?;
    setgroups(groups)?;
    setresgid(*gid, *gid, *gid)?;
    setresuid(*uid, *uid, *uid)?;
    let kill = CapabilitySet::KILL;
    set_capabilities(None, CapabilitySets { effective: kill, permitted: kill, inheritable: kill })?;
    configure_capability_in_ambient_set(kill, true)?;
    prctl::set_no_new_privs()?;
    // A change of user clears it, and gives the files of this process in /proc to root.
    prctl::set_dumpable(true)?;
    Ok(())
}

/// CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE of linux/capability.h.
const NEEDED: u64 = 1 << 2 | 1 << 19;

fn effective(status: &str) -> Option<u64> {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read() {
        let status = "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000080024\nCapBnd:\t0\n";
        assert_eq!(effective(status), Some(0x8_0024));
        assert_eq!(0x8_0024 & NEEDED, NEEDED);
        assert_eq!(effective(""), None);
    }
}
