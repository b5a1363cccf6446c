//! The `canal` command.

use std::ffi::OsString;
use std::process::ExitCode;

#[cfg(target_env = "musl")]
use canal::sys::allocator::LargeApart;
#[cfg(target_env = "musl")]
use dlmalloc::GlobalDlmalloc;

// The allocator of musl calls the kernel for nearly every block that a short program allocates.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: LargeApart<GlobalDlmalloc> = LargeApart(GlobalDlmalloc);

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    canal::cli::main(&words).into()
}
