//! Appends text that is written in small pieces.

use std::io::{self, Write};

/// Appends to a block of memory. Most pieces of JSON are a single byte, such as a quote, and
/// appending those one by one is faster than copying them as slices.
#[derive(Debug)]
pub struct SmallPieces<'a>(pub &'a mut Vec<u8>);

impl Write for SmallPieces<'_> {
    #[inline]
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.write_all(piece).map(|()| piece.len())
    }

    #[inline]
    fn write_all(&mut self, piece: &[u8]) -> io::Result<()> {
        match piece {
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(piece),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
