//! Texts kept beside the tests.

use std::fs;
use std::path::Path;

/// Compares with the file in `tests/data`; `UPDATE=1` writes it instead.
#[track_caller]
pub(crate) fn matches(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    for (line, (now, then)) in text.lines().zip(kept.lines()).enumerate() {
        assert_eq!(now, then, "line {} of {name}; UPDATE=1 accepts it", line + 1);
    }
    assert_eq!(text.lines().count(), kept.lines().count(), "{name}; UPDATE=1 accepts it");
}
