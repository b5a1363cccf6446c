//! Small blocks of memory, kept by the thread that freed them for when it needs some like them.
//!
//! Every block that dlmalloc gives and takes costs its lock and a search, which was a fifth of what
//! the daemon did for a request. What is kept is little (`KEPT_BYTES_MAX` of each size), and only
//! threads that ask for it keep anything: a short program has nothing of it.
//!
//! Invariant: a block that is small by its layout is as large as all of its class, so that
//! whoever takes it next may be any of that class, and freed as one on whichever thread.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;

use super::moved;

/// Up to so many bytes a block is small.
const SMALL: usize = 504;

/// No small block is aligned to more than this.
const ALIGNED: usize = 16;

/// How many classes there are, the first of which is not used.
const CLASSES: usize = Class::of_size(SMALL).0 + 1;

/// The most bytes of one class that a thread keeps.
const KEPT_BYTES_MAX: usize = 32 * 1024;

/// An allocator whose small blocks are kept for a while.
#[derive(Debug)]
pub struct SmallKept<A>(pub A);

/// The small blocks whose room is the same: dlmalloc's are multiples of 16 bytes, of which 8 are its
/// own, and not less than 32.
#[derive(Clone, Copy)]
struct Class(usize);

impl Class {
    #[inline(always)]
    fn of(layout: Layout) -> Option<Self> {
        let small = layout.size() <= SMALL && layout.align() <= ALIGNED;
        small.then(|| Self::of_size(layout.size()))
    }

    #[inline(always)]
    const fn of_size(size: usize) -> Self {
        let class = (size + 7) / 16;
        Self(if class == 0 { 1 } else { class })
    }

    #[inline(always)]
    const fn size(self) -> usize {
        16 * self.0 + 8
    }

    #[inline(always)]
    fn layout(self) -> Layout {
        // SAFETY: the alignment is a power of two, and the size far from overflowing.
        unsafe { Layout::from_size_align_unchecked(self.size(), ALIGNED) }
    }
}

/// What a thread keeps of one class: blocks, each of which begins with where the next one is.
struct Shelf {
    first: Cell<*mut u8>,
    /// How many more may be kept; 0 as well on threads that keep none.
    room: Cell<usize>,
}

thread_local! {
    static SHELVES: [Shelf; CLASSES] = const {
        [const { Shelf { first: Cell::new(ptr::null_mut()), room: Cell::new(0) } }; CLASSES]
    };
}

/// Makes that this thread keeps small blocks. For one that lives as long as the process: what it
/// keeps is lost with it.
pub fn keep() {
    SHELVES.with(|shelves| {
        for (class, shelf) in shelves.iter().enumerate().skip(1) {
            shelf.room.set(KEPT_BYTES_MAX / Class(class).size());
        }
    });
}

impl Shelf {
    #[inline]
    fn take(&self) -> Option<*mut u8> {
        let first = self.first.get();
        if first.is_null() {
            return None;
        }
        // SAFETY: a kept block is nobody's, large and aligned enough for a pointer, and begins with
        // the one that `put` wrote.
        self.first.set(unsafe { first.cast::<*mut u8>().read() });
        self.room.set(self.room.get() + 1);
        Some(first)
    }

    /// # Safety
    /// The block is of this class, and nobody uses it any more if it is kept, which is returned.
    #[inline]
    unsafe fn put(&self, block: *mut u8) -> bool {
        let room = self.room.get();
        if room == 0 {
            return false;
        }
        // SAFETY: by the caller's promise it is large enough, and ours.
        unsafe { block.cast::<*mut u8>().write(self.first.get()) };
        self.first.set(block);
        self.room.set(room - 1);
        true
    }
}

/// Does something with the shelf of a class. (Nothing of it is ever destroyed.)
#[inline]
fn on_shelf<R>(class: Class, does: impl FnOnce(&Shelf) -> R) -> Option<R> {
    SHELVES.try_with(|shelves| shelves.get(class.0).map(does)).ok().flatten()
}

