//! `canal acquire`: takes a lock for another process, or as a lease.
//!
//! The grant is provisional until canal has printed and confirmed it. If canal ends before that,
//! the daemon withdraws the grant.

use std::os::unix::process::parent_id;
use std::time::Duration;

use serde::Serialize;

use crate::cli::acquisition;
use crate::cli::acquisition::NotAcquired;
use crate::cli::arguments::definition::{AcquireArgs, Global};
use crate::cli::arguments::duration::{millis, stated};
use crate::cli::commands::kill::EndSuperseded;
use crate::cli::commands::nodes;
use crate::cli::connect;
use crate::cli::connect::Target;
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::owner::Owner;
use crate::cli::wording::not_acquired;
use crate::cli::wording::usage_error::wrong;
use crate::client::{self, ClientError};
use crate::protocol::{
    Confirm, CycleStepInfo, ErrorName, Failure, Grant, Handle, HolderInfo, LeaseAsked, OWNER_GONE,
    SizeNote,
};
use crate::run::SUCCESS;
use crate::sys::process;

/// The `--json` output for a refusal.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    refused: &'a str,
    message: &'a str,
    holders: &'a [HolderInfo],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cycle: &'a [CycleStepInfo],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [SizeNote],
}

pub(crate) fn run(args: &AcquireArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    if args.wait.conflict_exit_code == Some(0) {
        return Err(Failed::new("-E 0 would let the script continue without the lock").hint(
            "with `canal acquire`, choose another code and test for it; only `canal run -E \
                   0` skips its command",
        ));
    }
    // This precedes the search for the owner, so that errors in the options come first.
    let lock = args.lock.with_operand(args.key.as_ref())?;
    let mut request = acquisition::request(&lock, &args.wait, args.session, &args.note, "")?;
    request.supersede = acquisition::superseded(&args.wait, "acquire", args.nodes.is_given())?;
    request.on_lost = args.on_lost.map(Into::into).unwrap_or_default();
    if args.nodes.is_given() {
        let ttl = args.ttl.ok_or_else(not_for_a_process)?;
        request.command = asker();
        acquisition::text_notes(&request.items, verbosity);
        return nodes::acquire::run(args, global, verbosity, &request, ttl);
    }
    let target = Target::of(global)?;
    let owner = match args.ttl {
        Some(ttl) => {
            request.lease = Some(lease(ttl)?);
            // A lease outlives the session and frame in which it is requested.
            (request.session, request.frame) = (None, None);
            request.command = asker();
            None
        }
        None => {
            let owner = Owner::find(args.whose.pid)?;
            request.command = owner.command();
            request.under = args.session.enclosing_leases().at_socket(&target.place.socket);
            Some(owner)
        }
    };
    let pidfd = owner.as_ref().map(|owner| &owner.pidfd);
    let choice = args.wait.progress.unwrap_or_default();
    let mut ending = EndSuperseded::new(&target, &request, verbosity, None);
    let obtained = acquisition::obtain(
        &target,
        &request,
        pidfd,
        choice,
        args.wait.readers(),
        verbosity,
        Some(&mut ending),
    );
    let (mut client, mut acquired) = match obtained {
        Ok(obtained) => obtained,
        Err(NotAcquired::Failed(failed)) => return Err(failed),
        Err(NotAcquired::SupervisorRequired(failure)) => return Err(Failed::new(failure.message)),
        Err(NotAcquired::Refused(failure)) => return refuse(&failure, args, verbosity),
    };
    acquired.grant.handle = request.lease.map(|lease| lease.handle);
    if args.json {
        stdout::print_or_fail(&stdout::json(&acquired.grant)?)?;
    } else if let Some(handle) = acquired.grant.handle {
        stdout::print_or_fail(&variables(handle, &acquired.grant))?;
    }
    let confirmed = client.confirm(&Confirm { tag: request.tag });
    let has_ended = || owner.as_ref().is_some_and(|owner| owner.pidfd.has_ended());
    confirmed.map_err(|error| unconfirmed(error, has_ended))?;
    match (owner, args.ttl) {
        (Some(owner), _) => {
            let say = if owner.by_default { Verbosity::note } else { Verbosity::detail };
            say(verbosity, &format!("held for {}", owner.shown()));
        }
        (None, ttl) => verbosity.detail(&format!(
            "a lease of {}: extend it with `canal renew`, end it with `canal release --handle`",
            stated(ttl.unwrap_or_default())
        )),
    }
    Ok(SUCCESS)
}

/// The error for a grant that was not confirmed. If its owner has ended in the meantime, this is
/// the same error as for an owner that ended earlier.
fn unconfirmed(error: ClientError, has_ended: impl FnOnce() -> bool) -> Failed {
    let taken_back =
        matches!(&error, ClientError::Failure(failure) if failure.name == ErrorName::UnknownTag);
    if taken_back && has_ended() {
        return Failed::new(OWNER_GONE);
    }
    connect::failed(error)
}

/// The error for a lock at nodes without `--ttl`.
fn not_for_a_process() -> Failed {
    wrong(
        "acquire",
        "--on needs --ttl, because other machines cannot see when a process of this one ends",
    )
    .hint(
        "hold it while a command runs with `canal run --on`, or renew a lease with `canal renew \
         --while PID`",
    )
}

/// A request for a lease with this TTL, under a new handle.
fn lease(ttl: Duration) -> Result<LeaseAsked, Failed> {
    let handle = client::handle().map_err(connect::failed)?;
    Ok(LeaseAsked { handle, ttl_ms: millis(ttl) })
}

/// The command line to show for a lease. It is that of the script, because this process ends
/// immediately.
fn asker() -> String {
    process::command_line(parent_id()).unwrap_or_default()
}

/// The variables that later steps need, as lines for a shell and for the environment files of CI
/// services.
fn variables(handle: Handle, grant: &Grant) -> String {
    let slots = grant.keys.iter().flat_map(|key| &key.slots).map(|slot| slot.slot.to_string());
    let slots: Vec<_> = slots.collect();
    let mut lines = format!("CANAL_HANDLE={}\nCANAL_TOKEN={}\n", handle.reveal(), grant.token);
    if !slots.is_empty() {
        lines += &format!("CANAL_SLOTS={}\n", slots.join(","));
    }
    lines
}

fn refuse(failure: &Failure, args: &AcquireArgs, verbosity: Verbosity) -> Result<u8, Failed> {
    let failed = not_acquired::explain(failure, &args.wait, verbosity);
    if args.json {
        stdout::print(&stdout::json(&Refused {
            refused: failure.reason.as_deref().unwrap_or("full"),
            message: &failure.message,
            holders: &failure.holders,
            cycle: &failure.cycle,
            notes: failure.notes(),
        })?)?;
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_ends_around_the_grant_gets_one_message() {
        let taken_back =
            || ClientError::Failure(Failure::new(ErrorName::UnknownTag, "taken back before"));
        assert_eq!(unconfirmed(taken_back(), || true).message, OWNER_GONE);
        assert_eq!(unconfirmed(taken_back(), || false).message, "taken back before");
        let other = ClientError::Silent { pid: 7, state: 'S' };
        assert_ne!(unconfirmed(other, || true).message, OWNER_GONE);
    }
}
