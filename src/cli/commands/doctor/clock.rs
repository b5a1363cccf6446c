//! Checks the clock of this machine. No lock depends on it, but the times that canal shows do.

use std::time::Duration;

use jiff::Timestamp;

use super::finding::Finding;
use crate::cli::arguments::duration::short;
use crate::protocol::DaemonInfo;
use crate::sys::{clock, peer, process};

/// canal is not older than 2026-01-01, in milliseconds.
const EARLIEST_MS: u64 = 1_767_225_600_000;

/// The year 2100, in milliseconds. Tokens derive from the time of day.
const LATEST_MS: u64 = 4_102_444_800_000;

/// A daemon takes less time than this from its start until it records its start.
const JUMP_MIN: Duration = Duration::from_secs(60);

/// The kernel counts the start times of processes in hundredths of a second.
const TICK_MS: u64 = 10;

pub(super) fn look(daemon: Option<&DaemonInfo>) -> Vec<Finding> {
    let now_ms = clock::unix_ms();
    let mut findings = vec![time_of_day(now_ms)];
    if let Some(daemon) = daemon
        && let Some(age_ms) = age_ms(daemon.pid)
        && let Ok(since) = daemon.since.parse::<Timestamp>()
    {
        let since_ms = u64::try_from(since.as_millisecond()).unwrap_or(0);
        findings.extend(jump(since_ms, now_ms.saturating_sub(age_ms)));
    }
    findings
}

fn time_of_day(now_ms: u64) -> Finding {
    const SET: &str = "set it with `timedatectl set-ntp true`";
    match now_ms {
        0..EARLIEST_MS => {
            Finding::problem("clock", "the clock of this machine is years behind", SET)
        }
        EARLIEST_MS..LATEST_MS => Finding::fine("clock", "the clock of this machine is plausible"),
        _ => Finding::problem("clock", "the clock of this machine is many years ahead", SET),
    }
}

/// How long the daemon has run, by a clock that cannot be set. `None` if the process is not visible
/// from here.
fn age_ms(pid: u32) -> Option<u64> {
    process::name(pid).filter(|name| name == "canal")?;
    Some(peer::ticks_now().checked_sub(process::started(pid)?)? * TICK_MS)
}

/// Compares the start of a daemon as it recorded it with that moment by the present clock. A
/// difference means that the clock was set in between.
fn jump(noted_ms: u64, started_ms: u64) -> Option<Finding> {
    let by = Duration::from_millis(noted_ms.abs_diff(started_ms));
    (by >= JUMP_MIN).then(|| {
        let way = if started_ms > noted_ms { "forward" } else { "back" };
        let message = format!(
            "the clock was set {way} by {} since the daemon started: earlier times and ages are \
             off by that; locks, waits and leases are not affected",
            short(by)
        );
        Finding::note("clock", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::doctor::finding::Level;

    #[test]
    fn a_clock_that_was_set_is_noticed_and_a_slow_start_is_not() {
        assert_eq!(jump(1_000_000, 1_000_000), None);
        assert_eq!(jump(1_059_999, 1_000_000), None);
        let said = |noted, started| jump(noted, started).unwrap().message;
        assert!(said(1_000_000, 1_180_000).starts_with("the clock was set forward by 3m00s since"));
        assert!(said(1_180_000, 1_000_000).starts_with("the clock was set back by 3m00s since"));
    }

    #[test]
    fn a_clock_before_canal_was_written_is_a_problem() {
        assert_eq!(time_of_day(0).level, Level::Problem);
        assert_eq!(time_of_day(LATEST_MS).level, Level::Problem);
        assert_eq!(time_of_day(clock::unix_ms()).level, Level::Fine);
    }
}
