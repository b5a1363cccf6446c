//! Writes JSON on the hot paths, in fewer instructions than serde_json.
//!
//! Invariant: the output is byte-identical to serde_json's output. Values that this module does not
//! write are left to serde_json.

mod compound;
#[cfg(test)]
mod tests;
mod text;
mod writer;

use serde::Serialize;
pub use text::is_plain;

use self::writer::Writer;

/// Appends a value to `out`. On an error `out` stays unchanged.
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
