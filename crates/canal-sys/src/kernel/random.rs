//! Random numbers that no other process can predict.

use std::io;

/// A random number.
///
/// # Errors
/// The kernel provides no random bytes.
pub fn u128() -> io::Result<u128> {
    simulated!(|kernel| Ok(kernel.random()));
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

/// A shorter random number.
///
/// # Errors
/// As for `u128`.
pub fn u64() -> io::Result<u64> {
    Ok(u128()? as u64)
}
