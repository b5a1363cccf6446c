//! Writing JSON on the hot paths: what serde_json does, in fewer instructions.
//!
//! Invariant: the output is byte-identical to serde_json's. What this does not write itself, it leaves
//! to serde_json.

mod compound;
#[cfg(test)]
mod tests;
mod text;
mod writer;

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
