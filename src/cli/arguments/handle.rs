//! Reads the handle of a lease, which is a secret.

use std::io::{self, BufRead};

use clap::Args;

use crate::cli::{Failed, Result};
use crate::client::nodes::lease::{LEASE_HANDLE_CHARS_MAX, LeaseHandle};
use crate::protocol::Handle;

/// The variable that passes the handle to later steps, and to `canal renew` and `canal release`.
pub(crate) const VARIABLE: &str = "CANAL_HANDLE";

/// The limit for a line that contains a handle.
const LINE_BYTES_MAX: u64 = LEASE_HANDLE_CHARS_MAX as u64 + 1024;

/// The handle of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GivenHandle {
    /// A handle that a daemon granted.
    OfDaemon(Handle),
    /// A handle of a lease at nodes.
    OverNodes(Box<LeaseHandle>),
}

/// The options that choose the lease.
#[derive(Args, Clone, Debug)]
pub(crate) struct HandleArgs {
    /// The lease's handle, or - for standard input [default: $CANAL_HANDLE]
    ///
    /// A handle that is read from standard input does not show up in process lists.
    #[arg(long, value_name = "H", allow_hyphen_values = true)]
    // Kept as text, so that an error message does not repeat it.
    pub(crate) handle: Option<String>,
}

impl HandleArgs {
    /// The handle in the option, or else in the environment.
    pub(crate) fn read(&self) -> Result<Option<GivenHandle>> {
        match self.handle.as_deref() {
            Some("-") => parsed(&first_line()?, "the handle on standard input").map(Some),
            Some(given) => parsed(given, "--handle").map(Some),
            None => Self::of_environment(),
        }
    }

    /// The handle in the environment.
    pub(crate) fn of_environment() -> Result<Option<GivenHandle>> {
        match std::env::var(VARIABLE) {
            Ok(given) if !given.is_empty() => parsed(&given, VARIABLE).map(Some),
            _ => Ok(None),
        }
    }
}

fn first_line() -> Result<String> {
    let mut line = String::new();
    let read = io::Read::take(io::stdin().lock(), LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| Failed::new(format!("cannot read standard input: {error}")))?;
    Ok(line)
}

fn parsed(text: &str, source: &str) -> Result<GivenHandle> {
    let text = text.trim();
    let parsed = match LeaseHandle::is_meant(text) {
        true => text
            .parse::<LeaseHandle>()
            .map(|handle| GivenHandle::OverNodes(Box::new(handle)))
            .map_err(|what| what.to_string()),
        false => text.parse::<Handle>().map(GivenHandle::OfDaemon).map_err(str::to_owned),
    };
    parsed.map_err(|what| {
        Failed::new(format!("{source}: {what}"))
            .hint("take a lease with `canal acquire --ttl`, which prints its handle")
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
        assert_eq!(args.read().unwrap(), Some(GivenHandle::OfDaemon(Handle::new(7))));
        let args = HandleArgs { handle: Some("n0123secret".to_owned()) };
        let failed = args.read().unwrap_err();
        assert_eq!(failed.message, "--handle: the handle is incomplete or has been altered");
    }
}
