//! Copying memory, in place of musl's way, which begins each copy with an instruction that takes
//! longer to begin than a short copy takes: a tenth of the daemon's time.
//!
//! In a static build the names are those of C, so that the compiler's own calls and libc's come here;
//! not in one that is not optimized, in which the copies of a few bytes would be such calls too.
//!
//! Invariant: of up to [`AT_ONCE`] bytes everything is read before anything is written, so that it
//! does not matter whether the two places overlap.

use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

/// The most bytes that are read before anything is written.
const AT_ONCE: usize = 128;

/// From so many bytes on the processor's own way is the fastest.
const LONG: usize = 1024;

/// memcpy(3).
///
/// # Safety
/// As there: `from` is readable and `to` writable for `size` bytes, and they do not overlap.
#[cfg_attr(all(target_env = "musl", not(debug_assertions)), unsafe(no_mangle))]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise, and that no byte is written before it was read that way.
    unsafe {
        if size <= AT_ONCE {
            copy_at_once(to, from, size);
        } else {
            copy_upwards(to, from, size);
        }
    }
    to
}

/// memmove(3).
///
/// # Safety
/// As there: `from` is readable and `to` writable for `size` bytes.
#[cfg_attr(all(target_env = "musl", not(debug_assertions)), unsafe(no_mangle))]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise; where the destination begins within the source, the copy goes
    // downwards.
    unsafe {
        if size <= AT_ONCE {
            copy_at_once(to, from, size);
        } else if to.addr().wrapping_sub(from.addr()) >= size {
            copy_upwards(to, from, size);
        } else {
            copy_downwards(to, from, size);
        }
    }
    to
}

/// Copies `$unit`s from both ends, which may meet or overlap in the middle.
macro_rules! both_ends {
    ($to:ident, $from:ident, $size:ident, $unit:ty) => {{
        let last = $size - size_of::<$unit>();
        let (head, tail) = (
            $from.cast::<$unit>().read_unaligned(),
            $from.add(last).cast::<$unit>().read_unaligned(),
        );
        $to.cast::<$unit>().write_unaligned(head);
        $to.add(last).cast::<$unit>().write_unaligned(tail);
    }};
}

/// # Safety
/// Both places are that large; at most [`AT_ONCE`].
#[inline(always)]
unsafe fn copy_at_once(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: in each branch, all that is touched lies within the size.
    unsafe {
        match size {
            0 => {}
            1 => to.write(from.read()),
            2..=3 => both_ends!(to, from, size, u16),
            4..=7 => both_ends!(to, from, size, u32),
            8..=15 => both_ends!(to, from, size, u64),
            16..=31 => both_ends!(to, from, size, [u64; 2]),
            32..=63 => both_ends!(to, from, size, [__m128i; 2]),
            _ => both_ends!(to, from, size, [__m128i; 4]),
        }
    }
}

/// # Safety
/// Both places are that large, at least 64 bytes, and `to` does not begin within `from`.
unsafe fn copy_upwards(to: *mut u8, from: *const u8, size: usize) {
    if size >= LONG {
        // SAFETY: the caller's promise; the direction flag is clear, as the calling convention says.
        unsafe {
            asm!("rep movsb", inout("rcx") size => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    // SAFETY: `at` and the 64 bytes from it on are within the size. The last ones are read first: what
    // is written before they are may lie over them.
    unsafe {
        let last = size - 64;
        let tail = load(from.add(last));
        let mut at = 0;
        while at < last {
            store(to.add(at), load(from.add(at)));
            at += 64;
        }
        store(to.add(last), tail);
    }
}

/// # Safety
/// Both places are that large, at least 64 bytes, and `from` does not begin within `to`.
unsafe fn copy_downwards(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: `end` is at least 64 wherever 64 bytes before it are touched, and within the size. The
    // first ones are read first: what is written before they are may lie over them.
    unsafe {
        let head = load(from);
        let mut end = size;
        while end > 64 {
            end -= 64;
            store(to.add(end), load(from.add(end)));
        }
        store(to, head);
    }
}

/// # Safety
/// 64 bytes are readable.
#[inline(always)]
unsafe fn load(from: *const u8) -> [__m128i; 4] {
    // SAFETY: the caller's promise.
    unsafe { [0, 16, 32, 48].map(|at| _mm_loadu_si128(from.add(at).cast())) }
}

/// # Safety
/// 64 bytes are writable.
#[inline(always)]
unsafe fn store(to: *mut u8, parts: [__m128i; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        for (at, part) in parts.into_iter().enumerate() {
            _mm_storeu_si128(to.add(16 * at).cast(), part);
        }
    }
}

#[cfg(test)]
mod tests {
    /// Through the names that the compiler calls, in a build for musl these here.
    #[test]
    fn every_size_is_copied_whole_and_nothing_beside_it() {
        let source: Vec<u8> = (0..3000_u32).map(|n| (n * 7 % 251) as u8).collect();
        for size in (0..300).chain([1000, 1023, 1024, 1025, 2048, 2900]) {
            for begin in [0, 1, 3, 8, 15] {
                let mut copy = vec![0xee; size + 40];
                // SAFETY: both are that large, and apart.
                unsafe {
                    super::memcpy(copy[begin..].as_mut_ptr(), source[begin..].as_ptr(), size)
                };
                assert_eq!(copy[begin..begin + size], source[begin..begin + size], "{size}");
                let beside = copy[..begin].iter().chain(&copy[begin + size..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{size}");
            }
        }
    }

    #[test]
    fn what_overlaps_is_moved_as_if_it_did_not() {
        let source: Vec<u8> = (0..3000_u32).map(|n| (n * 7 % 251) as u8).collect();
        for size in (0..200).chain([255, 256, 257, 1024, 2000]) {
            for (to, from) in
                [(0, 1), (1, 0), (0, 17), (17, 0), (63, 0), (0, 64), (65, 1), (0, 700), (700, 0)]
            {
                let mut bytes = source.clone();
                let expected = source[from..from + size].to_vec();
                let at = bytes.as_mut_ptr();
                // SAFETY: both lie in the vector.
                unsafe { super::memmove(at.add(to), at.add(from), size) };
                assert_eq!(bytes[to..to + size], expected, "{size} from {from} to {to}");
            }
        }
    }
}
