//! The `canal` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    canal::cli::main()
}
