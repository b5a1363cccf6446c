//! Clocks.
//!
//! All are read without a system call (vdso). None is compared with the clock of another machine.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use canal_text::duration::milliseconds;

/// Milliseconds of CLOCK_BOOTTIME. The clock is monotonic and includes suspend.
pub fn boottime_ms() -> u64 {
    simulated!(|kernel| kernel.boottime_ms());
    boottime_ns() / 1_000_000
}

/// The first whole millisecond of CLOCK_BOOTTIME after this time has passed. The clock is between
/// two milliseconds now; counting from the earlier one would end too soon.
pub fn boottime_ms_after(time_ms: u64) -> u64 {
    boottime_ns().div_ceil(1_000_000).saturating_add(time_ms)
}

/// Milliseconds since 1970-01-01 UTC by the system's clock. For display, never for decisions.
pub fn unix_ms() -> u64 {
    simulated!(|kernel| kernel.unix_ms());
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, milliseconds)
}

/// A time of CLOCK_BOOTTIME as milliseconds since 1970-01-01 UTC by the system's present clock.
pub fn unix_of(boottime: u64) -> u64 {
    unix_ms().saturating_add(boottime).saturating_sub(boottime_ms())
}

/// The current time of CLOCK_MONOTONIC, which does not include suspend.
pub fn now() -> Instant {
    simulated!(|kernel| kernel.instant());
    Instant::now()
}

/// Nanoseconds of CLOCK_BOOTTIME (Linux 2.6.39, which every supported kernel has).
pub(super) fn boottime_ns() -> u64 {
    simulated!(|kernel| kernel.boottime_ms() * 1_000_000);
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_is_what_proc_uptime_says() {
        let before = boottime_ms();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = boottime_ms();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let uptime_ms = (seconds * 1000.0).round() as u64;
        // The kernel truncates /proc/uptime to hundredths of a second.
        assert!(before <= uptime_ms + 10 && uptime_ms <= after, "{before} {uptime_ms} {after}");
    }

    #[test]
    fn no_time_ends_too_soon() {
        for _ in 0..1_000 {
            let begun_ns = boottime_ns();
            let until_ns = boottime_ms_after(50) * 1_000_000;
            assert!(until_ns >= begun_ns + 50_000_000, "{begun_ns} {until_ns}");
        }
        assert_eq!(boottime_ms_after(u64::MAX), u64::MAX);
    }

    #[test]
    fn unix_time_is_after_this_was_written() {
        assert!(unix_ms() > 1_760_000_000_000);
    }
}
