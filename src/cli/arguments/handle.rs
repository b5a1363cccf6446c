//! The secret of a lease: from where it is read.

use std::io::{self, BufRead};

use clap::Args;

use crate::cli::failed::Failed;
use crate::protocol::Handle;

/// Names the handle to later steps, and to `canal renew` and `canal release`.
pub(crate) const VARIABLE: &str = "CANAL_HANDLE";

/// A handle is much shorter than this.
const LINE_BYTES_MAX: u64 = 4096;

/// Which lease.
#[derive(Args, Clone, Debug)]
pub(crate) struct HandleArgs {
    /// The handle of the lease; - reads it from standard input, so that it does not stand in the
    /// list of processes [default: $CANAL_HANDLE]
    #[arg(long, value_name = "H", allow_hyphen_values = true)]
    // Kept as text, so that an error message does not repeat it.
    pub(crate) handle: Option<String>,
}

impl HandleArgs {
    /// The handle that the option names, else the environment.
    pub(crate) fn read(&self) -> Result<Option<Handle>, Failed> {
        match self.handle.as_deref() {
            Some("-") => parsed(&first_line()?, "the handle on standard input").map(Some),
            Some(given) => parsed(given, "--handle").map(Some),
            None => Self::of_environment(),
        }
    }

    /// The handle that the environment names.
    pub(crate) fn of_environment() -> Result<Option<Handle>, Failed> {
        match std::env::var(VARIABLE) {
            Ok(given) if !given.is_empty() => parsed(&given, VARIABLE).map(Some),
            _ => Ok(None),
        }
    }
}

fn first_line() -> Result<String, Failed> {
    let mut line = String::new();
    let read = io::Read::take(io::stdin().lock(), LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| Failed::new(format!("cannot read standard input: {error}")))?;
    Ok(line)
}

fn parsed(text: &str, source: &str) -> Result<Handle, Failed> {
    text.trim().parse().map_err(|what| {
        Failed::new(format!("{source}: {what}"))
            .hint("`canal acquire --ttl` prints the handle of its lease")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_handle_is_not_repeated_in_the_error() {
        let args = HandleArgs { handle: Some("0123secret".to_owned()) };
        let failed = args.read().unwrap_err();
        assert_eq!(failed.message, "--handle: a handle is 32 hexadecimal digits");
        let args = HandleArgs { handle: Some(format!(" {:032x}\n", 7)) };
        assert_eq!(args.read().unwrap(), Some(Handle::new(7)));
    }
}
