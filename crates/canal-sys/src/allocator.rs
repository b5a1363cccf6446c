//! Allocates large blocks directly from the kernel, and returns each to the kernel when freed.
//!
//! dlmalloc adds new memory below its existing memory, because the kernel hands out addresses
//! downwards, and returns memory only from the top. Without this module, the memory of one report
//! of ten thousand waiters would stay allocated forever, and twice over, because a growing buffer
//! never finds room next to itself.
//!
//! Invariant: the layout alone decides whether a block is large, so that each block is freed where
//! it was allocated.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// A block of this many bytes or more is large. A short program allocates far less.
const LARGE: usize = 128 * 1024;

/// The minimum alignment of the kernel's blocks.
const ALIGNED: usize = 4096;

/// Allocates large blocks itself and leaves small blocks to another allocator.
#[derive(Debug)]
pub struct LargeApart<A>(pub A);

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= ALIGNED
}

/// Maps zeroed pages. Null if there are none.
fn map(size: usize) -> *mut u8 {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address of a new mapping, which touches no other mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED { ptr::null_mut() } else { at.cast() }
}

// SAFETY: large blocks are separate mappings of at least the requested size. Small blocks belong to
// the other allocator, which keeps the contract. This code never allocates or panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for LargeApart<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: it was mapped with this size, and the caller no longer uses it.
            let _ = unsafe { libc::munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: the caller keeps the contract. The other allocator allocated every block of this
        // layout.
        unsafe { self.0.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size, rounded up, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            (true, true) => {
                // SAFETY: it was mapped with this size, and the caller uses only the result
                // afterwards.
                let at = unsafe {
                    libc::mremap(block.cast(), layout.size(), size, libc::MREMAP_MAYMOVE)
                };
                if at == libc::MAP_FAILED { ptr::null_mut() } else { at.cast() }
            }
            // SAFETY: the caller keeps the contract. The other allocator allocated every block of
            // this layout.
            (false, false) => unsafe { self.0.realloc(block, layout, size) },
            _ => {
                // SAFETY: the layout comes from the caller. Its size is not 0.
                let moved = unsafe { self.alloc(wanted) };
                if !moved.is_null() {
                    // SAFETY: both blocks are at least as long as the shorter size, and do not
                    // overlap. The old block has this layout and is no longer used.
                    unsafe {
                        ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    #[test]
    fn a_block_keeps_its_content_from_small_to_large_and_back() {
        let allocator = LargeApart(System);
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let sizes = [64, LARGE - 1, LARGE, 3 * LARGE + 5, 64 * LARGE, 2 * LARGE, LARGE - 1, 64];
        // SAFETY: each block is used within its size, with its own layout, and freed once.
        unsafe {
            let mut block = allocator.alloc_zeroed(layout(64));
            (0..64).for_each(|at: u8| block.add(at.into()).write(at));
            for pair in sizes.windows(2) {
                block = allocator.realloc(block, layout(pair[0]), pair[1]);
                assert!(!block.is_null() && block.addr() % 16 == 0);
                block.add(pair[1] - 1).write(if pair[1] == 64 { 63 } else { 1 });
                assert!((0..64).all(|at: u8| block.add(at.into()).read() == at), "{pair:?}");
            }
            allocator.dealloc(block, layout(64));
            let large = allocator.alloc_zeroed(layout(LARGE));
            assert!((0..LARGE).all(|at| large.add(at).read() == 0));
            allocator.dealloc(large, layout(LARGE));
        }
    }
}
