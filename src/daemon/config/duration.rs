//! Durations in the configuration.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Parses a duration of the configuration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    let parsed = parsed.ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| {
        format!("`{text}` is not a duration; one looks like `90s`, `10m` or `1h 30m`")
    })
}

/// Parses a duration of the configuration that may be days: `30d`, `2w`.
pub(crate) fn long_duration(text: &str) -> Result<Duration, String> {
    let span: Option<Span> = text.parse().ok();
    let length = span.and_then(|it| it.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    let length = length.and_then(|length| Duration::try_from(length).ok());
    length.ok_or_else(|| format!("`{text}` is no duration; write it like `12h`, `30d` or `8w`"))
}
