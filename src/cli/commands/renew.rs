//! `canal renew`: renews a lease, once or while a process lives.

use std::time::Duration;

use crate::cli::arguments::definition::{Global, RenewArgs};
use crate::cli::arguments::duration::{millis, stated};
use crate::cli::arguments::handle::GivenHandle;
use crate::cli::commands::nodes;
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::owner::Owner;
use crate::cli::wording::lease_lost;
use crate::cli::wording::time::Now;
use crate::cli::wording::usage_error::wrong;
use crate::client::{Client, ClientError};
use crate::protocol::{ErrorName, Handle, Renew, Renewed};
use crate::run::{OwnCode, SUCCESS};
use crate::sys::clock::{boottime_ms, boottime_ms_after};
use crate::sys::pidfd::Pidfd;

/// The longest single sleep. The clock of the sleep stands still while the machine is suspended,
/// but that of the lease does not.
const SLEEP_MS_MAX: u64 = 30_000;

pub(crate) fn run(args: &RenewArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    let handle = match args.which.read()? {
        None => return Err(wrong("renew", "which lease? give --handle, or set CANAL_HANDLE")),
        Some(GivenHandle::OverNodes(handle)) => {
            return nodes::renew::run(args, global, verbosity, &handle);
        }
        Some(GivenHandle::OfDaemon(handle)) => handle,
    };
    let note = args.note.of_renewal()?;
    let process = args.while_lives.map(|pid| Owner::find(Some(pid))).transpose()?;
    let mut client = connect::client(global)?;
    let ttl_ms = args.ttl.map(millis);
    let is_kept = process.is_some();
    let lease = Lease { handle, ttl_ms, is_kept, json: args.json, verbosity };
    let asked_at = boottime_ms();
    let renewed = lease.renew(&mut client, note)?.map_err(connect::failed)?;
    if args.json {
        stdout::print(&stdout::json(&renewed)?)?;
    }
    verbosity.detail(&message(&renewed, &Now::here()));
    if ttl_ms.is_some_and(|ttl_ms| ttl_ms != renewed.lease.ttl_ms) {
        let ttl = stated(Duration::from_millis(renewed.lease.ttl_ms));
        verbosity.message(&format!("the lease keeps its TTL of {ttl}"));
    }
    match process {
        Some(process) => lease.keep(&mut client, &process.pidfd, renewed.lease.ttl_ms, asked_at),
        None => Ok(SUCCESS),
    }
}

/// The lease to renew.
struct Lease {
    handle: Handle,
    /// The new TTL of the lease.
    ttl_ms: Option<u64>,
    /// Whether canal renews it until a process ends.
    is_kept: bool,
    json: bool,
    verbosity: Verbosity,
}

impl Lease {
    /// Renews the lease once, with a new note if there is one. The outer error ends the command:
    /// the lease is lost, or its owner has released it.
    fn renew(
        &self,
        client: &mut Client,
        note: Option<String>,
    ) -> Result<Result<Renewed, ClientError>, Failed> {
        match client.renew(&Renew { handle: self.handle, note, ttl_ms: self.ttl_ms }) {
            Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
                // A script releases its lease while its renewals run in parallel. Nothing is lost.
                if self.is_kept && failure.reason.as_deref() == Some("released") {
                    self.verbosity.detail("the lease was released; nothing is left to renew");
                    return Err(Failed::silent(SUCCESS));
                }
                Err(lease_lost::explain(&failure, self.json, self.verbosity)?)
            }
            result => Ok(result),
        }
    }

    /// Renews the lease every third of its TTL, until the process ends. After a failure, tries
    /// again soon. After a whole TTL without a renewal, the lease counts as lost.
    fn keep(
        &self,
        client: &mut Client,
        process: &Pidfd,
        mut ttl_ms: u64,
        mut renewed_at: u64,
    ) -> Result<u8, Failed> {
        let mut failing = false;
        loop {
            let pause = if failing { ttl_ms / 20 } else { ttl_ms / 3 };
            if ends_within(process, pause) {
                return Ok(SUCCESS);
            }
            let asked_at = boottime_ms();
            match self.renew(client, None)? {
                Ok(renewed) => {
                    if failing {
                        self.verbosity.note("renewed the lease again");
                    }
                    self.verbosity.detail(&message(&renewed, &Now::here()));
                    (renewed_at, failing) = (asked_at, false);
                    // Another client may have changed the TTL.
                    ttl_ms = renewed.lease.ttl_ms;
                }
                Err(error) if process.has_ended() => {
                    self.verbosity.detail(&error.to_string());
                    return Ok(SUCCESS);
                }
                Err(error) => {
                    if boottime_ms().saturating_sub(renewed_at) > ttl_ms {
                        return Err(not_renewed(ttl_ms, &error));
                    }
                    if !failing {
                        self.verbosity
                            .message(&format!("cannot renew the lease, trying again: {error}"));
                    }
                    failing = true;
                }
            }
        }
    }
}

/// Whether the process ends within this time, by a clock that keeps running during suspend.
fn ends_within(process: &Pidfd, time_ms: u64) -> bool {
    let until = boottime_ms_after(time_ms);
    loop {
        let left = until.saturating_sub(boottime_ms());
        let sleep = u16::try_from(left.min(SLEEP_MS_MAX)).unwrap_or(u16::MAX);
        if process.wait_end(sleep) {
            return true;
        }
        if left == 0 {
            return false;
        }
    }
}

/// The failure if a lease could not be renewed for a whole TTL.
fn not_renewed(ttl_ms: u64, error: &ClientError) -> Failed {
    let ttl = stated(Duration::from_millis(ttl_ms));
    let message =
        format!("canal could not renew the lease for {ttl}, so it counts as lost: {error}");
    Failed::with_code(OwnCode::LockLost.number(), message)
        .hint("run `canal renew` once the daemon answers, to see whether it has ended")
}

/// `renewed db until 14:06:23, token 77`.
fn message(renewed: &Renewed, now: &Now) -> String {
    let until = renewed.lease.expires.as_deref().map(|at| format!(" until {}", now.clock(at)));
    let keys = renewed.keys.join(", ");
    format!("renewed {keys}{}, token {}", until.unwrap_or_default(), renewed.token)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_process_ends_the_pause() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Pidfd::open(cat.id()).unwrap();
        assert!(!ends_within(&process, 0));
        assert!(!ends_within(&process, 20));
        drop(cat.stdin.take());
        assert!(ends_within(&process, 10 * SLEEP_MS_MAX));
        cat.wait().unwrap();
    }
}
