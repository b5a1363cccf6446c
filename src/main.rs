//! The `canal` command.

use std::process::ExitCode;

#[cfg(target_env = "musl")]
use canal::sys::large::LargeApart;
#[cfg(target_env = "musl")]
use canal::sys::small::SmallKept;
#[cfg(target_env = "musl")]
use dlmalloc::GlobalDlmalloc;

// That of musl asks the kernel for nearly every block of a short program's.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: SmallKept<LargeApart<GlobalDlmalloc>> = SmallKept(LargeApart(GlobalDlmalloc));

fn main() -> ExitCode {
    canal::cli::main()
}