// SAFETY: a small block comes from the other allocator with the layout of its class, which is at
// least as large as what was asked for, and goes back there with that layout or to those who ask for
// one of its class, one at a time. Others are the other allocator's. None of it allocates or panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SmallKept<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = Class::of(layout) else {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc(layout) };
        };
        match on_shelf(class, Shelf::take).flatten() {
            Some(block) => block,
            // SAFETY: the size of a class is not 0.
            None => unsafe { self.0.alloc(class.layout()) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Class::of(layout).is_none() {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: it has this size, and is nobody else's.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = Class::of(layout) else {
            // SAFETY: the caller's promise; a block of this layout came from there.
            return unsafe { self.0.dealloc(block, layout) };
        };
        // SAFETY: the caller gives it up, and its layout is of this class.
        if on_shelf(class, |shelf| unsafe { shelf.put(block) }) != Some(true) {
            // SAFETY: it came from there with this layout, and was not kept.
            unsafe { self.0.dealloc(block, class.layout()) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size, rounded up, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Class::of(layout), Class::of(wanted)) {
            (Some(before), Some(after)) if before.0 == after.0 => block,
            // SAFETY: the caller's promise; a block of this layout came from there.
            (None, None) => unsafe { self.0.realloc(block, layout, size) },
            // SAFETY: the caller's promise; the block is ours.
            _ => unsafe { moved(self, block, layout, size) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// Allocates a block and writes all of it.
    fn block(size: usize) -> *mut u8 {
        // SAFETY: not of size 0.
        let block = unsafe { SmallKept(System).alloc(layout(size)) };
        assert!(!block.is_null() && block.addr() % 8 == 0);
        // SAFETY: it has this size.
        unsafe { block.write_bytes(0xa5, size) };
        block
    }

    fn free(block: *mut u8, size: usize) {
        // SAFETY: each block of these tests is freed once, with its layout.
        unsafe { SmallKept(System).dealloc(block, layout(size)) };
    }

    /// On a thread of its own, so that nothing is kept yet.
    fn alone(test: impl FnOnce() + Send + 'static) {
        thread::spawn(test).join().unwrap();
    }

    #[test]
    fn each_size_is_in_the_smallest_class_that_it_fits() {
        for size in 1..=SMALL {
            let class = Class::of(layout(size)).unwrap();
            assert!(class.0 < CLASSES && size <= class.size());
            assert!(class.0 == 1 || size > Class(class.0 - 1).size(), "{size}");
        }
        assert!(Class::of(layout(SMALL + 1)).is_none());
        assert!(Class::of(Layout::from_size_align(64, 32).unwrap()).is_none());
    }

    #[test]
    fn what_was_freed_is_given_to_the_next_of_its_class() {
        alone(|| {
            keep();
            let first = block(25);
            free(first, 25);
            let others = [block(24), block(41)];
            assert!(!others.contains(&first));
            let again = block(40);
            assert_eq!(again, first);
            free(again, 40);
            free(others[0], 24);
            free(others[1], 41);
        });
    }

    #[test]
    fn no_block_is_given_to_two() {
        alone(|| {
            keep();
            let mut random = fastrand::Rng::with_seed(7);
            let mut held: Vec<(*mut u8, usize)> = Vec::new();
            for _ in 0..20_000 {
                if random.bool() || held.is_empty() {
                    let size = random.usize(1..600);
                    held.push((block(size), size));
                } else {
                    let (block, size) = held.swap_remove(random.usize(..held.len()));
                    free(block, size);
                }
            }
            let mut ranges: Vec<_> = held.iter().map(|(at, size)| (at.addr(), *size)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            held.into_iter().for_each(|(block, size)| free(block, size));
        });
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        alone(|| {
            keep();
            let blocks: Vec<_> = (0..1000).map(|_| block(100)).collect();
            blocks.iter().for_each(|block| free(*block, 100));
            let class = Class::of(layout(100)).unwrap();
            let mut kept = 0;
            while on_shelf(class, Shelf::take).flatten().is_some() {
                kept += 1;
            }
            assert_eq!(kept, KEPT_BYTES_MAX / class.size());
        });
    }

    #[test]
    fn a_thread_that_did_not_ask_keeps_nothing() {
        alone(|| {
            let blocks: BTreeSet<_> = (0..10).map(|_| block(64)).collect();
            blocks.into_iter().for_each(|block| free(block, 64));
            assert!(on_shelf(Class::of_size(64), Shelf::take).flatten().is_none());
        });
    }

    #[test]
    fn a_block_keeps_its_content_as_it_grows_and_shrinks() {
        alone(|| {
            keep();
            let sizes = [8, 24, 25, 40, 500, SMALL, SMALL + 1, 5000, 6000, 300, 8];
            let mut at = block(8);
            // SAFETY: each block is used within its size, with the layout that it has.
            unsafe {
                (0..8).for_each(|byte: u8| at.add(byte.into()).write(byte));
                for pair in sizes.windows(2) {
                    at = SmallKept(System).realloc(at, layout(pair[0]), pair[1]);
                    assert!((0..8).all(|byte: u8| at.add(byte.into()).read() == byte), "{pair:?}");
                    at.add(8).write_bytes(1, pair[1] - 8);
                }
                free(at, 8);
                let zeroed = SmallKept(System).alloc_zeroed(layout(40));
                assert!((0..40).all(|byte| zeroed.add(byte).read() == 0));
                free(zeroed, 40);
            }
        });
    }
}
