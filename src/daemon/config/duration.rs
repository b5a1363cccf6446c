//! Durations in the configuration.

use std::time::Duration;

/// Parses a duration of the configuration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    let parsed = parsed.ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| format!("`{text}` is no duration; write it like `90s`, `10m` or `1h 30m`"))
}
