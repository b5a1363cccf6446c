//! What a test says of how fast it went, whether it passes or not.

use std::io::Write as _;
use std::time::Duration;

/// Says it; not by a macro, whose words of a test that passes are not shown.
pub(crate) fn say(words: &str) {
    let _ = writeln!(std::io::stderr(), "{words}");
}

/// Middle, nearly all, and all, in milliseconds.
pub(crate) fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: f64| {
        let place = (times.len().saturating_sub(1)) as f64 * share;
        times.get(place as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    format!("median {:.1} ms, 90 % {:.1} ms, 99 % {:.1} ms", at(0.5), at(0.9), at(0.99))
}
