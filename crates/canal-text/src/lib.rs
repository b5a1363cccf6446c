//! Text between people and programs: durations, words for a shell, and foreign text that is safe to
//! show.

pub mod duration;
pub mod safe_text;
pub mod shell_word;
