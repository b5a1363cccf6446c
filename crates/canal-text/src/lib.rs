//! Text between people and programs: durations, times, words for a shell, and foreign text that is
//! safe to show.

pub mod duration;
pub mod safe_text;
pub mod shell_word;
#[cfg(feature = "durations")]
pub mod time;
