//! Text between people and programs: durations, times, words for a shell, and foreign text that is
//! safe to show.

pub mod duration;
pub mod safe_text;
pub mod shell_word;
pub mod small_pieces;
#[cfg(feature = "durations")]
pub mod time;

/// As much of the beginning of a text as fits into this many bytes.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A number and its word: `1 slot`, `2 slots`.
pub fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Ranges of numbers, given by their first and last numbers: `0-3,7`.
pub fn ranges(ranges: impl IntoIterator<Item = (u64, u64)>) -> String {
    let shown = ranges.into_iter().map(|(first, last)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    shown.collect::<Vec<_>>().join(",")
}
