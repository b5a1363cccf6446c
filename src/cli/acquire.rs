//! `canal acquire`: take the lock for another process.
//!
//! The grant is provisional until it was printed and then confirmed: a lock whose owner was never
//! told goes back by itself.

use std::process::ExitCode;

use serde::Serialize;

use super::args::{AcquireArgs, Global};
use super::ask::{self, NotAcquired};
use super::connect::{self, Target};
use super::failed::Failed;
use super::output;
use super::owner::Owner;
use super::refused;
use super::say::Voice;
use crate::protocol::{Confirm, CycleStepShown, Failure, HolderShown};

/// What `--json` prints of a refusal.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    refused: &'a str,
    message: &'a str,
    holders: &'a [HolderShown],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cycle: &'a [CycleStepShown],
}

pub(crate) fn run(args: &AcquireArgs, global: &Global, voice: Voice) -> Result<ExitCode, Failed> {
    if args.wait.conflict_exit_code == Some(0) {
        return Err(Failed::new("-E 0 would mean to go on without the lock")
            .hint("canal run -E 0 skips its command; here test for another code"));
    }
    // Before the owner is looked at: what is wrong in the options is said first.
    let mut request = ask::request(&args.lock, &args.wait, args.session, "")?;
    let target = Target::of(global)?;
    let owner = Owner::find(args.whose.pid)?;
    request.command = owner.command();
    let (mut client, acquired) = match ask::obtain(&target, &request, Some(&owner.pidfd), voice) {
        Ok(obtained) => obtained,
        Err(NotAcquired::Failed(failed)) => return Err(failed),
        Err(NotAcquired::Refused(failure)) => return refuse(&failure, args, voice),
    };
    if args.json {
        output::tell(&output::json(&acquired.grant)?)?;
    }
    client.confirm(&Confirm { tag: request.tag }).map_err(connect::failed)?;
    let held = format!("held for {}", owner.shown());
    let say = if owner.by_default { Voice::say } else { Voice::detail };
    say(voice, &held);
    Ok(ExitCode::SUCCESS)
}

fn refuse(failure: &Failure, args: &AcquireArgs, voice: Voice) -> Result<ExitCode, Failed> {
    let failed = refused::explain(failure, &args.wait, voice);
    if args.json {
        output::print(&output::json(&Refused {
            refused: failure.reason.as_deref().unwrap_or("full"),
            message: &failure.message,
            holders: &failure.holders,
            cycle: &failure.cycle,
        })?)?;
    }
    Err(failed)
}
