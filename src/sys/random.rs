//! Random bytes, in one call to the kernel.

use std::io;

use nix::errno::Errno;

/// As many random bytes as a request's name has, fit for secrets (getrandom(2), Linux 3.17).
///
/// # Errors
/// The kernel gives none: a filter of system calls forbids it.
pub fn bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    loop {
        // SAFETY: the buffer is as long as is said. So few bytes come whole or not at all.
        let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match Errno::result(filled) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        let all: std::collections::BTreeSet<_> = (0..1000).map(|_| bytes().unwrap()).collect();
        assert_eq!(all.len(), 1000);
    }
}
