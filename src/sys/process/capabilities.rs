//! The capabilities of this process.

use std::fs;

/// Whether this process has both capabilities for reading the environment and the open files of any
/// process: CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH for the modes of the files in /proc.
#[must_use]
pub fn may_look_into_others() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status).is_some_and(|effective| effective & NEEDED == NEEDED)
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
