//! The `canal` command.
//!
//! Without Rust's runtime, which makes a dozen system calls before `main` that a `canal run` needs
//! none of; what it does that canal needs, `sys::startup` does.
#![no_main]
#![expect(unsafe_code, reason = "the C library calls `main` by its name, and gives it addresses")]

use std::ffi::{c_char, c_int};

#[cfg(target_env = "musl")]
use canal::sys::memory::LargeApart;
use canal::sys::startup;
#[cfg(target_env = "musl")]
use dlmalloc::GlobalDlmalloc;

// The allocator of musl asks the kernel for nearly every block of a short program.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: LargeApart<GlobalDlmalloc> = LargeApart(GlobalDlmalloc);

// SAFETY: no other function of the program has this name, and it is declared as in C.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: what the kernel put there, for as long as the process lives; nobody writes it. Nothing of
    // canal changes the environment.
    let words = unsafe { startup::begin(count, words) };
    let code = canal::cli::main(words);
    // Not `return`: it writes what is left in the buffer of stdout.
    std::process::exit(code.into())
}
