//! The first few blocks of memory, which are in the program itself.
//!
//! A short program needs some kilobytes, once: with these it asks the kernel for none, and touches
//! nothing of an allocator's own. What is freed of them is used again only if it was the last; what a
//! long-lived program took there is lost to it, which is `ROOM` at most.
//!
//! Invariant: no two blocks overlap that are in use, in whatever thread they were asked for.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::moved;

/// How many bytes: what `canal run` asks for between exec and exec.
const ROOM: usize = 16 * 1024;

/// An allocator that leaves all but the first few blocks to another one. There is one room for all
/// such allocators of a program.
#[derive(Debug)]
pub struct FirstHere<A>(pub A);

#[repr(align(16))]
struct Room(UnsafeCell<[u8; ROOM]>);

// SAFETY: its bytes are only reached through blocks, of which each has one owner.
unsafe impl Sync for Room {}

static HERE: Room = Room(UnsafeCell::new([0; ROOM]));

/// Up to where it is taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// How every block is aligned at least. Programs that pass buffers of bytes to the kernel as structures
/// (nix does, for control messages) count on what malloc(3) does here.
const ALIGN_MIN: usize = 8;

/// Where a block begins in the room; `None` if it came from elsewhere.
fn offset(block: *mut u8) -> Option<usize> {
    let offset = block.addr().wrapping_sub(HERE.0.get().addr());
    (offset < ROOM).then_some(offset)
}

/// A block; null if there is no room for it.
fn take(layout: Layout) -> *mut u8 {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    loop {
        // The room itself is aligned for no more.
        let start = taken.next_multiple_of(layout.align().max(ALIGN_MIN));
        let end = start.saturating_add(layout.size());
        if end > ROOM || layout.align() > align_of::<Room>() {
            return ptr::null_mut();
        }
        match TAKEN.compare_exchange_weak(taken, end, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return HERE.0.get().cast::<u8>().wrapping_add(start),
            Err(now) => taken = now,
        }
    }
}

/// Moves the end of the last block from `end` to `new_end`; false if it is not the last, or there is
/// no room.
fn move_end(end: usize, new_end: usize) -> bool {
    new_end <= ROOM
        && TAKEN.compare_exchange(end, new_end, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

// SAFETY: a block of the room is as large and as aligned as its layout says, and nobody else's from
// `take` until it is freed: the end of what is taken passes it in one step, and goes back before it
// only from its own end. Others are the other allocator's, which keeps the contract. None of it
// allocates or panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for FirstHere<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = take(layout);
        if block.is_null() {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc(layout) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match offset(block) {
            Some(start) => {
                move_end(start + layout.size(), start);
            }
            // SAFETY: the caller's promise; it did not come from the room.
            None => unsafe { self.0.dealloc(block, layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = take(layout);
        if block.is_null() {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        // SAFETY: the block has so many bytes. It may have been used before.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = offset(block) else {
            // SAFETY: the caller's promise; it did not come from the room.
            return unsafe { self.0.realloc(block, layout, size) };
        };
        if move_end(start + layout.size(), start.saturating_add(size)) {
            return block;
        }
        // SAFETY: the caller's promise; the block is ours.
        unsafe { moved(self, block, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    const ALLOCATOR: FirstHere<System> = FirstHere(System);

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// One test for the one room: others would take of it meanwhile.
    #[test]
    fn blocks_keep_their_content_within_the_room_and_beyond() {
        // SAFETY: each block is used within its size, with the layout that it has, and freed once.
        unsafe {
            let first = ALLOCATOR.alloc(layout(100));
            assert_eq!(offset(first), Some(0));
            first.write_bytes(7, 100);
            let first = ALLOCATOR.realloc(first, layout(100), 200);
            assert_eq!(offset(first), Some(0), "the last one grows where it is");
            let second = ALLOCATOR.alloc(layout(8));
            assert_eq!(offset(second), Some(200));
            second.write_bytes(9, 8);
            let moved = ALLOCATOR.realloc(first, layout(200), 300);
            assert_eq!(offset(moved), Some(208), "another one moves");
            assert!((0..100).all(|at| moved.add(at).read() == 7));
            ALLOCATOR.dealloc(moved, layout(300));
            let zeroed = ALLOCATOR.alloc_zeroed(layout(300));
            assert_eq!(zeroed, moved, "what was freed last is used again");
            assert!((0..300).all(|at| zeroed.add(at).read() == 0));
            let beyond = ALLOCATOR.realloc(zeroed, layout(300), 2 * ROOM);
            assert_eq!(offset(beyond), None);
            assert!((0..300).all(|at| beyond.add(at).read() == 0));
            ALLOCATOR.dealloc(beyond, layout(2 * ROOM));
            let aligned = Layout::from_size_align(8, 4096).unwrap();
            let page = ALLOCATOR.alloc(aligned);
            assert!(offset(page).is_none() && page.addr().is_multiple_of(4096));
            ALLOCATOR.dealloc(page, aligned);
            assert!((0..8).all(|at| second.add(at).read() == 9));
            let bytes = Layout::from_size_align(3, 1).unwrap();
            let blocks = [ALLOCATOR.alloc(bytes), ALLOCATOR.alloc(bytes)];
            assert!(blocks.iter().all(|block| block.addr().is_multiple_of(8)), "as malloc does");
        }
        let starts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(fill)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let apart: std::collections::BTreeSet<_> = starts.iter().collect();
        assert_eq!(apart.len(), starts.len(), "no block is given out twice");
        assert!(starts.len() > ROOM / 32, "the room is used up");
    }

    /// Takes blocks until the room is full; where they begin.
    fn fill() -> Vec<usize> {
        std::iter::from_fn(|| offset(take(layout(16)))).collect()
    }
}
