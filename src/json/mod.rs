//! JSON for the hot paths: what serde_json does, in far fewer instructions.
//!
//! Invariant: nobody can tell from what is written or understood that it was not serde_json; what
//! this does not do itself, it leaves to that.

mod compound;
mod plain;
mod reader;
#[cfg(test)]
mod tests;
mod text;
mod writer;

pub use plain::Plain;
use serde::Serialize;
pub use text::is_plain;

use self::writer::Writer;

/// Appends a value to `out`, which stays as it was on an error.
///
/// # Errors
/// The value has no JSON form.
pub fn append<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> serde_json::Result<()> {
    let before = out.len();
    if value.serialize(Writer { out }).is_ok() {
        return Ok(());
    }
    out.truncate(before);
    serde_json::to_writer(&mut *out, value).inspect_err(|_| out.truncate(before))
}
