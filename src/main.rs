//! The `canal` command.

#[cfg(not(target_env = "musl"))]
use std::alloc::System;
use std::process::ExitCode;

use canal::sys::memory::first::FirstHere;
#[cfg(target_env = "musl")]
use canal::sys::memory::large::LargeApart;
#[cfg(target_env = "musl")]
use canal::sys::memory::small::SmallKept;
#[cfg(target_env = "musl")]
use dlmalloc::GlobalDlmalloc;

// That of musl asks the kernel for nearly every block of a short program's.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: SmallKept<FirstHere<LargeApart<GlobalDlmalloc>>> =
    SmallKept(FirstHere(LargeApart(GlobalDlmalloc)));
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: FirstHere<System> = FirstHere(System);

fn main() -> ExitCode {
    canal::cli::main()
}
