//! Memory: layers of an allocator, each of which takes what the next one is slow at.
//!
//! [`first`]: the first few blocks of a short program. [`small`]: blocks that are freed and asked for
//! again and again. [`large`]: blocks that the kernel gives and takes one by one.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

pub mod first;
pub mod large;
pub mod small;

/// Gives a block another place and size.
///
/// # Safety
/// As of [`GlobalAlloc::realloc`].
unsafe fn moved<A: GlobalAlloc>(
    allocator: &A,
    block: *mut u8,
    layout: Layout,
    size: usize,
) -> *mut u8 {
    // SAFETY: the caller promises that the new size, rounded up, does not overflow.
    let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
    // SAFETY: a layout of the caller's; its size is not 0.
    let moved = unsafe { allocator.alloc(wanted) };
    if !moved.is_null() {
        // SAFETY: both blocks are as long as the shorter one, and apart; the old one is of this
        // layout and used no more.
        unsafe {
            ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
            allocator.dealloc(block, layout);
        }
    }
    moved
}
