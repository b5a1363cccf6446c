//! The `canal` command.

use std::process::ExitCode;

// That of musl asks the kernel for nearly every block of a short program's.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    canal::cli::main()
}
