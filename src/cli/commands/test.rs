//! `canal test`: ask whether locks are free, without taking them.

use serde::Serialize;

use crate::cli::acquisition::keys_granted;
use crate::cli::arguments::definition::{Global, TestArgs};
use crate::cli::arguments::wait::WaitArgs;
use crate::cli::connect::{self, Target};
use crate::cli::failed::Failed;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::wording::not_acquired;
use crate::client::ClientError;
use crate::protocol::{ErrorName, Failure, GrantedKey, HolderInfo, WouldAcquire};
use crate::run::SUCCESS;

/// What `--json` prints of locks that are free.
#[derive(Debug, Serialize)]
struct Free<'a> {
    free: bool,
    keys: &'a [GrantedKey],
}

/// What `--json` prints of locks that are not all free.
#[derive(Debug, Serialize)]
struct Busy<'a> {
    free: bool,
    refused: &'a str,
    message: &'a str,
    holders: &'a [HolderInfo],
}

pub(crate) fn run(args: &TestArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    let items = args.lock().items()?;
    let frame = args.session.enclosing().frame;
    let under = args.session.enclosing_leases().at_socket(&Target::of(global)?.place.socket);
    let asked = WouldAcquire { items, priority: 0, frame, under };
    match connect::client(global)?.would_acquire(&asked) {
        Ok(grant) => {
            if args.json {
                stdout::print(&stdout::json(&Free { free: true, keys: &grant.keys })?)?;
            }
            verbosity.detail(&format!("free: {}", keys_granted(&grant.keys)));
            Ok(SUCCESS)
        }
        Err(ClientError::Failure(failure)) if failure.name == ErrorName::Refused => {
            if args.json {
                stdout::print(&stdout::json(&busy(&failure))?)?;
            }
            Err(not_acquired::explain(&failure, &WaitArgs::default(), verbosity))
        }
        Err(error) => Err(connect::failed(error)),
    }
}

fn busy(failure: &Failure) -> Busy<'_> {
    let refused = failure.reason.as_deref().unwrap_or("full");
    Busy { free: false, refused, message: &failure.message, holders: &failure.holders }
}
