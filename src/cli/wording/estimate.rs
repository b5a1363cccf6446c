//! Describes how much longer a wait usually takes: `usually 4 min more (2–9)`.

use std::time::Duration;

use crate::protocol::EstimateInfo;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// An estimate that was made `ago`, as text.
pub(crate) fn estimate(of: &EstimateInfo, ago: Duration) -> String {
    let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
    let left = |ms: u64| ms.saturating_sub(ago);
    let (low, median, high) = (left(of.low_ms), left(of.median_ms), left(of.high_ms));
    if ago > of.high_ms {
        return "longer than usual".to_owned();
    }
    let (unit, name) = match high {
        0..100_000 => (SECOND, "s"),
        100_000..6_000_000 => (MINUTE, "min"),
        6_000_000..172_800_000 => (HOUR, "h"),
        _ => (DAY, "d"),
    };
    let rounded = |ms: u64| (ms + unit / 2) / unit;
    // The upper bound is rounded up, so that the text never claims less.
    let (low, median, high) = (rounded(low), rounded(median), high.div_ceil(unit).max(1));
    match median {
        0 if high == 1 => format!("usually under 1 {name} more"),
        0 => format!("usually under 1 {name} more (up to {high})"),
        _ if low == high => format!("usually {median} {name} more"),
        _ => format!("usually {median} {name} more ({low}–{high})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(seconds: [u64; 3], ago: u64) -> String {
        let [low_ms, median_ms, high_ms] = seconds.map(|it| it * SECOND);
        estimate(&EstimateInfo { low_ms, median_ms, high_ms }, Duration::from_secs(ago))
    }

    #[test]
    fn one_unit_is_enough() {
        for (seconds, text) in [
            ([120, 240, 540], "usually 4 min more (2–9)"),
            ([3, 12, 90], "usually 12 s more (3–90)"),
            ([60, 80, 101], "usually 1 min more (1–2)"),
            ([120, 120, 120], "usually 2 min more"),
            ([0, 10, 200], "usually under 1 min more (up to 4)"),
            ([0, 0, 1], "usually under 1 s more"),
            ([0, 0, 0], "usually under 1 s more"),
            ([3_600, 7_200, 14_000], "usually 2 h more (1–4)"),
            ([86_400, 172_800, 300_000], "usually 2 d more (1–4)"),
        ] {
            assert_eq!(said(seconds, 0), text);
        }
    }

    #[test]
    fn time_that_passed_is_taken_off() {
        assert_eq!(said([120, 240, 540], 120), "usually 2 min more (0–7)");
        assert_eq!(said([120, 240, 540], 500), "usually under 1 s more (up to 40)");
        assert_eq!(said([120, 240, 540], 541), "longer than usual");
    }
}
